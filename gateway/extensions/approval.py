"""The approval gate: a person agrees before a dangerous call runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, Protocol

from gateway.approval.arguments import (
    CallArguments,
    ProtectedArguments,
    find_paths,
    find_protected_arguments,
    names_changed_files,
)
from gateway.approval.question import ConsentNeeded, Question, Route, arguments_digest, build_question
from gateway.approval.rules import Rule, find_hiding_rule, find_rule, matches_any, rules_for
from gateway.calls import Call
from gateway.config.settings import ApprovalRule
from gateway.errors import Forbidden
from gateway.extensions import Extension
from gateway.tools import READ_RESOURCE, Hides, Tool
from gateway.value import Value
from gateway.workspace.protected import ProtectedReason

Mode = Literal["never", "unsafe_only", "always"]

# True if somebody agreed to such a question before, for longer than one call.
IsRemembered = Callable[[Question], Awaitable[bool]]

# True if a chat works in a person's own folder.
IsAttached = Callable[[str], bool]

# The person's own folder that a chat works in, if any.
FindFolder = Callable[[str], Path | None]

# Number of tools whose policy is cached, and of paths per set of rules that may hide them.
TOOL_CACHE = 10_000
PATH_CACHE = 262_144


class Preview(Protocol):
    """Describes the effect of a call on files."""

    async def changes(self, call: Call) -> str | None:
        """Return a short description for a person; None if the effect is unknown."""
        ...

    async def overwrites(self, call: Call, paths: Sequence[str]) -> bool:
        """Return whether a file exists under one of these paths."""
        ...

    async def find_protected_inside(self, call: Call, paths: Sequence[str]) -> Sequence[str]:
        """Return the protected files in those of these paths that are directories, and the paths that are hooks."""
        ...


class _ConsentRequest(Value):
    """The reason to ask a person, the key under which the answer is remembered, and where it may be given."""

    reason: str
    grounds: str
    route: Route = "ask"
    remember: bool = True


class _ToolPolicy(Value):
    """All that is known of a tool before it is called."""

    tool: Tool
    rules: tuple[Rule, ...]
    out_of_band: bool
    names_files: bool
    harmless: bool


class Approval(Extension):
    """Raises `ConsentNeeded` if a person must agree; it never waits for one.

    The first rule that matches the call decides, else the mode and the tool. Unless that allows the call without
    asking, protected files in a person's own folder are asked about each time; an approved call carries their paths as
    `approved_paths`. A consent that comes with the call counts for the very question that was shown or, if the person
    edited the arguments, for the same reason. A call that passes because somebody agreed, or because the operator asks
    nobody, is marked `confirmed`. A harmless call is not, so the tool still refuses anything else.

    Resources and prompts are chosen by a person or a program, not called by a model: only rules apply to them, and
    what a rule would ask about is refused.
    """

    def __init__(
        self,
        mode: Mode,
        rules: Sequence[ApprovalRule] = (),
        *,
        out_of_band: Sequence[str] = (),
        is_remembered: IsRemembered | None = None,
        preview: Preview | None = None,
        is_attached: IsAttached | None = None,
        find_folder: FindFolder = lambda _chat: None,
    ) -> None:
        self._mode = mode
        self._rules = [Rule(settings, number) for number, settings in enumerate(rules, 1)]
        self._out_of_band = out_of_band
        self._is_remembered = is_remembered
        self._preview = preview
        self._is_attached = is_attached
        self._find_folder = find_folder
        self._policies: dict[str, _ToolPolicy] = {}
        self._hides: dict[frozenset[tuple[Rule, ...]], Hides] = {}

    def applies_to(self, tool: Tool) -> bool:
        policy = self._load_policy(tool)
        return policy.names_files or not policy.harmless

    def hides(self, tool: Tool) -> Hides | None:
        """Hide files that a rule by path denies to `read_file` or to the tool itself, or would ask about."""
        choices = {rules_for(READ_RESOURCE, self._rules), rules_for(tool, self._rules)}
        hiding = frozenset(rules for rules in choices if any(rule.hides_paths for rule in rules))
        if hiding and hiding not in self._hides:
            self._hides[hiding] = lru_cache(PATH_CACHE)(partial(find_hiding_rule, hiding))
        return self._hides.get(hiding)

    def refuses(self, tool: Tool, arguments: Mapping[str, Any]) -> bool:
        """Return whether a rule denies, or would ask about, a request that is not a tool call."""
        rule = find_rule(rules_for(tool, self._rules), tool, arguments) if self._rules else None
        return rule is not None and rule.settings.then != "allow"

    def reads_arguments(self, tool: Tool) -> bool:
        """Return whether a rule depends on named arguments. Other rules read every text, whatever the schema says."""
        return any(rule.settings.when.arguments for rule in rules_for(tool, self._rules))

    def before_execute(self, call: Call) -> Awaitable[Call | None] | Call | None:
        tool = call.target
        policy = self._policies.get(tool.id)
        if policy is None or policy.tool is not tool:
            policy = self._load_policy(tool)
        may_protect = policy.names_files and self._is_attached is not None and self._is_attached(call.chat)
        if may_protect or policy.rules or (self._mode != "never" and not policy.harmless and not call.confirmed):
            return self._ask_if_needed(policy, call, may_protect)
        return None if policy.harmless or call.confirmed else call.replace(confirmed=True)

    async def _ask_if_needed(self, policy: _ToolPolicy, call: Call, may_protect: bool) -> Call | None:
        request = await self._decide(policy, call)
        protected: ProtectedArguments | None = None
        if may_protect and (call.confirmed or request is not True):
            inside = self._preview.find_protected_inside if self._preview else None
            protected = await find_protected_arguments(call, inside)
        if protected is not None and not call.confirmed:
            request = _add_protected(request, protected, policy.out_of_band)
        if isinstance(request, _ConsentRequest) and not call.confirmed:
            await self._require_consent(call, request, await self._preview.changes(call) if self._preview else None)
        if not request:
            return None
        agreed = await find_paths(call) if isinstance(request, _ConsentRequest) else frozenset[str]()
        approved = protected.paths if protected else ()
        return call.replace(confirmed=True, agreed=agreed, approved_paths=approved)

    async def require_consent(self, call: Call, reason: str, changes: str) -> None:
        """Raise `ConsentNeeded` unless somebody agreed to these very changes, or to such changes for longer."""
        out_of_band = self._load_policy(call.target).out_of_band
        await self._require_consent(call, _build_request(reason, "changes", out_of_band), changes)

    def _load_policy(self, tool: Tool) -> _ToolPolicy:
        rules = rules_for(tool, self._rules)
        names_files = self._is_attached is not None and names_changed_files(tool)
        asked_by_mode = self._mode != "unsafe_only" and tool.is_tool
        harmless = not rules and not asked_by_mode and tool.requires_confirmation is False
        if len(self._policies) >= TOOL_CACHE:
            self._policies.clear()
        out_of_band = any(matches_any(tool_id, self._out_of_band) for tool_id in tool.ids)
        policy = self._policies[tool.id] = _ToolPolicy(tool, rules, out_of_band, names_files, harmless)
        return policy

    async def _decide(self, policy: _ToolPolicy, call: Call) -> _ConsentRequest | bool:
        """Return a request if a person must agree, True if the operator already has, by a rule or the mode, and False
        if nobody needs to."""
        arguments = CallArguments(call, self._preview.overwrites if self._preview else None)
        for rule in policy.rules:
            match = await rule.match(arguments)
            if match is None:
                continue
            settings = rule.settings
            if settings.then == "allow":
                return True
            if settings.then == "deny":
                raise Forbidden(
                    f"{call.target.id}: {settings.why or 'the operator does not allow this'} ({match})",
                    code="DENIED_BY_RULE",
                )
            reason = f"{settings.why} ({match})" if settings.why else f"{call.target.id} needs consent by {match}"
            out_of_band = policy.out_of_band or settings.then == "queue"
            return _build_request(reason, rule.grounds, out_of_band, settings.remember)
        if self._mode == "never" or call.confirmed or not call.target.is_tool:
            return True
        own_reason = await _own_reason(call, policy.rules)
        if isinstance(own_reason, ProtectedReason):
            return _build_request(own_reason, "obeyed: tool", policy.out_of_band, remember=False)
        if own_reason is not None:
            return _build_request(own_reason, "tool", policy.out_of_band)
        if self._mode == "always":
            reason = f"{call.target.id} asks first, as every tool does (approval.mode)"
            return _build_request(reason, "mode", policy.out_of_band)
        return False

    async def _require_consent(self, call: Call, request: _ConsentRequest, changes: str | None) -> None:
        if not call.target.is_tool:
            raise _cannot_ask_error(call, request.reason)
        question = build_question(
            call,
            request.reason,
            request.grounds,
            route=request.route,
            changes=changes,
            remember=request.remember,
            folder=self._find_folder(call.chat),
        )
        if _has_consent(call, question):
            return
        if request.remember and self._is_remembered is not None and await self._is_remembered(question):
            return
        raise ConsentNeeded(question, by_program=call.caller.surface == "library")


async def _own_reason(call: Call, rules: Sequence[Rule]) -> str | None:
    """Return why the tool itself asks where none of its `rules` decides, None if it does not."""
    needed = call.target.requires_confirmation
    if callable(needed):
        return await needed(call)
    if not needed:
        return None
    is_spared = any(rule.settings.then == "allow" for rule in rules)
    return f"{call.target.id} {'asks first unless a rule allows the call' if is_spared else 'always asks first'}"


# The grounds are stored with each approval and are the keys of remembered answers: their text must not change.


def _build_request(reason: str, grounds: str, out_of_band: bool, remember: bool = True) -> _ConsentRequest:
    if out_of_band:  # other grounds, so that an answer given in the client is not remembered for the queue
        return _ConsentRequest(reason, f"queue: {grounds}", "queue", remember)
    return _ConsentRequest(reason, grounds, "ask", remember)


def _add_protected(
    request: _ConsentRequest | bool, protected: ProtectedArguments, out_of_band: bool
) -> _ConsentRequest:
    """Add the protected files to the reasons to ask. Consent to change them is never remembered."""
    if isinstance(request, _ConsentRequest):
        reason, grounds = f"{request.reason}; {protected.reason}", f"obeyed: {request.grounds}"
        return replace(request, reason=reason, grounds=grounds, remember=False)
    return _build_request(protected.reason, "obeyed", out_of_band, remember=False)


def _cannot_ask_error(call: Call, reason: str) -> Forbidden:
    tool = call.target
    advice = f"; call the tool {tool.id!r} instead" if tool.owner is None else ""
    return Forbidden(
        f"{reason}, but {call.name} cannot ask for consent{advice}", code="CONFIRMATION_REQUIRED", reason=reason
    )


def _has_consent(call: Call, question: Question) -> bool:
    """Return whether the consent that comes with the call is for this question and these arguments."""
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
