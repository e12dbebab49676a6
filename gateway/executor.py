"""The one road from a caller to a tool."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import anyio

from gateway.calls import Call, Outcome, Proceed
from gateway.catalog import Catalog
from gateway.extensions import Extension, concerning, stack
from gateway.tools import Hides, Tool, hide_nothing

Listener = Callable[[Catalog], None]
Result = TypeVar("Result")


class Executor:
    """Finds the tool, sends the call through the extensions and on to its source.

    Every surface calls tools here and nowhere else. `call_tool` always answers with an outcome;
    it raises nothing but cancellation.
    """

    def __init__(self, extensions: Sequence[Extension], catalog: Catalog | None = None) -> None:
        self._catalog = catalog or Catalog()
        self._extensions = extensions
        self._road = stack(extensions, self._run)
        self._roads: dict[str, tuple[Tool, Proceed]] = {}
        self._listeners: list[Listener] = []
        self._active = 0
        self._idle: anyio.Event | None = None

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    async def list_tools(self) -> Catalog:
        return self._catalog

    async def call_tool(self, call: Call) -> Outcome:
        entry = self._catalog.get(call.name)
        if entry is None:
            road = self._road
            found = call.but(tool=None, public_name=None, refusal=self._catalog.refusal(call.name))
        else:
            road = self._road_to(entry.tool)
            found = call.but(tool=entry.tool, public_name=entry.name, refusal=None)
        self._active += 1
        try:
            return await road(found)
        finally:
            self._active -= 1
            if not self._active and self._idle:
                self._idle.set()

    async def request(self, call: Call, tool: Tool, work: Callable[[], Awaitable[Result]]) -> Result:
        """Do `work` that no tool does, such as reading a resource, behind the same extensions. `tool` stands for it in
        rules, permissions, limits and the record. Returns what `work` does, which is JSON; raises what refuses it."""

        async def run(_: Call) -> Outcome:
            return Outcome(value=await work())

        self._active += 1
        try:
            outcome = await stack(concerning(self._extensions, tool), run)(call.but(tool=tool))
        finally:
            self._active -= 1
            if not self._active and self._idle:
                self._idle.set()
        if outcome.error is not None:
            raise outcome.error
        result: Result = outcome.value
        return result

    def hides(self, tool: Tool) -> Hides:
        """A predicate for files to leave out of what a tool returns or sees, as any extension demands."""
        found = [hides for extension in self._extensions if (hides := extension.hides(tool)) is not None]
        if len(found) < 2:
            return found[0] if found else hide_nothing

        def hides_any(path: str, agreed: frozenset[str] = frozenset()) -> str | None:
            return next((reason for hides in found if (reason := hides(path, agreed))), None)

        return hides_any

    def refuses(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Return whether an extension says that it would refuse such a request."""
        return any(extension.refuses(tool, arguments) for extension in self._extensions)

    def swap(self, catalog: Catalog) -> None:
        """Offer another catalog from the next call on; calls under way keep the tool they have."""
        changed = catalog != self._catalog
        self._catalog = catalog
        self._roads.clear()
        if changed:
            for listener in list(self._listeners):
                listener(catalog)

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of every changed catalog until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def idle(self) -> None:
        """Wait until no call is under way, its record included."""
        while self._active:
            self._idle = anyio.Event()
            await self._idle.wait()

    def _road_to(self, tool: Tool) -> Proceed:
        """The road with those extensions on it that concern the tool; made at its first call."""
        known = self._roads.get(tool.id)
        if known is None or known[0] is not tool:
            road = stack(concerning(self._extensions, tool), self._run)
            known = self._roads[tool.id] = tool, road
        return known[1]

    def _run(self, call: Call) -> Awaitable[Outcome]:
        return self._catalog.find(call.name).source.call_tool(call)
