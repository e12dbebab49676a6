"""Questions in the database: each is stored, answered once, and its answer becomes the consent of a call."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.approval.question import (
    STORED_CHARACTERS,
    Answer,
    ConsentNeeded,
    Question,
    arguments_digest,
    escape_text,
    redact_arguments,
    subject_digest,
    tool_digest,
)
from gateway.calls import Call, Consent, Outcome, Proceed, text_content, to_json
from gateway.config.settings import ApprovalSettings
from gateway.db import timestamp
from gateway.db.approvals import EXPIRED, ApprovalRecord, Approvals, Ending, Scope, Status
from gateway.errors import Conflict, Forbidden, GatewayError, Invalid, Timeout
from gateway.names import new_id
from gateway.secrets import KNOWN
from gateway.text import visible
from gateway.tools import Tool
from gateway.value import Value

# Questions about one call. An edit may raise another question, and files may change while a person thinks.
ROUNDS = 4

# The stored values of `via`.
ELICITATION, QUEUE, TERMINAL, CALLBACK = "elicitation", "queue", "terminal", "callback"

log = logging.getLogger(__name__)

# Number of refusals that are remembered, to log each once.
_LOGGED = 1000


class PendingApproval(Value):
    """A question that was asked, with all that is needed to take its answer wherever it arrives."""

    record: ApprovalRecord
    tool: Tool
    arguments: Mapping[str, Any]

    @property
    def id(self) -> str:
        return self.record.id


class ApprovalStore:
    """Stores questions and takes the first answer to each, for every process that uses the same database."""

    def __init__(self, records: Approvals, settings: ApprovalSettings, clock: Callable[[], float] = time.time) -> None:
        self.records = records
        self.settings = settings
        self._clock = clock
        self._logged: deque[str] = deque(maxlen=_LOGGED)

    async def is_remembered(self, question: Question) -> bool:
        """True if somebody agreed to such calls of this very tool for longer than one call."""
        tool = question.tool
        return await self.records.is_remembered(
            question.principal, question.chat, tool.id, tool_digest(tool), question.grounds
        )

    async def open(self, call_id: str, question: Question, via: str) -> PendingApproval:
        """Store a question; it can be answered from now on, until `approval.timeout` has passed."""
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
            message=KNOWN.mask(question.full_message),
            args=_encode_arguments(question.arguments),
            created_at=timestamp(now),
            expires_at=timestamp(now + self.settings.timeout),
            nonce="" if via == QUEUE else secrets.token_urlsafe(24),
            changes=_encode_changes(question.changes),
        )
        await self.records.ask(record, self.settings.pending)
        _log_waiting(record)
        return PendingApproval(record, question.tool, question.arguments)

    async def decide(self, pending: PendingApproval, call: Call, reason: str, answer: Answer) -> Call | None:
        """Take an answer. Return the call with its consent; None if the question no longer waits. Raise for a no."""
        by = answer.by or call.caller.principal
        if answer.decision in ("deny", "dismiss"):
            status: Status = "denied" if answer.decision == "deny" else "dismissed"
            refusal = decline_error(pending.record) if answer.decision == "deny" else _dismiss_error(pending.record)
            if not await self.records.decide(pending.record, status, by, ending=_make_ending(refusal)):
                return None
            self.log_refusal(replace(pending.record, status=status, decided_by=by))
            raise refusal
        edited = None if answer.arguments is None or answer.arguments == pending.arguments else answer.arguments
        scope: Scope = answer.decision if pending.record.remember else "once"  # type: ignore[assignment]
        stored = None if edited is None else _encode_arguments(edited)
        if not await self.records.decide(pending.record, "used", by, scope=scope, edited=stored):
            return None
        return add_consent(pending, call, reason, by, edited)

    async def allow(
        self, approval_id: str, by: str, scope: Scope = "once", changes: Mapping[str, Any] | None = None
    ) -> ApprovalRecord:
        """Agree to a call in the queue, with `changes` to its arguments. It may then be made once, until
        `approval.timeout` has passed."""
        record = await self._get_queued(approval_id)
        edited = _edit_arguments(record, changes) if changes else None
        if edited is not None and scope != "once":
            raise Invalid("changed arguments are allowed once; leave out --for-chat and --always", code="ONCE_ONLY")
        if scope != "once" and not record.remember:
            raise Invalid(
                f"{record.tool_id} needs consent for each call, by a rule; allow it once instead", code="ONCE_ONLY"
            )
        if not await self.records.decide(
            record, "allowed", by, scope=scope, edited=edited, lasting=self.settings.timeout
        ):
            raise await self._not_waiting_error(record)
        return record

    async def deny(self, approval_id: str, by: str, note: str | None = None) -> ApprovalRecord:
        """Refuse a call in the queue; `note` is the reason that the model gets. The same call is refused without asking
        until the question would have expired."""
        record = replace(await self._get_queued(approval_id), note=note)
        if not await self.records.decide(record, "denied", by, ending=_make_ending(decline_error(record)), note=note):
            raise await self._not_waiting_error(record)
        self.log_refusal(replace(record, status="denied", decided_by=by))
        return record

    def log_refusal(self, record: ApprovalRecord) -> None:
        """Log once who refused a call and why, whether a caller waits here or the decision was made here."""
        if record.id not in self._logged:
            self._logged.append(record.id)
            verb = "declined" if record.status == "denied" else "left unanswered"
            note = f": {record.note}" if record.note else ""
            text = f"{record.tool_id} was {verb} by {record.decided_by}{note}"
            log.info("%s", visible(text).replace("\n", " "))

    async def expire(self, pending: PendingApproval) -> GatewayError:
        """Close a question that nobody answered. Return the error for the caller."""
        if not await self.records.decide(pending.record, "expired", "nobody", ending=EXPIRED):
            await self.records.sweep()
        return Timeout(
            f"{EXPIRED.message} ({self.settings.timeout:g} s, approval.timeout); call again to ask again",
            code=EXPIRED.code,
            approval=pending.id,
        )

    async def abandon(self, pending: PendingApproval, refusal: GatewayError | None = None) -> None:
        """Close a question whose caller is gone, or who could not be asked because of `refusal`."""
        cancelled = Ending("CANCELLED", "the caller cancelled the call while a person was asked")
        ending = cancelled if refusal is None else _make_ending(refusal)
        await self.records.decide(pending.record, "cancelled", "nobody", ending=ending)

    async def give_up(self, call: Call) -> GatewayError:
        """End a call after `ROUNDS` questions. Return the error for the caller."""
        refusal = Forbidden(
            f"{call.name}: a person was asked {ROUNDS} times, and each answer raised another question; it did not run",
            code="TOO_MANY_QUESTIONS",
        )
        await self.end_call(call.id, refusal)
        return refusal

    async def end_call(self, call_id: str, refusal: GatewayError) -> None:
        """End the record of a call that nobody will be asked about any more."""
        # The record of a call that needs consent already has the reason, with its secrets masked.
        ending = Ending(refusal.code) if isinstance(refusal, ConsentNeeded) else _make_ending(refusal)
        await self.records.end_call(call_id, ending)

    async def _get_queued(self, approval_id: str) -> ApprovalRecord:
        record = await self.records.get(approval_id)
        if record.via != QUEUE:
            raise Conflict(
                f"approval {record.id} was asked of the caller's own client and can only be answered there",
                code="NOT_QUEUED",
            )
        return record

    async def _not_waiting_error(self, record: ApprovalRecord) -> Conflict:
        await self.records.sweep()
        current = await self.records.get(record.id)
        by = f" by {current.decided_by}" if current.decided_by else ""
        return Conflict(f"approval {current.id} is no longer pending: it is {current.status}{by}", code="NOT_WAITING")


def _log_waiting(record: ApprovalRecord) -> None:
    """Say that a call waits for a person, and where it is answered."""
    if record.via == QUEUE:
        answer = f"answer with: toolgate approval allow {record.id}, or: toolgate approval deny {record.id}"
    else:
        answer = {ELICITATION: "its client asks", TERMINAL: "it is asked at a terminal"}.get(record.via, "it is asked")
    log.info("%s waits for a person: %s; %s", record.tool_id, visible(record.reason).replace("\n", " "), answer)


def _edit_arguments(record: ApprovalRecord, changes: Mapping[str, Any]) -> str:
    """Return the stored arguments with the changes, as JSON. The stored ones have no secrets, and neither may the
    changes: the waiting call applies what differs to the arguments it has."""
    stored = json.loads(record.args or "{}")
    if set(stored) == {"truncated", "bytes"}:
        raise Invalid("the arguments are too large to be changed in the queue; deny the call instead", code="TOO_LARGE")
    edited = {**stored, **changes}
    document = _encode_arguments(edited)
    if document is None or json.loads(document) != edited:
        raise Invalid(
            "an argument that holds a secret, or is very large, cannot be changed in the queue", code="NOT_EDITABLE"
        )
    return document


def edited_arguments(record: ApprovalRecord, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call as a person changed them in the queue; None if nobody did."""
    if record.edited_args is None:
        return None
    stored, edited = json.loads(record.args or "{}"), json.loads(record.edited_args)
    changes = {name: value for name, value in edited.items() if name not in stored or stored[name] != value}
    return {**arguments, **changes} if changes else None


