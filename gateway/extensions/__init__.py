"""Extensions: gates and observers between a caller and a tool, composed to one callable, outermost first."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import anyio

from gateway.calls import Call, Outcome, Proceed
from gateway.config import ExtensionPriority as ExtensionPriority
from gateway.config import ExtensionSettings
from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.extensions.guard import ExtensionGuard
from gateway.names import did_you_mean
from gateway.tools import Hides, Tool

log = logging.getLogger(__name__)

# Packages offer extensions in this group of entry points.
ENTRY_POINTS = "toolgate.extensions"

# Calls before and after the tool. What is returned may be awaitable, for a call that has to wait.
Before = Callable[[Call], Any]
After = Callable[[Call, Outcome], Any]


class AroundCall(Protocol):
    """Called around the rest of a call."""

    def __call__(self, call: Call, proceed: Proceed) -> Awaitable[Outcome]: ...


class Extension:
    """Override `before_execute` and `after_execute`, or `call_tool` to wrap the whole call.

    An extension may refuse a call (raise a `GatewayError`), change it, return another outcome, or only watch. A half
    that only looks can be a plain function; an `async def`, or one that returns an awaitable for some calls, makes
    them wait at its place.

    A *gate* that fails in any way denies the call. An *observer* that fails is logged and skipped: it can neither stop
    a call nor lose its outcome. `proceed` does not raise: a refusal is returned as an outcome, so that every extension
    sees every outcome. One that raises `SystemExit`, or waits longer than `wait_timeout`, has failed.
    """

    mode: ClassVar[Literal["gate", "observer"]] = "gate"
    # The place of a custom extension, 11 to 99, unless the settings name another.
    priority: int = ExtensionPriority.NORMAL
    # Seconds a custom extension may wait before or after a call; `limits.timeout` unless it names others.
    wait_timeout: float | None = None
    # True for a gate whose `call_tool` also expects a `proceed` that raises. Not inherited.
    passes_errors: ClassVar[bool] = False

    def applies_to(self, tool: Tool) -> bool:
        """Return whether it has to see calls of this tool. Asked once per tool of a catalog."""
        return True

    def hides(self, tool: Tool) -> Hides | None:
        """Return a predicate for files that the tool must neither show nor see; None hides none. Asked once per
        catalog."""
        return None

    def refuses(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Return whether a request besides tool calls, such as for a prompt, would be refused. Lists omit it."""
        return False

    def reads_arguments(self, tool: Tool) -> bool:
        """Return whether its decision depends on the arguments of this tool; those that an upstream's schema does not
        take are then refused instead of passed on."""
        return self.mode == "gate"

    def before_execute(self, call: Call) -> Awaitable[Call | None] | Call | None:
        """Called before the tool runs; raise to refuse. Returns the call to continue with, if it is another one."""
        return _return(None)

    def after_execute(self, call: Call, outcome: Outcome) -> Awaitable[object] | Outcome | None:
        """Called with the outcome, refusals included; returns the outcome for the caller, if it is another one."""
        return _return(outcome)

    def on_cancel(self, call: Call) -> Awaitable[object] | None:
        """Called in place of `after_execute` when the caller cancels the call."""
        return None

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        changed = self.before_execute(call)
        call = (changed if changed is None or isinstance(changed, Call) else await changed) or call
        outcome = await proceed(call)
        result: object = self.after_execute(call, outcome)
        result = await result if isinstance(result, Awaitable) else result
        return result if isinstance(result, Outcome) else outcome


async def _return(value: Any) -> Any:
    """Return the value, for subclasses that await the halves of `Extension`."""
    return value


