"""Where questions are written down, answered once, and their answers made the consent that travels with a call."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.calls import Call, Consent, Outcome, Proceed, text_content, to_json
from gateway.config.settings import ApprovalSettings
from gateway.db import timestamp
from gateway.db.approvals import EXPIRED, ApprovalRecord, Approvals, Ending, Scope, Status
from gateway.errors import Conflict, Forbidden, GatewayError, Invalid, Timeout
from gateway.extensions.approval.question import (
    KEPT,
    Answer,
    ConsentNeeded,
    Question,
    arguments_digest,
    plain,
    subject_of,
    tool_digest,
    without_secrets,
)
from gateway.names import new_id
from gateway.secrets import KNOWN
from gateway.tools import Tool

# Questions about one call: an edit may raise another, and a file may change under each.
ROUNDS = 4

ELICITATION, QUEUE, TERMINAL, CALLBACK = "elicitation", "queue", "terminal", "callback"


@dataclass(frozen=True)
class Case:
    """A question that was asked: what must be known to take its answer, wherever that arrives."""

    record: ApprovalRecord
    tool: Tool
    arguments: Mapping[str, Any]

    @property
    def id(self) -> str:
        return self.record.id


class Desk:
    """Opens a case per question and closes it with the first answer. Every process on the same database is at the
    same desk."""

    def __init__(
        self, approvals: Approvals, settings: ApprovalSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self.approvals = approvals
        self.settings = settings
        self._clock = clock

    async def remembered(self, question: Question) -> bool:
        """Whether such a call of this very tool was agreed to for longer than once."""
        tool = question.tool
        return await self.approvals.is_remembered(
            question.principal, question.chat, tool.id, tool_digest(tool), question.grounds
        )

    async def open(self, call_id: str, question: Question, via: str) -> Case:
        """Write a question down, from when on it can be answered, for as long as the settings say."""
        now = self._clock()
        record = ApprovalRecord(
            id=new_id(),
            call_id=call_id,
            chat_id=question.chat,
            principal=question.principal,
            tool_id=question.tool.id,
            via=via,
            question=question.digest,
            grounds=question.grounds,
            tool_digest=tool_digest(question.tool),
            remember=question.remember,
            reason=KNOWN.mask(question.reason),
            message=KNOWN.mask(question.whole),
            args=kept(question.arguments),
            created_at=timestamp(now),
            expires_at=timestamp(now + self.settings.timeout),
            nonce="" if via == QUEUE else secrets.token_urlsafe(24),
        )
        await self.approvals.ask(record, self.settings.pending)
        return Case(record, question.tool, question.arguments)

    async def close(self, case: Case, call: Call, reason: str, answer: Answer) -> Call | None:
        """The call as it may go on, with the consent it needs; None when the question waits no longer. A person's no
        is raised as what the caller is told."""
        by = answer.by or call.caller.principal
        if answer.decision in ("deny", "dismiss"):
            status: Status = "denied" if answer.decision == "deny" else "dismissed"
            refusal = declined(case.record) if answer.decision == "deny" else dismissed(case.record)
            if not await self.approvals.decide(case.record, status, by, ending=_ending(refusal)):
                return None
            raise refusal
        edited = None if answer.arguments is None or answer.arguments == case.arguments else answer.arguments
        scope: Scope = answer.decision if case.record.remember else "once"  # type: ignore[assignment]
        told = None if edited is None else kept(edited)
        if not await self.approvals.decide(case.record, "used", by, scope=scope, edited=told):
            return None
        return agreed(case, call, reason, by, edited)

    async def allow(self, approval_id: str, by: str, scope: Scope = "once") -> ApprovalRecord:
        """Agree to a call in the queue; it may then be made once, within the time a question may take."""
        asked = await self._queued(approval_id)
        if scope != "once" and not asked.remember:
            raise Invalid(f"a rule says that {asked.tool_id} is asked for each time; allow it once", code="ONCE_ONLY")
        if not await self.approvals.decide(asked, "allowed", by, scope=scope, lasting=self.settings.timeout):
            raise await self._no_longer(asked)
        return asked

    async def deny(self, approval_id: str, by: str) -> ApprovalRecord:
        """Refuse a call in the queue; the same call again is refused unasked until the question would have expired."""
        asked = await self._queued(approval_id)
        if not await self.approvals.decide(asked, "denied", by, ending=_ending(declined(asked))):
            raise await self._no_longer(asked)
        return asked

    async def expire(self, case: Case) -> GatewayError:
        """Close a case nobody answered; what the caller is told."""
        if not await self.approvals.decide(case.record, "expired", "nobody", ending=EXPIRED):
            await self.approvals.sweep()
        return Timeout(
            f"{EXPIRED.message} ({self.settings.timeout:g} s, approval.timeout); call again to ask again",
            code=EXPIRED.code,
            approval=case.id,
        )

    async def abandon(self, case: Case, refusal: GatewayError | None = None) -> None:
        """Close a case whose caller has gone, or could not be asked after all."""
        gone = Ending("CANCELLED", "the caller called it off while a person was asked")
        await self.approvals.decide(
            case.record, "cancelled", "nobody", ending=gone if refusal is None else _ending(refusal)
        )

    async def _queued(self, approval_id: str) -> ApprovalRecord:
        asked = await self.approvals.get(approval_id)
        if asked.via != QUEUE:
            raise Conflict(
                f"approval {asked.id} was asked of the caller's own client, and only there", code="NOT_QUEUED"
            )
        return asked

    async def _no_longer(self, asked: ApprovalRecord) -> Conflict:
        await self.approvals.sweep()
        now = await self.approvals.get(asked.id)
        by = f" by {now.decided_by}" if now.decided_by else ""
        return Conflict(f"approval {now.id} waits no longer: it is {now.status}{by}", code="NOT_WAITING")

    async def give_up(self, call: Call) -> GatewayError:
        """End a call of which each answer raised another question; what the caller is told."""
        refusal = Forbidden(
            f"{call.name}: a person was asked {ROUNDS} times, and each answer raised another question; it did not run",
            code="TOO_MANY_QUESTIONS",
        )
        await self.end(call.id, refusal)
        return refusal

    async def end(self, call_id: str, refusal: GatewayError) -> None:
        """End the record of a call nobody will be asked about any more."""
        # What made it ask stands in its record already, without the secrets it may name.
        await self.approvals.end_call(
            call_id, Ending(refusal.code) if isinstance(refusal, ConsentNeeded) else _ending(refusal)
        )


def agreed(
    case: Case, call: Call, reason: str, by: str, edited: Mapping[str, Any] | None = None, via: str | None = None
) -> Call:
    """The call with the consent of whoever agreed to it, under the id it was first recorded with."""
    arguments = case.arguments if edited is None else edited
    consent = Consent(
        approval=case.id,
        subject=subject_of(case.tool, call),
        arguments=arguments_digest(arguments),
        question=case.record.question,
        reason=reason,
        by=by,
        via=via or case.record.via,
        original=None if edited is None else case.arguments,
    )
    return replace(call, id=case.record.call_id, arguments=arguments, consent=consent)


async def run(proceed: Proceed, call: Call, sent: Mapping[str, Any]) -> Outcome:
    """Run a call somebody agreed to; the outcome says under which call it is recorded, and what a person changed about
    the arguments as they were sent."""
    outcome = replace(await proceed(call), call_id=call.id)
    if call.arguments is sent or call.arguments == sent:
        return outcome
    if isinstance(outcome.error, Invalid):
        return replace(outcome, error=_blaming_the_edit(outcome.error))
    if outcome.error is not None:
        return outcome
    try:
        read = outcome.content if outcome.content is not None else text_content(outcome.value_json.decode())
    except Invalid:  # a value that is no JSON; validation has its say about that
        return outcome
    return replace(outcome, content=[*read, *text_content(_changes_told(sent, call.arguments))])


def kept(arguments: Mapping[str, Any]) -> str | None:
    """The arguments as they are written down: without secrets, and not beyond measure."""
    document = to_json(without_secrets(arguments))
    if len(document) <= KEPT:
        return KNOWN.mask_json(document.decode())
    return to_json({"truncated": True, "bytes": len(document)}).decode()


def declined(asked: ApprovalRecord) -> Forbidden:
    return Forbidden(
        f"a person was asked and said no to {asked.tool_id} with these arguments; do not try it again unasked",
        code="DECLINED",
        approval=asked.id,
    )


def dismissed(asked: ApprovalRecord) -> Forbidden:
    return Forbidden(
        f"a person was asked about {asked.tool_id} and closed the question without an answer; it did not run",
        code="DISMISSED",
        approval=asked.id,
    )


def _ending(refusal: GatewayError) -> Ending:
    return Ending(refusal.code, refusal.message)


def _blaming_the_edit(error: Invalid) -> Invalid:
    told = Invalid(f"a person changed the arguments before they were used, and then: {error.message}", code=error.code)
    told.details = {**error.details, "edited": True}
    return told


def _changes_told(original: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """For the model, which would else believe that what it asked for was done."""
    changed = {name: value for name, value in now.items() if name not in original or original[name] != value}
    told = plain(json.dumps(without_secrets(changed), ensure_ascii=False))
    return f"A person changed these arguments before the call ran: {told[:2000]}"
