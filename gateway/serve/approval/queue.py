"""The queue: calls whose question is answered elsewhere, while their caller waits a moment or comes back later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from gateway.calls import Call, Outcome, Proceed
from gateway.errors import Conflict, GatewayError, InputRequired
from gateway.extensions.approval import ConsentNeeded, Question
from gateway.extensions.approval.store import QUEUE, ROUNDS, Case, Desk, agreed, declined, run

# How often one look for all who wait asks whether anything was decided.
LOOK_SECONDS = 0.25


class Queue:
    """Writes questions down for `toolgate approval`, and lets a call go on once its own was allowed: once, for the
    same caller, chat, tool and arguments."""

    def __init__(self, proceed: Proceed, desk: Desk) -> None:
        self._proceed = proceed
        self._desk = desk
        self._news = News(desk.approvals.revision)

    async def go_on(self, call: Call, needed: ConsentNeeded) -> Outcome:
        """What comes of the call if it is allowed in time; else a refusal that says how to go on."""
        own = call.id
        for _ in range(ROUNDS):
            try:
                allowed = await self._allowed(call, own, needed.question)
            except GatewayError as refusal:
                return Outcome(error=refusal, call_id=own)
            outcome = await run(self._proceed, allowed, call.arguments)
            if not isinstance(outcome.error, ConsentNeeded):
                return outcome
            needed, own = outcome.error, allowed.id  # what it would do has changed since somebody agreed
        return Outcome(error=await self._desk.give_up(replace(call, id=own)), call_id=own)

    async def _allowed(self, call: Call, own: str, question: Question) -> Call:
        """The call with the consent that somebody gave in the queue; refuses while nobody has."""
        approvals = self._desk.approvals
        case = await self._case(own, question)
        deadline = asyncio.get_running_loop().time() + self._desk.settings.queue_wait
        while True:
            seen = await approvals.revision()
            record = await approvals.get(case.id)
            if record.status == "denied":
                raise declined(record)
            if record.status == "allowed" and await approvals.consume(case.id):
                asked = replace(call, arguments=question.arguments)
                return agreed(Case(record, case.tool, case.arguments), asked, question.reason, str(record.decided_by))
            if record.status != "waiting":  # used by another call like this one, or over
                case = await self._case(own, question)
            elif not await self._news.beyond(seen, deadline):
                raise await self._unanswered(case, question)

    async def _unanswered(self, case: Case, question: Question) -> GatewayError:
        if await self._desk.approvals.find(question.digest, QUEUE) is None:
            return await self._desk.expire(case)
        return _waiting(case.id, case.record.call_id, question)

    async def _case(self, own: str, question: Question) -> Case:
        """The entry that is there for this very question, else a new one."""
        record = await self._desk.approvals.find(question.digest, QUEUE)
        if record is None:
            return await self._desk.open(own, question, QUEUE)
        if record.call_id != own:  # asked for before: it is that call which goes on
            there = Conflict(f"it was called before and goes on as call {record.call_id}", code="CONTINUED")
            await self._desk.end(own, there)
        return Case(record, question.tool, question.arguments)


class News:
    """Tells all who wait of a new revision, by one look for all of them, and by none while nobody waits."""

    def __init__(self, revision: Callable[[], Awaitable[int]], seconds: float = LOOK_SECONDS) -> None:
        self._revision = revision
        self._seconds = seconds
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._looking: asyncio.Task[None] | None = None

    async def beyond(self, seen: int, deadline: float) -> bool:
        """Wait for a revision after `seen`; False when the event loop's time is `deadline` first."""
        loop = asyncio.get_running_loop()
        left = deadline - loop.time()
        if left <= 0:
            return False
        news = loop.create_future()
        self._waiting[news] = seen
        if self._looking is None or self._looking.done():
            self._looking = loop.create_task(self._look())
        try:
            await asyncio.wait_for(news, left)
        except TimeoutError:
            return False
        finally:
            del self._waiting[news]
        return True

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._seconds)
            with suppress(GatewayError):  # a store that does not answer now may answer next time
                now = await self._revision()
                for news, seen in self._waiting.items():
                    if now > seen and not news.done():
                        news.set_result(None)


def _waiting(approval: str, call_id: str, question: Question) -> InputRequired:
    return InputRequired(
        f"{question.reason}. A person must agree first: say 'toolgate approval allow {approval}', then call again with "
        "the same arguments",
        reason=question.reason,
        approval=approval,
        call_id=call_id,
    )
