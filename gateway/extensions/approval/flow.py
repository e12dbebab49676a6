"""Asking while the call waits: for whoever can put a question to a person and bring the answer."""

from __future__ import annotations

from dataclasses import replace

import anyio

from gateway.calls import Call, Outcome, Proceed
from gateway.errors import GatewayError
from gateway.extensions.approval.question import Answer, Approver, ConsentNeeded
from gateway.extensions.approval.store import ELICITATION, ROUNDS, Case, Desk, run


class Asking:
    """Goes on with a call that needs a person's consent: asks through `approver`, and calls again with the answer.

    While it asks, the call holds nothing: no slot, no deadline of the tool, no lock.
    """

    def __init__(self, proceed: Proceed, desk: Desk) -> None:
        self._proceed = proceed
        self._desk = desk

    async def go_on(self, call: Call, outcome: Outcome, approver: Approver, via: str) -> Outcome:
        """What comes of the call in the end; `outcome` is what came of it unasked. A question for the queue alone is
        handed back where a client would be asked."""
        sent = call.arguments
        for _ in range(ROUNDS):
            needed = outcome.error
            if not isinstance(needed, ConsentNeeded) or (via == ELICITATION and needed.question.route == "queue"):
                return outcome
            try:
                call = await self._agreed(call, needed, approver, via)
            except GatewayError as refusal:
                return Outcome(error=refusal, call_id=call.id)
            outcome = await run(self._proceed, call, sent)
        if not isinstance(outcome.error, ConsentNeeded):
            return outcome
        return Outcome(error=await self._desk.give_up(call), call_id=call.id)

    async def _agreed(self, call: Call, needed: ConsentNeeded, approver: Approver, via: str) -> Call:
        question = needed.question
        asked = replace(call, arguments=question.arguments, consent=None)
        case = await self._desk.open(call.id, question, via)
        answer = await self._answer(case, needed, approver)
        if answer is not None:
            going_on = await self._desk.close(case, asked, question.reason, answer)
            if going_on is not None:
                return going_on
        raise await self._desk.expire(case)

    async def _answer(self, case: Case, needed: ConsentNeeded, approver: Approver) -> Answer | None:
        """What a person says, None when nobody does in time."""
        answer: Answer | None = None
        try:
            with anyio.move_on_after(self._desk.settings.timeout):
                answer = await approver(needed.question)
        except BaseException as error:  # whoever asked has gone, or could not ask: the question is nobody's any more
            with anyio.CancelScope(shield=True):
                await self._desk.abandon(case, error if isinstance(error, GatewayError) else None)
            raise
        return answer
