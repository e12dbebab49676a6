"""Calling a tool that may need a person's consent: run it, ask in the way its caller allows, and run it again.

While a person thinks, the call holds no slot, no deadline of the tool and no lock."""

from __future__ import annotations

import asyncio
import enum
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from gateway.approval.question import (
    Answer,
    Approver,
    ConsentNeeded,
    Question,
    arguments_digest,
    build_form,
    parse_answer,
    subject_digest,
)
from gateway.approval.request_state import PREFIX, Claims, RequestStateCodec
from gateway.approval.store import (
    CALLBACK,
    ELICITATION,
    QUEUE,
    ROUNDS,
    TERMINAL,
    ApprovalStore,
    PendingApproval,
    add_consent,
    decline_error,
    edited_arguments,
    run_approved,
)
from gateway.calls import Ask, Call, ClientInfo, Outcome, Proceed
from gateway.db.approvals import ApprovalRecord
from gateway.errors import Cancelled, Conflict, GatewayError, InputRequired, Invalid, NotFound, Unavailable
from gateway.protocol.jsonrpc import RpcError
from gateway.tools import Tool

# Key of our question among the `inputRequests` of a result.
KEY = "approval"

ELICIT = "elicitation/create"

# The state of a call whose person was sent to the page of the question. It proves nothing: the answer is in the queue.
LINK_STATE = "toolgate-link"

# Seconds between two reads of the store on behalf of all calls that wait in the queue.
POLL_SECONDS = 0.25

# Records a call that never reaches the executor.
Record = Callable[[Call, Outcome], Awaitable[None]]

# Returns the call with a person's consent; None if this question must be asked elsewhere. Raises what refuses it.
GetConsent = Callable[[Call, Question], Awaitable[Call | None]]

# Gets the record of a question that was put into the queue.
Notify = Callable[[ApprovalRecord], Awaitable[None]]

log = logging.getLogger(__name__)


class AskMethod(enum.Enum):
    """The way in which the person behind an MCP client is asked."""

    RETURNED = "in the result, which the client answers by calling again"
    ELICITED = "by elicitation, while the call waits"
    LINKED = "on the page of the question, whose address the client opens"
    QUEUED = "in the queue"
    REFUSED = "not at all"


