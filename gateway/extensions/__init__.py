"""What stands between a caller and a tool: extensions, outermost first."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from gateway.calls import Call, Outcome, Proceed
from gateway.config import ExtensionSettings
from gateway.errors import GatewayError, Invalid
from gateway.tools import Hides, Tool

log = logging.getLogger(__name__)


class Extension:
    """Override `call_tool` to stand around a call, or the two halves for the simple cases.

    It may refuse (raise a `GatewayError`), change the call (`proceed(call.with_arguments(...))`),
    answer in the tool's place (return without proceeding), or only watch.

    A *gate* that fails in any way denies the call. An *observer* that fails is logged and passed
    by: it can neither stop a call nor lose its outcome. `proceed` never raises what is inside it:
    a refusal comes back as an outcome, so that every extension sees every outcome.
    """

    mode: ClassVar[Literal["gate", "observer"]] = "gate"
    # Says of an observer that it sees to its own failures, so that nobody need stand around it, and calls the way on
    # `proceed`, as here. It says nothing of those derived from it.
    contained: ClassVar[bool] = False

    def concerns(self, tool: Tool) -> bool:
        """Whether it has anything to do with calls of this tool. Asked once for each tool of a catalog; calls of a
        tool it does not concern pass it by."""
        return True

    def hides(self, tool: Tool) -> Hides | None:
        """A predicate for files to leave out of what a tool returns or sees; None leaves out none. Asked once per
        catalog."""
        return None

    def refuses(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """True if a request besides tools would be refused, such as getting a prompt; lists leave it out."""
        return False

    async def before_execute(self, call: Call) -> None:
        """Called before the tool runs; raise to refuse."""

    async def after_execute(self, call: Call, outcome: Outcome) -> Outcome:
        """Called with what came of it, refusals included; returns what the caller shall see."""
        return outcome

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        await self.before_execute(call)
        return await self.after_execute(call, await proceed(call))


def stack(extensions: Sequence[Extension], run: Proceed) -> Proceed:
    """`run`, with each extension around it; the first stands outermost."""
    road = settled(run)
    checks: list[Extension] = []
    guard: Extension | None = None
    for extension in reversed(extensions):
        if extension.mode == "gate" and type(extension).call_tool is Extension.call_tool:
            checks.insert(0, extension)
            continue
        road, checks, guard = _gates(checks, guard, road), [], None
        if extension.mode == "gate":
            guard = extension
        else:
            contained = vars(type(extension)).get("contained", False)
            road = partial(extension.call_tool, proceed=road) if contained else _observing(extension, road)
    return _gates(checks, guard, road)


def concerning(extensions: Sequence[Extension], tool: Tool) -> list[Extension]:
    """Those of the extensions that have to do with a tool; one that cannot say has."""
    chosen = []
    for extension in extensions:
        try:
            concerned = extension.concerns(tool)
        except Exception:
            log.exception("%s cannot say whether %s concerns it", type(extension).__name__, tool.id)
            concerned = True
        if concerned:
            chosen.append(extension)
    return chosen


def settled(run: Proceed) -> Proceed:
    """`run`, with a refusal or a bug it raises turned into an outcome."""

    async def call_tool(call: Call) -> Outcome:
        try:
            return await run(call)
        except GatewayError as refusal:
            return Outcome(error=refusal)
        except Exception:
            return bug(call, call.name)

    return call_tool


def bug(call: Call, where: str) -> Outcome:
    """The one place an unexpected exception is told: to the log whole, to the caller by the call's id."""
    log.exception("call %s: %s failed unexpectedly", call.id, where)
    return Outcome(error=GatewayError(f"the gateway failed; its log has the reason under call {call.id}"))


def _gates(checks: Sequence[Extension], guard: Extension | None, road: Proceed) -> Proceed:
    """The road behind gates: those that only look at a call, each in turn, and within them one that stands around it.
    They are in every call's way, so all of them share one frame."""
    if not checks and guard is None:
        return road
    places = [
        (gate, _has(gate, Extension.before_execute), _has(gate, Extension.after_execute), type(gate).__name__)
        for gate in checks
    ]
    within = "an observer" if guard is None else type(guard).__name__

    async def call_tool(call: Call) -> Outcome:
        outcome, passed = None, []
        for place in places:
            gate, looks_before, looks_after, name = place
            if looks_before:
                try:
                    await gate.before_execute(call)
                except GatewayError as refusal:
                    outcome = Outcome(error=refusal)
                    break
                except Exception:
                    outcome = bug(call, name)
                    break
            if looks_after:
                passed.append(place)
        if outcome is None:
            try:
                outcome = await (road(call) if guard is None else guard.call_tool(call, road))
            except GatewayError as refusal:
                outcome = Outcome(error=refusal)
            except Exception:
                outcome = bug(call, within)
        for gate, _, _, name in reversed(passed):
            try:
                outcome = await gate.after_execute(call, outcome)
            except GatewayError as refusal:
                outcome = Outcome(error=refusal)
            except Exception:
                outcome = bug(call, name)
        return outcome

    return call_tool


def _has(extension: Extension, half: Any) -> bool:
    """Whether the extension has its own way of one of the two halves."""
    return getattr(type(extension), half.__name__) is not half


def _observing(extension: Extension, road: Proceed) -> Proceed:
    async def call_tool(call: Call) -> Outcome:
        seen: Outcome | None = None

        async def proceed(call: Call) -> Outcome:
            nonlocal seen
            seen = await road(call)
            return seen

        try:
            return await extension.call_tool(call, proceed)
        except Exception:
            log.exception("call %s: observer %s failed; the call goes on", call.id, type(extension).__name__)
            return seen if seen is not None else await road(call)

    return call_tool


def load_extension(custom: ExtensionSettings) -> Extension:
    """The extension `module:Class` names, made with its options."""
    module_name, _, class_name = custom.use.partition(":")
    try:
        extension = getattr(importlib.import_module(module_name), class_name)(**custom.options)
    except (ImportError, AttributeError, TypeError) as error:
        raise Invalid(f"extension {custom.use!r} cannot be loaded: {error}", code="INVALID_CONFIG") from error
    if not isinstance(extension, Extension):
        raise Invalid(f"extension {custom.use!r} is no gateway.extensions.Extension", code="INVALID_CONFIG")
    return extension
