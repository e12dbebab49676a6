"""Approval: a person agrees before a dangerous call runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, Protocol

from gateway.calls import Call, Outcome, Proceed
from gateway.config.settings import ApprovalRule
from gateway.errors import Forbidden
from gateway.extensions import Extension
from gateway.extensions.approval.arguments import Look, named_paths
from gateway.extensions.approval.protected_files import Touched, may_touch, protected_in
from gateway.extensions.approval.question import (
    Answer,
    Approver,
    ConsentNeeded,
    Question,
    Route,
    arguments_digest,
    question_of,
    tool_digest,
)
from gateway.extensions.approval.rules import Rule, deciding, fits, hidden, rules_for
from gateway.tools import READ_RESOURCE, Hides, Tool

__all__ = ["Answer", "Approval", "Approver", "ConsentNeeded", "Mode", "Preview", "Question", "tool_digest"]

Mode = Literal["never", "unsafe_only", "always"]

# Whether somebody agreed to such a question before, for longer than one call.
Remembered = Callable[[Question], Awaitable[bool]]

# Whether a chat works in a person's own folder.
Attached = Callable[[str], bool]

TOOLS = 10_000
# Paths of which it is remembered whether a rule hides them.
PATHS = 262_144


class Preview(Protocol):
    """What a call would do to files."""

    async def changes(self, call: Call) -> str | None:
        """A short account for a person; None where nothing can be said."""
        ...

    async def overwrites(self, call: Call, paths: Sequence[str]) -> bool:
        """Whether a file is there under one of these paths."""
        ...

    async def protected_inside(self, call: Call, paths: Sequence[str]) -> Sequence[str]:
        """The protected files in those of these paths that are directories."""
        ...


@dataclass(frozen=True)
class _Ground:
    """Why a person is asked, what is remembered of the answer, and where it may be given."""

    reason: str
    key: str
    route: Route = "ask"
    remember: bool = True


@dataclass(frozen=True)
class _Judge:
    """What is known of a tool before it is called."""

    tool: Tool
    rules: tuple[Rule, ...]
    out_of_band: bool
    guarded: bool
    harmless: bool


class Approval(Extension):
    """Raises `ConsentNeeded` where a person must agree; it never waits for one.

    The first rule that speaks of the call decides, else the mode and the tool. Unless that lets it through unasked, a
    file in a person's own folder which other programs obey is asked for each time; a call that somebody agreed to
    carries the paths of such files as `approved_paths`. A consent that travels with the call
    counts for the very question that was shown, or, where the person changed the arguments, for the same reason to
    ask. A call that passes because it was agreed to (or because the operator asks nobody) is marked `confirmed`;
    one that passes because it is harmless is not, so the tool can hold it to that.

    Of resources and prompts, which a person or a program picks and no model calls, only the rules speak, and what
    they would ask about is refused.
    """

    def __init__(
        self,
        mode: Mode,
        rules: Sequence[ApprovalRule] = (),
        *,
        out_of_band: Sequence[str] = (),
        remembered: Remembered | None = None,
        preview: Preview | None = None,
        attached: Attached | None = None,
    ) -> None:
        self._mode = mode
        self._rules = [Rule(said, number) for number, said in enumerate(rules, 1)]
        self._out_of_band = out_of_band
        self._remembered = remembered
        self._preview = preview
        self._attached = attached
        self._judges: dict[str, _Judge] = {}
        self._hidden: dict[frozenset[tuple[Rule, ...]], Hides] = {}

    def concerns(self, tool: Tool) -> bool:
        judge = self._learn(tool)
        return judge.guarded or not judge.harmless

    def hides(self, tool: Tool) -> Hides | None:
        """Leave out what a rule by path denies to `read_file` or to the tool itself, or would ask about."""
        rules = {rules_for(each, self._rules) for each in (READ_RESOURCE, tool)}
        found = frozenset(each for each in rules if any(rule.hides_paths for rule in each))
        if found and found not in self._hidden:
            self._hidden[found] = lru_cache(PATHS)(partial(hidden, found))
        return self._hidden.get(found)

    def refuses(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Refuse requests besides tools that a rule denies, or would ask about."""
        rule = deciding(rules_for(tool, self._rules), tool, arguments) if self._rules else None
        return rule is not None and rule.said.then != "allow"

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        tool = call.target
        judge = self._judges.get(tool.id)
        if judge is None or judge.tool is not tool:
            judge = self._learn(tool)
        guarded = judge.guarded and self._attached is not None and self._attached(call.chat)
        if not guarded and (judge.harmless or (call.confirmed and not judge.rules)):
            return await proceed(call)
        ground = await self._ground(judge, call)
        inside = self._preview.protected_inside if self._preview else None
        touched = await protected_in(call, inside) if guarded and (call.confirmed or ground is not True) else None
        if touched is not None and not call.confirmed:
            ground = _protecting(ground, touched, judge.out_of_band)
        if isinstance(ground, _Ground) and not call.confirmed:
            await self._require_consent(call, ground, await self._preview.changes(call) if self._preview else None)
        if not ground:
            return await proceed(call)
        agreed = await named_paths(call) if isinstance(ground, _Ground) else frozenset[str]()
        approved = touched.paths if touched else ()
        return await proceed(replace(call, confirmed=True, agreed=agreed, approved_paths=approved))

    async def require_consent(self, call: Call, reason: str, changes: str) -> None:
        """Raise `ConsentNeeded` unless somebody agreed to these very changes, or to such ones for longer."""
        await self._require_consent(call, _ground(reason, "changes", self._learn(call.target).out_of_band), changes)

    def _learn(self, tool: Tool) -> _Judge:
        rules = rules_for(tool, self._rules)
        guarded = self._attached is not None and may_touch(tool)
        asked_by_mode = self._mode != "unsafe_only" and tool.is_tool
        harmless = not rules and not asked_by_mode and tool.requires_confirmation is False
        if len(self._judges) >= TOOLS:
            self._judges.clear()
        judge = self._judges[tool.id] = _Judge(tool, rules, fits(tool.id, self._out_of_band), guarded, harmless)
        return judge

    async def _ground(self, judge: _Judge, call: Call) -> _Ground | bool:
        """Why a person must agree; where nobody must, whether somebody has: the operator, in a rule or by the mode."""
        look = Look(call, self._preview.overwrites if self._preview else None)
        for rule in judge.rules:
            found = await rule.found(look)
            if found is None:
                continue
            said = rule.said
            if said.then == "allow":
                return True
            why = f"{said.why} ({found})" if said.why else f"{call.target.id} is asked for by {found}"
            if said.then == "deny":
                raise Forbidden(
                    f"{call.target.id}: {said.why or 'the operator does not allow this'} ({found})",
                    code="DENIED_BY_RULE",
                )
            return _ground(why, rule.grounds, judge.out_of_band or said.then == "queue", said.remember)
        if self._mode == "never" or call.confirmed or not call.target.is_tool:
            return True
        reason = await self._own_reason(call)
        if reason is not None:
            return _ground(reason, "tool", judge.out_of_band)
        if self._mode == "always":
            return _ground(
                f"{call.target.id} asks first, as every tool does (approval.mode)", "mode", judge.out_of_band
            )
        return False

    async def _own_reason(self, call: Call) -> str | None:
        rule = call.target.requires_confirmation
        if callable(rule):
            return await rule(call)
        return f"{call.target.id} always asks first" if rule else None

    async def _require_consent(self, call: Call, ground: _Ground, changes: str | None) -> None:
        if not call.target.is_tool:
            raise _unasked(call, ground.reason)
        question = question_of(
            call, ground.reason, ground.key, route=ground.route, changes=changes, remember=ground.remember
        )
        if _agreed(call, question):
            return
        if ground.remember and self._remembered is not None and await self._remembered(question):
            return
        raise ConsentNeeded(question)