class ApprovalFlow:
    """Sends calls to the executor. A call that needs consent is asked about and sent again under the same call id.

    `call_tool` is the executor's; `find_tool` finds the tool of a call among those its caller may call; `record` gets
    calls that are refused before they reach the executor.
    """

    def __init__(
        self,
        call_tool: Proceed,
        find_tool: Callable[[Call], Tool | None],
        store: ApprovalStore,
        record: Record,
        states: RequestStateCodec,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.states = states
        self._call_tool = call_tool
        self._find_tool = find_tool
        self._store = store
        self._record = record
        self._clock = clock
        self._decisions = RevisionWatcher(store.records.revision)
        # The address of the gateway's pages, once it serves them.
        self.pages_url: str | None = None

    async def call_tool(self, call: Call) -> Outcome:
        """Call a tool for an MCP client; the person behind it is asked in the best way the client supports."""
        answers = call.client.answers if call.client is not None else None
        if answers:
            state = answers.get("requestState")
            if isinstance(state, str) and state.startswith(PREFIX):
                return await _catch_refusal(self._resume(call, state))
            if state == LINK_STATE:
                return await _catch_refusal(self._resume_link(call, answers))
        outcome = await self._call_tool(call)
        if isinstance(outcome.error, ConsentNeeded):
            return await _catch_refusal(self._ask_client(call, outcome, outcome.error))
        return outcome

    async def call_with_approver(self, call: Call, approver: Approver | None) -> Outcome:
        """Call a tool for the library or the command line: `approver` is asked; without one the call is refused."""
        approver = _approve if call.confirmed and approver is None else approver
        call = call.replace(call_step=partial(self.call_with_approver, approver=approver))
        outcome = await self._call_tool(call)
        if not isinstance(outcome.error, ConsentNeeded):
            return outcome
        call = _repair(call, outcome.error.question.tool)
        if approver is None:
            await self._store.end_call(call.id, outcome.error)
            return outcome
        via = TERMINAL if call.caller.surface == "cli" else CALLBACK
        return await self._call_with_consent(call, outcome, partial(self._ask, approver, via))

    async def call_step(self, call: Call) -> Outcome:
        """Call a tool as a step of another one; the same person is asked, in the same way."""
        call_step = None if call.parent is None else call.parent.call_step
        return await (call_step or self.call_tool)(call)

    async def call_and_wait(self, call: Call, notify: Notify) -> Outcome:
        """Call a tool for a caller that shows the queue to a person: a question is put there, whatever the settings
        say of clients, `notify` gets its record, and the call waits for the answer until the question expires."""
        call = call.replace(call_step=partial(self.call_and_wait, notify=notify))
        outcome = await self._call_tool(call)
        if not isinstance(outcome.error, ConsentNeeded):
            return outcome
        wait = partial(self._wait_in_queue, seconds=self._store.settings.timeout, notify=notify)
        return await _catch_refusal(self._call_with_consent(_repair(call, outcome.error.question.tool), outcome, wait))

    def choose_method(self, client: ClientInfo | None, question: Question) -> AskMethod:
        """Return the best way to ask this question of the client's person."""
        if question.route == "ask" and client is not None and (client.modern or client.ask is not None):
            links = self.pages_url is not None and _supports_links(client)
            prefers_links = links and self._store.settings.elicitation == "url"
            if _supports_forms(client) and not prefers_links:
                return AskMethod.RETURNED if client.modern else AskMethod.ELICITED
            if links:
                return AskMethod.LINKED
        if question.route == "queue" or self._store.settings.without_elicitation == "queue":
            return AskMethod.QUEUED
        return AskMethod.REFUSED

    async def _ask_client(self, call: Call, outcome: Outcome, needed: ConsentNeeded) -> Outcome:
        call = _repair(call, needed.question.tool)
        method = self.choose_method(call.client, needed.question)
        if method is AskMethod.RETURNED:
            return await self._return_question(call, call.id, needed, 0)
        if method is AskMethod.ELICITED and call.client is not None and call.client.ask is not None:
            ask = partial(self._ask, _elicit(call.client.ask), ELICITATION)
            outcome = await self._call_with_consent(call, outcome, ask)
            if not isinstance(outcome.error, ConsentNeeded):
                return outcome
            call, method = replace(call, id=outcome.call_id or call.id), AskMethod.QUEUED
        if method is AskMethod.LINKED and call.client is not None:
            if call.client.modern:
                return await self._return_link(call, needed.question)
            return await self._call_with_consent(call, outcome, partial(self._send_link, call.client.ask))
        if method is AskMethod.QUEUED:
            return await self._call_with_consent(call, outcome, self._wait_in_queue)
        await self._store.end_call(call.id, needed)
        return outcome

    async def _call_with_consent(self, call: Call, outcome: Outcome, get_consent: GetConsent) -> Outcome:
        """Get consent to each question that the call raises and call again, for at most `ROUNDS` questions. `outcome`
        is that of the call without consent; a question that `get_consent` does not take is handed back."""
        sent = call.arguments
        for _ in range(ROUNDS):
            if not isinstance(outcome.error, ConsentNeeded):
                return outcome
            try:
                approved = await get_consent(call, outcome.error.question)
            except GatewayError as refusal:
                return Outcome(error=refusal, call_id=call.id)
            if approved is None:
                return outcome
            call = approved
            outcome = await run_approved(self._call_tool, call, sent)
        if not isinstance(outcome.error, ConsentNeeded):
            return outcome
        return Outcome(error=await self._store.give_up(call), call_id=call.id)

    # Asking while the call waits: a terminal, a callback, or elicitation before 2026-07-28.

    async def _ask(self, approver: Approver, via: str, call: Call, question: Question) -> Call | None:
        if via == ELICITATION and question.route == "queue":
            return None
        pending = await self._store.open(call.id, question, via)
        answer: Answer | None = None
        try:
            with anyio.move_on_after(self._store.settings.timeout):
                answer = await approver(question)
        except BaseException as error:  # the caller is gone or could not ask: nobody can answer any more
            with anyio.CancelScope(shield=True):
                await self._store.abandon(pending, error if isinstance(error, GatewayError) else None)
            raise
        if answer is not None:
            approved = await self._store.decide(pending, call, question.reason, answer)
            if approved is not None:
                # At the terminal only the call without the edit was shown, so the edited one is asked about anew.
                is_edited = via == TERMINAL and approved.arguments != question.arguments
                return replace(approved, consent=None) if is_edited else approved
        raise await self._store.expire(pending)

    # The queue: answered by `toolgate approval`, while the caller waits a moment or calls again later.

    async def _wait_in_queue(
        self, call: Call, question: Question, seconds: float | None = None, notify: Notify | None = None
    ) -> Call:
        """Return the call with the consent given in the queue, which is used up by it. Raise while there is none."""
        records = self._store.records
        pending = await self._find_or_queue(call.id, question)
        if notify is not None:
            await notify(pending.record)
        deadline = asyncio.get_running_loop().time() + (seconds or self._store.settings.queue_wait)
        while True:
            revision = await records.revision()
            record = await records.get(pending.id)
            if record.status == "denied":
                self._store.log_refusal(record)
                raise decline_error(record)
            if record.status == "cancelled":
                raise Cancelled(f"{record.decided_by} cancelled the call while it waited for a person")
            if record.status == "allowed" and await records.consume(pending.id):
                edited = edited_arguments(record, pending.arguments)
                return add_consent(
                    replace(pending, record=record), call, question.reason, str(record.decided_by), edited
                )
            if record.status != "waiting":  # another call with the same question used it, or it expired
                pending = await self._find_or_queue(call.id, question)
            elif not await self._decisions.wait_after(revision, deadline):
                raise await self._no_answer_error(pending, question)

    async def _no_answer_error(self, pending: PendingApproval, question: Question) -> GatewayError:
        if await self._store.records.find(question.digest, QUEUE) is None:
            return await self._store.expire(pending)
        return InputRequired(
            f"{question.reason}. A person must agree first: run 'toolgate approval allow {pending.id}', then call "
            "again with the same arguments",
            reason=question.reason,
            approval=pending.id,
            call_id=pending.record.call_id,
        )

    async def _find_or_queue(self, call_id: str, question: Question) -> PendingApproval:
        record = await self._store.records.find(question.digest, QUEUE)
        if record is None:
            return await self._store.open(call_id, question, QUEUE)
        if record.call_id != call_id:  # the same question was asked before; that call is the one that continues
            continued = Conflict(f"the same call was made before and continues as {record.call_id}", code="CONTINUED")
            await self._store.end_call(call_id, continued)
        return PendingApproval(record, question.tool, question.arguments)

    # A page of the gateway: the client opens its address, and the answer is in the queue.

    async def _send_link(self, ask: Ask | None, call: Call, question: Question) -> Call | None:
        """Send the address while the call waits (before 2026-07-28), then wait for the answer."""
        assert ask is not None  # noqa: S101 - the method was chosen for it
        pending = await self._find_or_queue(call.id, question)
        try:
            response = await ask(ELICIT, {**self._link(pending, question), "elicitationId": pending.id})
        except RpcError as error:
            raise _cannot_ask(error) from None
        await self._check_opened(pending, call, question, response)
        return await self._wait_in_queue(call, question, seconds=self._store.settings.timeout)

    async def _return_link(self, call: Call, question: Question) -> Outcome:
        """Return the address as a result (2026-07-28); the client calls again once the person was there."""
        pending = await self._find_or_queue(call.id, question)
        request = {"method": ELICIT, "params": self._link(pending, question)}
        wire = {"resultType": "input_required", "inputRequests": {KEY: request}, "requestState": LINK_STATE}
        return Outcome(error=ConsentNeeded(question), wire=wire, call_id=pending.record.call_id)

    async def _resume_link(self, call: Call, answers: Mapping[str, Any]) -> Outcome:
        """Continue a call whose person was sent to the page. Without an answer there, the address is sent again."""
        assert call.client is not None  # noqa: S101 - the state came with it
        call = replace(call, client=call.client.replace(answers={}))
        outcome = await self._call_tool(call)
        if not isinstance(outcome.error, ConsentNeeded):
            return outcome
        question = outcome.error.question
        call = _repair(call, question.tool)
        responses = answers.get("inputResponses")
        response = responses.get(KEY) if isinstance(responses, Mapping) else None
        await self._check_opened(await self._find_or_queue(call.id, question), call, question, response)
        outcome = await self._call_with_consent(call, outcome, self._wait_in_queue)
        if isinstance(outcome.error, InputRequired) and outcome.wire is None:
            return await self._return_link(call, question)
        return outcome

    async def _check_opened(self, pending: PendingApproval, call: Call, question: Question, response: Any) -> None:
        """Refuse a call whose person would not open the page. That they did is no consent."""
        action = response.get("action") if isinstance(response, Mapping) else None
        if action != "accept":
            answer = Answer("deny" if action == "decline" else "dismiss")
            await self._store.decide(pending, call, question.reason, answer)

    def _link(self, pending: PendingApproval, question: Question) -> dict[str, Any]:
        return {"mode": "url", "message": question.message, "url": f"{self.pages_url}/approve/{pending.id}"}

    # Questions returned in the result (2026-07-28): the client calls again with the answer and our sealed state.

    async def _return_question(self, call: Call, call_id: str, needed: ConsentNeeded, number: int) -> Outcome:
        """Return the question as a result. `call` is as the client made it, and will make it again."""
        question = needed.question
        try:
            pending = await self._store.open(call_id, question, ELICITATION)
            state = self._seal_question(call, pending, question, number)
        except GatewayError as refusal:
            await self._store.end_call(call_id, refusal)
            return Outcome(error=refusal, call_id=call_id)
        request = {"method": ELICIT, "params": {"mode": "form", **_elicitation_params(question)}}
        wire = {"resultType": "input_required", "inputRequests": {KEY: request}, "requestState": state}
        return Outcome(error=needed, wire=wire, call_id=call_id)

    def _seal_question(self, call: Call, pending: PendingApproval, question: Question, number: int) -> str:
        now = self._clock()
        claims = Claims(
            kind="question",
            approval=pending.id,
            nonce=pending.record.nonce,
            call_id=pending.record.call_id,
            subject=question.subject,
            arguments=arguments_digest(call.arguments),
            question=question.digest,
            reason=question.reason,
            issued=now,
            expires=now + self._store.settings.timeout,
            round=number,
            changes=_diff_arguments(call.arguments, question.arguments),
            carried=dict(call.client.answers) if call.client is not None else None,
        )
        return self.states.seal(claims)

    async def _resume(self, call: Call, state: str) -> Outcome:
        """Continue a call whose client returns our state."""
        tool = self._find_tool(call)
        call = call if tool is None else _repair(call, tool)
        claims = self.states.unseal(state)
        if tool is None or claims is None or not self._is_valid(claims, call, tool):
            return await self._refuse_state(call, tool, "it was not made for this call, or not by this gateway")
        try:
            approved = await self._approve_resumed(call, tool, claims)
        except GatewayError as refusal:
            return Outcome(error=refusal, call_id=claims.call_id)
        if approved is None:
            return await self._refuse_state(call, tool, "it was used before, or its question is unknown")
        outcome = await run_approved(self._call_tool, approved, call.arguments)
        if isinstance(outcome.error, ConsentNeeded):
            return await self._ask_again(call, claims, approved, outcome, outcome.error)
        if outcome.wire is not None and outcome.wire.get("resultType") == "input_required":
            return await self._wrap_upstream_question(call, claims, approved, outcome, outcome.wire)
        return outcome

    def _is_valid(self, claims: Claims, call: Call, tool: Tool) -> bool:
        return (
            claims.issued <= self._clock() + 60
            and self._clock() < claims.expires
            and claims.subject == subject_digest(tool, call)
            and claims.arguments == arguments_digest(call.arguments)
        )

    async def _approve_resumed(self, call: Call, tool: Tool, claims: Claims) -> Call | None:
        """Return the call with its consent; None if the state was used before."""
        assert call.client is not None  # noqa: S101 - the state came with it
        responses = call.client.answers.get("inputResponses")
        arguments = {**call.arguments, **(claims.changes or {})}
        try:
            record = await self._store.records.get(claims.approval)
        except NotFound:  # sealed with our key, but asked by a gateway with another database
            return None
        pending = PendingApproval(replace(record, nonce=claims.nonce), tool, arguments)
        forwarded = claims.carried or {}
        if claims.kind == "question":
            response = responses.get(KEY) if isinstance(responses, Mapping) else None
            answer = parse_answer(tool, arguments, response)
            approved = await self._store.decide(pending, call, claims.reason, answer)
        else:
            if not await self._store.records.burn(claims.approval, claims.nonce):
                return None
            edited = arguments if claims.changes else None
            original = replace(pending, arguments=call.arguments)
            approved = add_consent(original, call, claims.reason, claims.by, edited)
            if responses is not None:
                forwarded = {"inputResponses": responses, **forwarded}
        return approved and replace(approved, client=call.client.replace(answers=forwarded))

    async def _ask_again(
        self, call: Call, claims: Claims, approved: Call, outcome: Outcome, needed: ConsentNeeded
    ) -> Outcome:
        if claims.round + 1 >= ROUNDS:
            return Outcome(error=await self._store.give_up(approved), call_id=approved.id)
        again = replace(call, client=approved.client)
        if self.choose_method(call.client, needed.question) is AskMethod.QUEUED:
            return await self._call_with_consent(replace(again, id=approved.id), outcome, self._wait_in_queue)
        return await self._return_question(again, approved.id, needed, claims.round + 1)

    async def _wrap_upstream_question(
        self, call: Call, claims: Claims, approved: Call, outcome: Outcome, wire: Mapping[str, Any]
    ) -> Outcome:
        """Return the upstream's question with its state inside ours, so that nobody is asked for consent twice."""
        consent = approved.consent
        assert consent is not None  # noqa: S101 - it would not have run
        now, state = self._clock(), wire.get("requestState")
        continued = replace(
            claims,
            kind="continued",
            nonce=secrets.token_urlsafe(24),
            question=consent.question,
            issued=now,
            expires=now + self._store.settings.timeout,
            by=consent.by,
            changes=_diff_arguments(call.arguments, approved.arguments),
            carried={} if state is None else {"requestState": state},
        )
        if not await self._store.records.arm(claims.approval, continued.nonce):
            raise Unavailable("the approval of this call no longer exists; call again", code="APPROVAL_GONE")
        return replace(outcome, wire={**wire, "requestState": self.states.seal(continued)})

    async def _refuse_state(self, call: Call, tool: Tool | None, why: str) -> Outcome:
        log.warning("call %s of %s: its request state is refused: %s", call.id, call.name[:100], why)
        # The same message for every reason, so that trying states reveals nothing.
        refusal = Invalid(
            "no pending call has this request state: it was answered before, it expired, or it belongs to "
            "another call; call again without it",
            code="INVALID_STATE",
        )
        refused = Outcome(error=refusal)
        await self._record(replace(call, tool=tool), refused)
        return refused


class RevisionWatcher:
    """Wakes calls that wait for a new revision. One task polls for all of them, and none while nobody waits."""

    def __init__(self, read_revision: Callable[[], Awaitable[int]], seconds: float = POLL_SECONDS) -> None:
        self._read_revision = read_revision
        self._seconds = seconds
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._task: asyncio.Task[None] | None = None

    async def wait_after(self, revision: int, deadline: float) -> bool:
        """Wait for a later revision; False if the event loop's time reaches `deadline` first."""
        loop = asyncio.get_running_loop()
        seconds = deadline - loop.time()
        if seconds <= 0:
            return False
        changed = loop.create_future()
        self._waiting[changed] = revision
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._poll())
        try:
            await asyncio.wait_for(changed, seconds)
        except TimeoutError:
            return False
        finally:
            del self._waiting[changed]
        return True

    async def _poll(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._seconds)
            with suppress(GatewayError):  # a database that is busy now may answer next time
                current = await self._read_revision()
                for changed, revision in self._waiting.items():
                    if current > revision and not changed.done():
                        changed.set_result(None)


