"""Extensions: gates and observers between a caller and a tool, composed to one callable, outermost first."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from gateway.calls import Call, Outcome, Proceed
from gateway.config import ExtensionPriority as ExtensionPriority
from gateway.config import ExtensionSettings
from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.names import did_you_mean
from gateway.tools import Hides, Tool

log = logging.getLogger(__name__)

# Packages offer extensions in this group of entry points.
ENTRY_POINTS = "toolgate.extensions"


class Extension:
    """Override `before_execute` and `after_execute`, or `call_tool` to wrap the whole call.

    An extension may refuse a call (raise a `GatewayError`), change it (`proceed(call.with_arguments(...))`), return an
    outcome without proceeding, or only watch.

    A *gate* that fails in any way denies the call. An *observer* that fails is logged and skipped: it can neither stop
    a call nor lose its outcome. `proceed` does not raise: a refusal is returned as an outcome, so that every extension
    sees every outcome.
    """

    mode: ClassVar[Literal["gate", "observer"]] = "gate"
    # The place of a custom extension, 11 to 99, unless the settings name another.
    priority: int = ExtensionPriority.NORMAL
    # True for an observer that handles its own failures and names the parameter `proceed`, so that it needs no wrapper.
    # Not inherited.
    contained: ClassVar[bool] = False

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

    async def before_execute(self, call: Call) -> Call | None:
        """Called before the tool runs; raise to refuse, return a call to go on with that one."""
        return None

    async def after_execute(self, call: Call, outcome: Outcome) -> Outcome:
        """Called with the outcome, refusals included; returns the outcome for the caller."""
        return outcome

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        call = await self.before_execute(call) or call
        return await self.after_execute(call, await proceed(call))


def stack(extensions: Sequence[Extension], run: Proceed) -> Proceed:
    """Return `run` wrapped in the extensions; the first is the outermost."""
    proceed = catch_errors(run)
    checks: list[Extension] = []
    wrapper: Extension | None = None
    for extension in reversed(extensions):
        if extension.mode == "gate" and type(extension).call_tool is Extension.call_tool:
            checks.insert(0, extension)
            continue
        proceed, checks, wrapper = _run_gates(checks, wrapper, proceed), [], None
        if extension.mode == "gate":
            wrapper = extension
        else:
            contained = vars(type(extension)).get("contained", False)
            proceed = partial(extension.call_tool, proceed=proceed) if contained else _observe(extension, proceed)
    return _run_gates(checks, wrapper, proceed)


def applicable(extensions: Sequence[Extension], tool: Tool) -> list[Extension]:
    """Return the extensions that have to see calls of a tool; one that fails to tell is included."""
    chosen = []
    for extension in extensions:
        try:
            concerned = extension.applies_to(tool)
        except Exception:
            log.exception("%s cannot tell whether it applies to %s, so it does", type(extension).__name__, tool.id)
            concerned = True
        if concerned:
            chosen.append(extension)
    return chosen


def catch_errors(run: Proceed) -> Proceed:
    """Return `run` with the errors it raises turned into outcomes."""

    async def call_tool(call: Call) -> Outcome:
        try:
            return await run(call)
        except GatewayError as refusal:
            return Outcome(error=refusal)
        except Exception:
            return internal_error(call, call.name)

    return call_tool


def _gate_error(call: Call, gate: Extension) -> Outcome:
    """Return the denial of a gate that failed. One that is not ours is named, since its author must mend it."""
    kind = type(gate)
    if kind.__module__.split(".")[0] == __name__.split(".")[0]:
        return internal_error(call, kind.__name__)
    log.exception("call %s: denied, because the extension %s:%s failed", call.id, kind.__module__, kind.__qualname__)
    return Outcome(
        error=Unavailable(
            f"the extension {kind.__name__} failed, so the call was denied; the gateway's log has the reason under "
            f"call {call.id}",
            code="EXTENSION_FAILED",
            extension=kind.__name__,
        )
    )


def internal_error(call: Call, where: str) -> Outcome:
    """Log an unexpected exception with its traceback; return an error that shows only the call's id."""
    log.exception("call %s: %s failed unexpectedly", call.id, where)
    return Outcome(error=GatewayError(f"the gateway failed; its log has the reason under call {call.id}"))


