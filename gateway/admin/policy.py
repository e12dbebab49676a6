"""Policy rehearsal: what changed rules, roles or categories would have decided about recorded calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson
from pydantic import ValidationError

from gateway.calls import LOCAL, Call, Caller
from gateway.config import RoleSettings, Settings
from gateway.config.loader import read_document
from gateway.config.settings import ApprovalRule, ApprovalSettings, CategorySettings, Patterns, Section
from gateway.document import validation_error
from gateway.errors import Forbidden, InputRequired
from gateway.executor import Executor
from gateway.identity.roles import Roles
from gateway.secrets import KNOWN

if TYPE_CHECKING:
    from gateway.db.call_records import CallRecord
    from gateway.gateway import Gateway

Decision = Literal["allow", "ask", "deny"]

DAYS = 7.0
CALL_LIMIT = 10_000
GROUP_LIMIT = 1000
_PAGE = 1000


class PolicyChanges(Section):
    """Settings to rehearse; what is not given stays. `rules`, `mode` and `out_of_band` are those of `approval`. `roles`
    and `categories` are the whole of these sections."""

    rules: list[ApprovalRule] | None = None
    mode: Literal["never", "unsafe_only", "always"] | None = None
    out_of_band: Patterns | None = None
    approval: ApprovalSettings | None = None
    roles: dict[str, RoleSettings] | None = None
    categories: dict[str, CategorySettings] | None = None

    def apply(self, settings: Settings) -> Settings:
        """Return the settings with these changes."""
        given = {} if self.approval is None else _explicit_fields(self.approval, *self.approval.model_fields_set)
        approval = settings.approval.model_copy(update=given | _explicit_fields(self, "rules", "mode", "out_of_band"))
        return settings.model_copy(update={"approval": approval} | _explicit_fields(self, "roles", "categories"))


def _explicit_fields(section: Section, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(section, name)) is not None}


class PolicyDecision(NamedTuple):
    """A decision about one call, and why."""

    decision: Decision
    reason: str


@dataclass
class ChangedCalls:
    """Calls of one principal and tool that would be decided differently, with the latest of them as an example."""

    before: Decision
    after: Decision
    tool: str
    principal: str
    call: str
    reason: str
    calls: int = 1


@dataclass
class Rehearsal:
    """The result: how the calls are decided now and would be then. `cut_off` calls were too large to be recorded whole,
    tools of `gone` ones are no longer there; neither is counted. The roles of `unknown` principals are not known."""

    calls: int = 0
    cut_off: int = 0
    gone: int = 0
    now: Counter[str] = field(default_factory=Counter)
    then: Counter[str] = field(default_factory=Counter)
    changes: dict[tuple[str, ...], ChangedCalls] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def add(self, record: CallRecord, now: PolicyDecision, then: PolicyDecision) -> None:
        self.calls += 1
        self.now[now.decision] += 1
        self.then[then.decision] += 1
        key = (now.decision, then.decision, record.tool_id, record.principal)
        if now.decision == then.decision:
            return
        if key in self.changes:
            self.changes[key].calls += 1
        elif len(self.changes) < GROUP_LIMIT:
            self.changes[key] = ChangedCalls(*key, record.id, KNOWN.mask(then.reason or now.reason))

    def to_dict(self) -> dict[str, Any]:
        changes = sorted(self.changes.values(), key=lambda change: -change.calls)
        return {
            "calls": self.calls,
            "skipped": {"cut_off": self.cut_off, "gone": self.gone},
            "now": {name: self.now[name] for name in ("allow", "ask", "deny")},
            "then": {name: self.then[name] for name in ("allow", "ask", "deny")},
            "changes": [vars(change) for change in changes],
            "unknown_roles": sorted(self.unknown)[:GROUP_LIMIT],
        }


def read_changes(path: Path) -> PolicyChanges:
    """Read changes from a YAML file; `Invalid` names the line of a mistake."""
    document = read_document(path)
    try:
        return PolicyChanges.model_validate(document.value)
    except ValidationError as error:
        raise validation_error(document, PolicyChanges, error) from None


async def simulate(
    gateway: Gateway, changes: PolicyChanges, days: float = DAYS, limit: int = CALL_LIMIT
) -> dict[str, Any]:
    """Decide about the latest calls of the last days under the settings as they are and as they would be, by the
    executor and the gates that every call passes. Nothing runs, and nobody is asked. Files are looked at as they are
    now."""
    roles = {key.name: (key.role, key.profile) for key in await gateway.api_keys.list()}
    result = Rehearsal()
    deciders = [
        _Decider(await gateway.make_policy_executor(settings), Roles(settings.roles, settings.profiles), roles)
        for settings in (gateway.settings, changes.apply(gateway.settings))
    ]
    async for record in _read_calls(gateway, days, limit):
        arguments = orjson.loads(record.args) if record.args is not None else {}
        if record.args is None or (arguments.get("truncated") is True and "sha256" in arguments):
            result.cut_off += 1
            continue
        verdicts = [await decider.decide(record, arguments) for decider in deciders]
        if None in verdicts:
            result.gone += 1
            continue
        if record.principal != LOCAL and record.principal not in roles:
            result.unknown.add(record.principal)
        result.add(record, *[verdict for verdict in verdicts if verdict is not None])
        if result.calls % 100 == 0:
            await asyncio.sleep(0)
    return result.to_dict()


async def _read_calls(gateway: Gateway, days: float, limit: int) -> AsyncIterator[CallRecord]:
    since, before, left = time.time() - days * 86400, None, limit
    while left > 0:
        page = await gateway.records.list_calls(since=since, before=before, limit=min(left, _PAGE), kind="tools")
        for record in page:
            yield record
        if len(page) < min(left, _PAGE):
            return
        before, left = page[-1].id, left - len(page)


class _Decider:
    """Decides about recorded calls under one set of settings."""

    def __init__(self, executor: Executor, roles: Roles, role_of: dict[str, tuple[str, str | None]]) -> None:
        self._executor = executor
        self._roles = roles
        self._role_of = role_of

    async def decide(self, record: CallRecord, arguments: dict[str, Any]) -> PolicyDecision | None:
        """The decision about a call; None if its tool is no longer there."""
        catalog = self._executor.catalog
        if catalog.get(record.tool_id) is None and catalog.refusal(record.tool_id).code == "UNKNOWN_TOOL":
            return None
        try:
            caller = self._make_caller(record)
        except Forbidden as refusal:
            return PolicyDecision("deny", str(refusal))
        call = Call(name=record.tool_id, arguments=arguments, chat=record.chat_id, caller=caller)
        error = (await self._executor.call_tool(call)).error
        if error is None:
            return PolicyDecision("allow", "")
        if isinstance(error, InputRequired):  # its message says how a caller can be asked
            return PolicyDecision("ask", error.details["reason"])
        return PolicyDecision("deny", error.message)

    def _make_caller(self, record: CallRecord) -> Caller:
        if record.principal == LOCAL or record.principal not in self._role_of:
            return Caller(record.principal, record.surface, record.client)
        principal = self._roles.make_principal(record.principal, *self._role_of[record.principal])
        return Caller(record.principal, record.surface, record.client, principal.permission, principal.access)
