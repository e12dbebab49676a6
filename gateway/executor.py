"""The executor: the one way from a caller to a tool."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio

from gateway.calls import Call, Outcome, Proceed
from gateway.catalog import Catalog, CatalogEntry
from gateway.extensions import Extension, PlanStep, build, plan, stack
from gateway.extensions.step_times import StepTimes
from gateway.tools import Hides, Tool, hide_nothing

Listener = Callable[[Catalog], None]
Result = TypeVar("Result")


class Executor:
    """Finds the tool, and sends the call through the extensions to its source.

    Every surface calls tools here and nowhere else. `call_tool` always returns an outcome; it raises nothing but
    cancellation.
    """

    def __init__(self, extensions: Sequence[Extension], catalog: Catalog | None = None) -> None:
        self._catalog = catalog or Catalog()
        self._extensions = extensions
        self._unknown_pipeline = stack(extensions, _refuse)
        self._pipelines: dict[str, Proceed] = {}  # by public name
        self._listeners: list[Listener] = []
        self.step_times = StepTimes()
        self.measuring = 0  # how many want the steps of calls measured
        self._active = 0
        self._idle: anyio.Event | None = None

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    async def list_tools(self) -> Catalog:
        return self._catalog

    def call_tool(self, call: Call) -> Coroutine[Any, Any, Outcome]:
        access, catalog = call.caller.access, self._catalog
        if access is not None:
            catalog = catalog.for_principal(access)
        entry = catalog.get(call.name)
        if entry is None or call.refusal is not None:
            refusal = call.refusal or catalog.refusal(call.name)
            pipeline = self._unknown_pipeline
            call = call.replace(tool=None, public_name=None, refusal=refusal)
        else:
            pipeline = self._pipelines.get(entry.name) or self._build(entry)
            call = call.replace(tool=entry.tool, public_name=entry.name, refusal=None, began=time.perf_counter())
        return self._run(pipeline, call)

    async def request(self, call: Call, tool: Tool, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run `work` that is no tool call, such as reading a resource, behind the same extensions. `tool` stands for it
        in rules, permissions, limits and the record. Returns the result of `work`, which is JSON; raises a refusal."""

        async def run(_: Call) -> Outcome:
            return Outcome(value=await work())

        outcome = await self._run(build(self.plan(tool), run), call.replace(tool=tool))
        if outcome.error is not None:
            raise outcome.error
        result: Result = outcome.value
        return result

    def plan(self, tool: Tool) -> list[PlanStep]:
        """Return what calls of a tool pass before its source, outermost first."""
        return plan(self._extensions, tool)

    def hides(self, tool: Tool) -> Hides:
        """A predicate for files to leave out of what a tool returns or sees, as any extension demands."""
        predicates = [hides for extension in self._extensions if (hides := extension.hides(tool)) is not None]
        if len(predicates) < 2:
            return predicates[0] if predicates else hide_nothing

        def hides_any(path: str, agreed: frozenset[str] = frozenset()) -> str | None:
            return next((reason for hides in predicates if (reason := hides(path, agreed))), None)

        return hides_any

    def refuses(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Return whether an extension would refuse such a request."""
        return any(extension.refuses(tool, arguments) for extension in self._extensions)

    def swap(self, catalog: Catalog) -> None:
        """Offer another catalog from the next call on; running calls keep the tool and the source they have."""
        changed = catalog != self._catalog
        self._catalog = catalog
        self._pipelines.clear()
        if changed:
            for listener in list(self._listeners):
                listener(catalog)

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every changed catalog until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the steps of calls that begin meanwhile, for `step_times`."""
        self.measuring += 1
        self._pipelines.clear()
        try:
            yield
        finally:
            self.measuring -= 1
            self._pipelines.clear()

    async def idle(self) -> None:
        """Wait until no call is running or being recorded."""
        while self._active:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def _run(self, pipeline: Proceed, call: Call) -> Outcome:
        self._active += 1
        try:
            return await pipeline(call)
        finally:
            self._active -= 1
            if not self._active and self._idle:
                self._idle.set()

    def _build(self, entry: CatalogEntry) -> Proceed:
        """The tool's plan, then its source; made at its first call."""
        steps = self.plan(entry.tool)
        run: Proceed = entry.source.call_tool
        if self.measuring:
            steps, run = self.step_times.measure(steps, run)
        pipeline = build(steps, run)
        self._pipelines[entry.name] = pipeline
        return pipeline


async def _refuse(call: Call) -> Outcome:
    return Outcome(error=call.refusal)