def add_consent(
    pending: PendingApproval, call: Call, reason: str, by: str, edited: Mapping[str, Any] | None = None
) -> Call:
    """Return the call with a person's consent, under the id it was first recorded with."""
    arguments = pending.arguments if edited is None else edited
    consent = Consent(
        approval=pending.id,
        subject=subject_digest(pending.tool, call),
        arguments=arguments_digest(arguments),
        question=pending.record.question,
        reason=reason,
        by=by,
        via=pending.record.via,
        original=None if edited is None else pending.arguments,
    )
    return replace(call, id=pending.record.call_id, arguments=arguments, consent=consent)


async def run_approved(call_tool: Proceed, call: Call, sent: Mapping[str, Any]) -> Outcome:
    """Run a call that somebody agreed to. The outcome names the call it is recorded under, and tells the model which
    of the arguments it `sent` a person has changed."""
    outcome = replace(await call_tool(call), call_id=call.id)
    if call.arguments is sent or call.arguments == sent:
        return outcome
    if isinstance(outcome.error, Invalid):
        return replace(outcome, error=_blame_edit(outcome.error))
    if outcome.error is not None:
        return outcome
    try:
        content = outcome.content if outcome.content is not None else text_content(outcome.value_json.decode())
    except Invalid:  # the value is not JSON; the validation extension reports that
        return outcome
    return replace(outcome, content=[*content, *text_content(_describe_edit(sent, call.arguments))])