def _repair(call: Call, tool: Tool) -> Call:
    """Return the call with the arguments that a person is asked about: those that are sent to the tool."""
    return call.replace(arguments=tool.repair_arguments(call.arguments))


async def _catch_refusal(outcome: Awaitable[Outcome]) -> Outcome:
    try:
        return await outcome
    except GatewayError as refusal:
        return Outcome(error=refusal)


async def _approve(_: Question) -> Answer:
    """The owner of the process agreed to whatever the call would ask, its steps included."""
    return Answer("once")


def _elicit(ask: Ask) -> Approver:
    """Return an approver that shows the client's form in mid-call, as protocol versions before 2026-07-28 can."""

    async def approver(question: Question) -> Answer:
        try:
            response = await ask(ELICIT, _elicitation_params(question))
        except RpcError as error:
            raise _cannot_ask(error) from None
        return parse_answer(question.tool, question.arguments, response)

    return approver


def _cannot_ask(error: RpcError) -> Unavailable:
    return Unavailable(
        f"the client declares elicitation, but the request failed: {error.message[:200]}", code="CANNOT_ASK"
    )


def _elicitation_params(question: Question) -> dict[str, Any]:
    return {"message": question.message, "requestedSchema": build_form(question)}


def _supports_forms(client: ClientInfo) -> bool:
    """True if the client declares forms; `elicitation` without a mode means forms."""
    modes = client.capabilities.get("elicitation")
    return isinstance(modes, Mapping) and ("form" in modes or "url" not in modes)


def _supports_links(client: ClientInfo) -> bool:
    modes = client.capabilities.get("elicitation")
    return isinstance(modes, Mapping) and "url" in modes


def _diff_arguments(sent: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments that differ from those the client sent; None if there are none."""
    return {name: value for name, value in current.items() if name not in sent or sent[name] != value} or None