class PlanStep(NamedTuple):
    """An extension's part in the calls of a tool: around them, or before and after them. `custom` is where the class
    of one that is not ours is defined."""

    name: str
    custom: str | None
    gate: bool
    around: AroundCall | None
    passes_errors: bool
    before: Before | None
    after: After | None
    on_cancel: Callable[[Call], Awaitable[object] | None] | None

    @classmethod
    def of(cls, extension: Extension) -> PlanStep:
        kind = type(extension)
        ours = kind.__module__.split(".")[0] == __name__.split(".")[0]
        step = cls(
            kind.__name__,
            None if ours else f"{kind.__module__}:{kind.__qualname__}",
            extension.mode == "gate",
            None if kind.call_tool is Extension.call_tool else extension.call_tool,
            vars(kind).get("passes_errors", False),
            None if kind.before_execute is Extension.before_execute else extension.before_execute,
            None if kind.after_execute is Extension.after_execute else extension.after_execute,
            None if kind.on_cancel is Extension.on_cancel else extension.on_cancel,
        )
        return step if ours else step._guard(ExtensionGuard(kind.__name__, extension.wait_timeout))

    def _guard(self, guard: ExtensionGuard) -> PlanStep:
        return self._replace(
            before=self.before and guard.guard(self.before),
            after=self.after and guard.guard(self.after),
            around=self.around and guard.guard_around(self.around),
            on_cancel=self.on_cancel and guard.guard(self.on_cancel),
        )

    @property
    def part(self) -> str:
        """The functions that a call passes; `async` marks those that always make it wait."""
        parts = {"around": self.around} if self.around else {"before": self.before, "after": self.after}
        return ", ".join(
            f"{name} (async)" if iscoroutinefunction(function) else name for name, function in parts.items() if function
        )


def plan(extensions: Sequence[Extension], tool: Tool) -> list[PlanStep]:
    """Return the steps of a tool's calls, outermost first. An extension whose `applies_to` fails is included."""
    steps = []
    for extension in extensions:
        try:
            concerned = extension.applies_to(tool)
        except (Exception, SystemExit):
            log.exception(
                "%s.applies_to failed for %s; the extension is applied to it", type(extension).__name__, tool.id
            )
            concerned = True
        if concerned:
            steps.append(PlanStep.of(extension))
    return steps


def stack(extensions: Sequence[Extension], run: Proceed) -> Proceed:
    """Return `run` behind the extensions; the first is the outermost."""
    return build([PlanStep.of(extension) for extension in extensions], run)


def build(steps: Sequence[PlanStep], run: Proceed) -> Proceed:
    """Return `run` behind the steps. All that are not around a call share one coroutine."""
    proceed, raises, group = run, True, list[PlanStep]()
    inner: PlanStep | None = None  # the gate whose failure `proceed` raises; None for the source
    for step in reversed(steps):
        if step.around is None:
            group.insert(0, step)
            continue
        if group or (raises and not step.passes_errors):
            proceed, group = _pass_steps(group, proceed, inner), []
        raises, inner = step.gate, None if step.passes_errors else step
        proceed = partial(step.around, proceed=proceed) if raises else _observe(step.name, step.around, proceed)
    return _pass_steps(group, proceed, inner) if group or raises else proceed


def _pass_steps(steps: Sequence[PlanStep], proceed: Proceed, inner: PlanStep | None) -> Proceed:
    befores = [step.before for step in steps if step.before is not None]
    afters = [(place, step.after) for place, step in enumerate(steps) if step.after is not None][::-1]

    async def call_tool(call: Call) -> Outcome:
        outcome: Outcome | None = None
        changes: list[tuple[int, Call]] = []  # the call as it was before a step changed it, and the place of that step
        skipped: set[int] = set()  # the places of observers that failed
        end = len(steps)  # steps from this place on are not told how the call ends
        waiting = iter(befores)
        try:
            while True:
                try:
                    for before in waiting:
                        changed = before(call)
                        if changed is not None:
                            given, call = call, (changed if isinstance(changed, Call) else await changed) or call
                            if call is not given:
                                changes.append((_place(steps, before), given))
                    break
                except Exception as error:
                    place = _place(steps, before)
                    outcome = _handle(error, call, steps[place])
                    if outcome is not None:
                        end = place
                        break
                    skipped.add(place)
                except asyncio.CancelledError:
                    end = _place(steps, before)
                    raise
            if outcome is None:
                try:
                    outcome = await proceed(call)
                except Exception as error:
                    outcome = _refuse(error, call, inner)
            parts = afters
            if skipped or end < len(steps):
                parts = [(place, after) for place, after in afters if place < end and place not in skipped]
            for place, after in parts:
                given = _as_seen(changes, place, call) if changes else call
                try:
                    result = after(given, outcome)
                    if result is None or result is outcome:
                        continue
                    if not isinstance(result, Outcome):
                        end = place
                        result = await result
                except Exception as error:
                    result = _handle(error, given, steps[place])
                if isinstance(result, Outcome):
                    outcome = result
            return outcome
        except asyncio.CancelledError:
            passed = [place for place in range(end) if place not in skipped]
            await _cancel_all([(steps[place], _as_seen(changes, place, call)) for place in reversed(passed)])
            raise

    return call_tool


def _place(steps: Sequence[PlanStep], before: Before) -> int:
    return next(place for place, step in enumerate(steps) if step.before is before)


