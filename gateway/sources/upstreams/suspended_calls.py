"""Calls that wait for a client which cannot be asked while they run: it gets the questions, and calls again.

An older server asks in the middle of a call; the newest protocol has no way to hand that on. So the call to
the server goes on here, in a task of its own, while its caller goes away with the questions and comes back
with the answers.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gateway.calls import Ask, Call
from gateway.errors import Invalid, Unavailable

if TYPE_CHECKING:  # `forward` imports this module
    from gateway.sources.upstreams.forward import UpstreamRequest

PARKED_SECONDS = 600.0
PARKED_LIMIT = 1000
# Calls of one principal that may wait at once.
PARKED_EACH = 100

# How the state begins by which a client names a parked call.
STATE = "toolgate-parked-"

Result = dict[str, Any]
Start = Callable[[Ask, "UpstreamRequest"], Coroutine[Any, Any, Result]]


@dataclass(frozen=True)
class _Question:
    method: str
    params: Mapping[str, Any]
    answer: asyncio.Future[Result]


class SuspendedCalls:
    """Holds calls between a question and its answer: for a while, for so many, and each for its own caller alone."""

    def __init__(self, seconds: float = PARKED_SECONDS) -> None:
        self._seconds = seconds
        self._parked: dict[str, _Parked] = {}

    async def run(self, request: UpstreamRequest, start: Start) -> Result:
        """What the server answers, or an `input_required` result with what it asks first."""
        return await self._wait(_Parked(request, start))

    async def resume(self, request: UpstreamRequest) -> Result:
        """Go on with the call whose state this one brings, and with its answers. The state is used up by that;
        one that is refused is not."""
        said = request.client.answers
        state = str(said.get("requestState", ""))
        parked = self._parked.get(state)
        if parked is None or parked.request.identity != request.identity:
            # One answer for both: whoever tries states learns nothing from it.
            raise Invalid(
                "no call of yours waits under this state: it was answered before, it took too long, or it belongs to "
                "another call; call again without it",
                code="INVALID_STATE",
            )
        answers = parked.fitting(said.get("inputResponses"))
        del self._parked[state]
        parked.resume(request.call, answers)
        return await self._wait(parked)

    async def close(self) -> None:
        """Call off all that wait."""
        parked = list(self._parked.values())
        self._parked.clear()
        await asyncio.gather(*(each.end() for each in parked))

    async def _wait(self, parked: _Parked) -> Result:
        try:
            await parked.news()
        except asyncio.CancelledError:
            parked.cancel()
            raise
        if parked.task.done():
            return parked.task.result()
        try:
            self._refuse_too_many(parked.call)
        except Unavailable:
            parked.cancel()
            raise
        state = f"{STATE}{secrets.token_urlsafe(24)}"
        self._parked[state] = parked
        parked.expire(self._seconds, lambda: self._parked.pop(state, None))
        return {"resultType": "input_required", "inputRequests": parked.asked(), "requestState": state}

    def _refuse_too_many(self, call: Call) -> None:
        principal = call.caller.principal
        own = sum(each.call.caller.principal == principal for each in self._parked.values())
        if own >= PARKED_EACH or len(self._parked) >= PARKED_LIMIT:
            raise Unavailable("too many calls wait for answers already; answer those first", code="OVERLOADED")


class _Parked:
    """One call of a server, and who waits for it now."""

    def __init__(self, request: UpstreamRequest, start: Start) -> None:
        self.request = request
        self.call = request.call
        self._questions: dict[str, _Question] = {}
        self._numbers = itertools.count(1)
        self._news = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self.task = asyncio.get_running_loop().create_task(start(self._ask, self._told()))
        self.task.add_done_callback(self._finished)

    async def news(self) -> None:
        """Wait until it is done, or asks something."""
        await self._news.wait()

    def asked(self) -> dict[str, Any]:
        return {
            key: {"method": each.method, **({"params": dict(each.params)} if each.params else {})}
            for key, each in self._questions.items()
        }

    def fitting(self, answers: Any) -> dict[str, Result]:
        """The answers to all that is asked; refused when one is missing."""
        said = answers.items() if isinstance(answers, Mapping) else ()
        given = {key: answer for key, answer in said if isinstance(answer, dict)}
        if missing := sorted(self._questions.keys() - given.keys()):
            raise Invalid(f"inputResponses lacks an answer to: {', '.join(missing)}", code="ANSWER_MISSING")
        return given

    def resume(self, call: Call, answers: Mapping[str, Result]) -> None:
        self.call = call
        if self._expiry is not None:
            self._expiry.cancel()
        if not self.task.done():
            self._news.clear()
        for key, each in self._questions.items():
            if not each.answer.done():
                each.answer.set_result(answers[key])
        self._questions.clear()

    def expire(self, seconds: float, forget: Callable[[], object]) -> None:
        def over() -> None:
            forget()
            self.cancel()

        self._expiry = asyncio.get_running_loop().call_later(seconds, over)

    def cancel(self) -> None:
        self.task.cancel()

    async def end(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self.cancel()
        await asyncio.wait([self.task])

    async def _ask(self, method: str, params: Mapping[str, Any]) -> Result:
        question = _Question(method, params, asyncio.get_running_loop().create_future())
        key = f"question-{next(self._numbers)}"
        self._questions[key] = question
        self._news.set()
        try:
            return await question.answer
        finally:
            self._questions.pop(key, None)

    def _told(self) -> UpstreamRequest:
        """The request as the server's side sees it: what it reports goes to whoever waits at that moment."""

        async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
            await self.call.progress(done, total, message)

        async def log(said: Mapping[str, Any]) -> None:
            if self.call.client is not None and self.call.client.log is not None:
                await self.call.client.log(said)

        return self.request.by(replace(self.call, progress=progress, client=replace(self.request.client, log=log)))

    def _finished(self, task: asyncio.Task[Result]) -> None:
        with suppress(asyncio.CancelledError):
            task.exception()  # whoever would hear of it may never come back
        self._news.set()