def decline_error(record: ApprovalRecord) -> Forbidden:
    why = f". Their reason: {record.note}" if record.note else ""
    return Forbidden(
        f"a person declined {record.tool_id} with these arguments; do not call it again unless the user asks for it"
        f"{why}",
        code="DECLINED",
        approval=record.id,
    )


def _dismiss_error(record: ApprovalRecord) -> Forbidden:
    return Forbidden(
        f"a person was asked about {record.tool_id} but closed the question without an answer; it did not run",
        code="DISMISSED",
        approval=record.id,
    )


def _make_ending(refusal: GatewayError) -> Ending:
    return Ending(refusal.code, refusal.message)


def _encode_arguments(arguments: Mapping[str, Any]) -> str | None:
    """Return the arguments as JSON for the database: secrets masked, and cut off above a limit."""
    document = to_json(redact_arguments(arguments))
    if len(document) <= STORED_CHARACTERS:
        return KNOWN.mask_json(document.decode())
    return to_json({"truncated": True, "bytes": len(document)}).decode()


def _encode_changes(changes: str | None) -> str | None:
    """Return what would change for the database: secrets masked, hidden characters shown, and cut off above a limit."""
    if changes is None:
        return None
    lines = ["\t".join(map(escape_text, line.split("\t"))) for line in changes[:STORED_CHARACTERS].split("\n")]
    if len(changes) > STORED_CHARACTERS:
        lines.append(f"… {len(changes) - STORED_CHARACTERS} characters are left out")
    return KNOWN.mask("\n".join(lines))


def _blame_edit(error: Invalid) -> Invalid:
    blamed = Invalid(f"a person edited the arguments, and they were refused: {error.message}", code=error.code)
    blamed.details = {**error.details, "edited": True}
    return blamed


def _describe_edit(sent: Mapping[str, Any], used: Mapping[str, Any]) -> str:
    """Return a note for the model, which would otherwise take its own arguments for those that were used."""
    changed = {name: value for name, value in used.items() if name not in sent or sent[name] != value}
    document = escape_text(json.dumps(redact_arguments(changed), ensure_ascii=False))
    return f"A person changed these arguments before the call ran: {document[:2000]}"