def _as_seen(changes: Sequence[tuple[int, Call]], place: int, call: Call) -> Call:
    """Return the call as the step at this place was given it."""
    return next((given for changed_at, given in changes if changed_at >= place), call)


async def _cancel_all(steps: Sequence[tuple[PlanStep, Call]]) -> None:
    # Tasks of their own, which end even if the call is cancelled once more.
    ending = [asyncio.ensure_future(_cancel(step, given)) for step, given in steps if step.on_cancel is not None]
    if ending:
        with anyio.CancelScope(shield=True):
            await asyncio.wait(ending)


async def _cancel(step: PlanStep, call: Call) -> None:
    try:
        if step.on_cancel is not None and (waiting := step.on_cancel(call)) is not None:
            await waiting
    except Exception:
        log.exception("call %s: %s failed at the call's cancellation", call.id, step.name)


def _handle(error: Exception, call: Call, step: PlanStep) -> Outcome | None:
    """Return the outcome that a gate's exception stands for; an observer's is only logged."""
    if step.gate:
        return _refuse(error, call, step)
    log.exception("call %s: observer %s failed; the call continues", call.id, step.name)
    return None


def _refuse(error: Exception, call: Call, step: PlanStep | None) -> Outcome:
    """Return an error as an outcome. An unexpected one is logged; the outcome shows only the call's id, and the name of
    an extension that is not ours, since its author must fix it."""
    if isinstance(error, GatewayError):
        return Outcome(error=error)
    if step is None or step.custom is None:
        log.exception("call %s: %s failed unexpectedly", call.id, call.name if step is None else step.name)
        return Outcome(error=GatewayError(f"the gateway failed; its log has the reason under call {call.id}"))
    log.exception("call %s: denied, because the extension %s failed", call.id, step.custom)
    why = "failed, so the call was denied; the gateway's log has the reason under"
    denial = Unavailable(
        f"the extension {step.name} {why} call {call.id}", code="EXTENSION_FAILED", extension=step.name
    )
    return Outcome(error=denial)


def _observe(name: str, around: AroundCall, proceed: Proceed) -> Proceed:
    async def call_tool(call: Call) -> Outcome:
        outcome: Outcome | None = None

        async def proceed_once(call: Call) -> Outcome:
            nonlocal outcome
            outcome = await proceed(call)
            return outcome

        try:
            return await around(call, proceed_once)
        except Exception:
            log.exception("call %s: observer %s failed; the call continues", call.id, name)
            return outcome if outcome is not None else await proceed(call)

    return call_tool


def load_extension(settings: ExtensionSettings, wait_timeout: float | None = None) -> Extension:
    """Import an operator's extension, named `module:Class` or by its entry point, and create it with its options."""
    module, _, name = settings.use.partition(":")
    try:
        make = getattr(importlib.import_module(module), name) if name else _load_entry_point(module)
        extension = make(**settings.options)
    except (ImportError, AttributeError, TypeError) as error:
        message = f"extension {settings.use!r} cannot be loaded: {error}"
        raise Invalid(message, code="INVALID_CONFIG", extension=settings.use) from error
    return place_extension(extension, settings.use, settings.priority, wait_timeout)


def place_extension(
    extension: Any, name: str, priority: int | None = None, wait_timeout: float | None = None
) -> Extension:
    """Return a custom extension with its priority and its time limit. Refused if it is no `Extension`, or if its
    priority would place it outside the call record."""
    if not isinstance(extension, Extension):
        raise Invalid(f"extension {name!r} is not a gateway.extensions.Extension", code="INVALID_CONFIG")
    if priority is not None:
        extension.priority = priority
    if not ExtensionPriority.HIGHEST <= extension.priority <= ExtensionPriority.LOWEST:
        raise Invalid(f"extension {name!r} has the priority {extension.priority}; use 11 to 99", code="INVALID_CONFIG")
    if extension.wait_timeout is None:
        extension.wait_timeout = wait_timeout
    return extension


def _load_entry_point(name: str) -> Any:
    # Imported here: it takes a tenth of the time of a start.
    found = importlib.import_module("importlib.metadata").entry_points(group=ENTRY_POINTS)
    if name not in found.names:
        near = did_you_mean(name, found.names) or f"; there are {', '.join(sorted(found.names)) or 'none'}"
        raise ImportError(f"no installed package has the entry point {name!r} in the group {ENTRY_POINTS!r}{near}")
    return found[name].load()
