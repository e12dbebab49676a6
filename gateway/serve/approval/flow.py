"""The road of a call that may need a person: run, asked about in the way its client allows, and run again."""

from __future__ import annotations

import enum
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.calls import Ask, Call, Outcome, Peer
from gateway.errors import GatewayError, Invalid, NotFound, Unavailable
from gateway.executor import Executor
from gateway.extensions.approval import Answer, Approver, ConsentNeeded, Question
from gateway.extensions.approval.flow import Asking
from gateway.extensions.approval.form import form_of, read_answer
from gateway.extensions.approval.question import arguments_digest, subject_of
from gateway.extensions.approval.store import ELICITATION, ROUNDS, Case, Desk, agreed, run
from gateway.protocol.jsonrpc import RpcError
from gateway.serve.approval.queue import Queue
from gateway.serve.approval.request_state import PREFIX, Claims, Seal
from gateway.tools import Tool

# Under which our question stands among those of an answer.
KEY = "approval"

ELICIT = "elicitation/create"

# Writes down a call that never reaches the executor.
Record = Callable[[Call, Outcome], Awaitable[None]]

log = logging.getLogger(__name__)


class Way(enum.Enum):
    """How a person is asked. An address to approve at, where the client can show one, would be one more."""

    RETURNED = "in the answer, to which the client calls again"
    ASKED = "while the call waits"
    QUEUED = "in the queue"
    REFUSED = "not at all"