def _run_gates(checks: Sequence[Extension], wrapper: Extension | None, proceed: Proceed) -> Proceed:
    """Return `proceed` behind gates: `checks`, which only override the two halves, around one that wraps the call.
    Every call passes them, so all share one coroutine."""
    if not checks and wrapper is None:
        return proceed
    steps = [
        (gate, _overrides(gate, Extension.before_execute), _overrides(gate, Extension.after_execute)) for gate in checks
    ]

    async def call_tool(call: Call) -> Outcome:
        outcome, passed = None, []
        for gate, has_before, has_after in steps:
            if has_before:
                try:
                    changed = await gate.before_execute(call)
                    if changed is not None:
                        call = changed
                except GatewayError as refusal:
                    outcome = Outcome(error=refusal)
                    break
                except Exception:
                    outcome = _gate_error(call, gate)
                    break
            if has_after:
                passed.append(gate)
        if outcome is None:
            try:
                outcome = await (proceed(call) if wrapper is None else wrapper.call_tool(call, proceed))
            except GatewayError as refusal:
                outcome = Outcome(error=refusal)
            except Exception:
                outcome = internal_error(call, "an observer") if wrapper is None else _gate_error(call, wrapper)
        for gate in reversed(passed):
            try:
                outcome = await gate.after_execute(call, outcome)
            except GatewayError as refusal:
                outcome = Outcome(error=refusal)
            except Exception:
                outcome = _gate_error(call, gate)
        return outcome

    return call_tool


def _overrides(extension: Extension, half: Any) -> bool:
    return getattr(type(extension), half.__name__) is not half


def _observe(extension: Extension, proceed: Proceed) -> Proceed:
    async def call_tool(call: Call) -> Outcome:
        outcome: Outcome | None = None

        async def proceed_once(call: Call) -> Outcome:
            nonlocal outcome
            outcome = await proceed(call)
            return outcome

        try:
            return await extension.call_tool(call, proceed_once)
        except Exception:
            log.exception("call %s: observer %s failed; the call continues", call.id, type(extension).__name__)
            return outcome if outcome is not None else await proceed(call)

    return call_tool


def load_extension(settings: ExtensionSettings) -> Extension:
    """Import an operator's extension, named `module:Class` or by its entry point, and create it with its options."""
    module, _, name = settings.use.partition(":")
    try:
        make = getattr(importlib.import_module(module), name) if name else _load_entry_point(module)
        extension = make(**settings.options)
    except (ImportError, AttributeError, TypeError) as error:
        raise Invalid(f"extension {settings.use!r} cannot be loaded: {error}", code="INVALID_CONFIG") from error
    return place_extension(extension, settings.use, settings.priority)


def place_extension(extension: Any, name: str, priority: int | None = None) -> Extension:
    """Return a custom extension with its priority; refused when it is none, or would stand outside the record."""
    if not isinstance(extension, Extension):
        raise Invalid(f"extension {name!r} is not a gateway.extensions.Extension", code="INVALID_CONFIG")
    if priority is not None:
        extension.priority = priority
    if not ExtensionPriority.HIGHEST <= extension.priority <= ExtensionPriority.LOWEST:
        raise Invalid(f"extension {name!r} has the priority {extension.priority}; use 11 to 99", code="INVALID_CONFIG")
    return extension


def _load_entry_point(name: str) -> Any:
    # Imported here: it takes a tenth of the time of a start.
    found = importlib.import_module("importlib.metadata").entry_points(group=ENTRY_POINTS)
    if name not in found.names:
        near = did_you_mean(name, found.names) or f"; there are {', '.join(sorted(found.names)) or 'none'}"
        raise ImportError(f"no installed package has the entry point {name!r} in the group {ENTRY_POINTS!r}{near}")
    return found[name].load()