def _ground(reason: str, key: str, out_of_band: bool, remember: bool = True) -> _Ground:
    # What a client's own person agreed to counts for nothing where only the queue does.
    return _Ground(reason, f"queue: {key}" if out_of_band else key, "queue" if out_of_band else "ask", remember)


def _protecting(ground: _Ground | bool, touched: Touched, out_of_band: bool) -> _Ground:
    """The ground with what the call touches that other programs obey: that is agreed to once only."""
    if isinstance(ground, _Ground):
        reason, key = f"{ground.reason}; {touched.reason}", f"obeyed: {ground.key}"
        return replace(ground, reason=reason, key=key, remember=False)
    return _ground(touched.reason, "obeyed", out_of_band, remember=False)


def _unasked(call: Call, reason: str) -> Forbidden:
    tool = call.target
    advice = f"; call the tool {tool.id!r} instead" if tool.owner is None else ""
    return Forbidden(
        f"{reason}, but nobody can be asked about {call.name}{advice}", code="CONFIRMATION_REQUIRED", reason=reason
    )


def _agreed(call: Call, question: Question) -> bool:
    consent = call.consent
    if consent is None or consent.subject != question.subject:
        return False
    if question.route == "queue" and consent.via == "elicitation":
        return False
    if consent.arguments != arguments_digest(call.arguments):
        return False
    if consent.original is None:
        return consent.question == question.digest
    return consent.reason == question.reason