class ApprovalFlow:
    """Carries calls to the executor. Where one needs a person's consent it asks, and calls again with the answer, under
    the same call id; while a person thinks, nothing is held."""

    def __init__(
        self, executor: Executor, desk: Desk, seal: Seal, record: Record, clock: Callable[[], float] = time.time
    ) -> None:
        self._executor = executor
        self._desk = desk
        self._seal = seal
        self._record = record
        self._clock = clock
        self._asking = Asking(executor.call_tool, desk)
        self._queue = Queue(executor.call_tool, desk)

    async def call_tool(self, call: Call) -> Outcome:
        answers = call.peer.answers if call.peer is not None else None
        if answers:
            state = answers.get("requestState")
            if isinstance(state, str) and state.startswith(PREFIX):
                return await _told(self._returned(call, state))
        outcome = await self._executor.call_tool(call)
        if isinstance(outcome.error, ConsentNeeded):
            return await _told(self._consult(call, outcome, outcome.error))
        return outcome

    def way(self, peer: Peer | None, question: Question) -> Way:
        """The best way to ask about this one."""
        if question.route == "ask" and peer is not None and _shows_forms(peer):
            if peer.modern:
                return Way.RETURNED
            if peer.ask is not None:
                return Way.ASKED
        if question.route == "queue" or self._desk.settings.without_elicitation == "queue":
            return Way.QUEUED
        return Way.REFUSED

    async def _consult(self, call: Call, outcome: Outcome, needed: ConsentNeeded) -> Outcome:
        way = self.way(call.peer, needed.question)
        if way is Way.RETURNED:
            return await self._hand_out(call, call.id, needed, 0)
        if way is Way.ASKED and call.peer is not None and call.peer.ask is not None:
            outcome = await self._asking.go_on(call, outcome, _through(call.peer.ask), ELICITATION)
            if not isinstance(outcome.error, ConsentNeeded):
                return outcome
            call, needed, way = replace(call, id=outcome.call_id or call.id), outcome.error, Way.QUEUED
        if way is Way.QUEUED:
            return await self._queue.go_on(call, needed)
        await self._desk.end(call.id, needed)
        return outcome

    async def _hand_out(self, call: Call, call_id: str, needed: ConsentNeeded, number: int) -> Outcome:
        """The question as an answer. `call` is as the client made it, and as it will make it again."""
        question = needed.question
        try:
            case = await self._desk.open(call_id, question, ELICITATION)
            state = self._sealed(call, case, question, number)
        except GatewayError as refusal:
            await self._desk.end(call_id, refusal)
            return Outcome(error=refusal, call_id=call_id)
        request = {"method": ELICIT, "params": {"mode": "form", **_elicitation(question)}}
        wire = {"resultType": "input_required", "inputRequests": {KEY: request}, "requestState": state}
        return Outcome(error=needed, wire=wire, call_id=call_id)

    def _sealed(self, call: Call, case: Case, question: Question, number: int) -> str:
        now = self._clock()
        claims = Claims(
            kind="question",
            approval=case.id,
            nonce=case.record.nonce,
            call_id=case.record.call_id,
            subject=question.subject,
            arguments=arguments_digest(call.arguments),
            question=question.digest,
            reason=question.reason,
            issued=now,
            expires=now + self._desk.settings.timeout,
            round=number,
            changes=_changes(call.arguments, question.arguments),
            carried=dict(call.peer.answers) if call.peer is not None else None,
        )
        return self._seal.close(claims)

    async def _returned(self, call: Call, state: str) -> Outcome:
        """Go on with a call whose client comes back with our state."""
        entry = self._executor.catalog.get(call.name)
        tool = entry.tool if entry is not None else None
        claims = self._seal.open(state)
        if tool is None or claims is None or not self._fits(claims, call, tool):
            return await self._forged(call, tool, "it is not for this call, or not of ours")
        try:
            going_on = await self._answered(call, tool, claims)
        except GatewayError as refusal:
            return Outcome(error=refusal, call_id=claims.call_id)
        if going_on is None:
            return await self._forged(call, tool, "it was used before, or nobody asked")
        return await self._went_on(
            call, claims, going_on, await run(self._executor.call_tool, going_on, call.arguments)
        )

    def _fits(self, claims: Claims, call: Call, tool: Tool) -> bool:
        return (
            claims.issued <= self._clock() + 60
            and self._clock() < claims.expires
            and claims.subject == subject_of(tool, call)
            and claims.arguments == arguments_digest(call.arguments)
        )

    async def _answered(self, call: Call, tool: Tool, claims: Claims) -> Call | None:
        """The call as it goes on; None when its state was used before."""
        assert call.peer is not None  # noqa: S101 - the state came with it
        given = call.peer.answers.get("inputResponses")
        arguments = {**call.arguments, **(claims.changes or {})}
        try:
            record = await self._desk.approvals.get(claims.approval)
        except NotFound:  # the key is ours, but nobody asked here
            return None
        case = Case(replace(record, nonce=claims.nonce), tool, arguments)
        if claims.kind == "question":
            answer = read_answer(tool, arguments, given.get(KEY) if isinstance(given, Mapping) else None)
            going_on = await self._desk.close(case, call, claims.reason, answer)
            handed = claims.carried or {}
        else:
            if not await self._desk.approvals.burn(claims.approval, claims.nonce):
                return None
            edited = arguments if claims.changes else None
            original = Case(case.record, tool, call.arguments)
            going_on = agreed(original, call, claims.reason, claims.by, edited)
            handed = {"inputResponses": given, **(claims.carried or {})} if given is not None else claims.carried or {}
        return going_on and replace(going_on, peer=replace(call.peer, answers=handed))

    async def _went_on(self, call: Call, claims: Claims, going_on: Call, outcome: Outcome) -> Outcome:
        """What the client is told: the outcome, another question of ours, or one of the upstream's."""
        if isinstance(outcome.error, ConsentNeeded):
            if claims.round + 1 >= ROUNDS:
                return Outcome(error=await self._desk.give_up(going_on), call_id=going_on.id)
            again = replace(call, peer=going_on.peer)
            if self.way(call.peer, outcome.error.question) is Way.QUEUED:
                return await self._queue.go_on(replace(again, id=going_on.id), outcome.error)
            return await self._hand_out(again, going_on.id, outcome.error, claims.round + 1)
        if outcome.wire is not None and outcome.wire.get("resultType") == "input_required":
            return await self._carried(call, claims, going_on, outcome, outcome.wire)
        return outcome

    async def _carried(
        self, call: Call, claims: Claims, going_on: Call, outcome: Outcome, wire: Mapping[str, Any]
    ) -> Outcome:
        """The upstream's question, its state inside one of ours: nobody is asked for consent twice."""
        consent = going_on.consent
        assert consent is not None  # noqa: S101 - it would not have run
        now, state = self._clock(), wire.get("requestState")
        continued = replace(
            claims,
            kind="continued",
            nonce=secrets.token_urlsafe(24),
            question=consent.question,
            issued=now,
            expires=now + self._desk.settings.timeout,
            by=consent.by,
            changes=_changes(call.arguments, going_on.arguments),
            carried={} if state is None else {"requestState": state},
        )
        if not await self._desk.approvals.arm(claims.approval, continued.nonce):
            raise Unavailable("the approval this call goes on with is gone", code="APPROVAL_GONE")
        return replace(outcome, wire={**wire, "requestState": self._seal.close(continued)})

    async def _forged(self, call: Call, tool: Tool | None, why: str) -> Outcome:
        log.warning("call %s of %s brought a state that is refused: %s", call.id, call.name[:100], why)
        # One answer for all of them: whoever tries states learns nothing from it.
        refusal = Invalid(
            "no call of yours waits under this state: it was answered before, it took too long, or it belongs to "
            "another call; call again without it",
            code="INVALID_STATE",
        )
        refused = Outcome(error=refusal)
        await self._record(replace(call, tool=tool), refused)
        return refused


async def _told(road: Awaitable[Outcome]) -> Outcome:
    try:
        return await road
    except GatewayError as refusal:
        return Outcome(error=refusal)


def _through(ask: Ask) -> Approver:
    """Asks by a form in the middle of the call, as the handshake era can."""

    async def approver(question: Question) -> Answer:
        try:
            said = await ask(ELICIT, _elicitation(question))
        except RpcError as error:
            raise Unavailable(
                f"the client says it can be asked, but it failed when it was: {error.message[:200]}",
                code="CANNOT_ASK",
            ) from None
        return read_answer(question.tool, question.arguments, said)

    return approver


def _elicitation(question: Question) -> dict[str, Any]:
    return {"message": question.message, "requestedSchema": form_of(question)}


def _shows_forms(peer: Peer) -> bool:
    """Whether the client said so; `elicitation` alone means forms."""
    said = peer.capabilities.get("elicitation")
    return isinstance(said, Mapping) and ("form" in said or "url" not in said)


def _changes(sent: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a person has changed about the arguments the client sent."""
    return {name: value for name, value in now.items() if name not in sent or sent[name] != value} or None
