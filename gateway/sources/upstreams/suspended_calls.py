"""Suspended calls: calls that ask something in the middle and wait for input from a modern client.

A handshake-era server and a tool of steps do that, which the modern protocol does not allow. The call continues here in
a task, while the client gets `input_required` and calls again with its answers.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from gateway.calls import Ask, Call, ClientInfo
from gateway.errors import Invalid, Unavailable
from gateway.value import Value

SUSPENDED_SECONDS = 600.0
SUSPENDED_LIMIT = 1000
# Suspended calls per principal.
SUSPENDED_PER_PRINCIPAL = 100

# Prefix of the `requestState` of a suspended call.
STATE = "toolgate-parked-"

Result = dict[str, Any]


def is_resumed(client: ClientInfo) -> bool:
    """Return whether a modern client brings the answers to a question of a suspended call."""
    return bool(client.answers) and str(client.answers.get("requestState", "")).startswith(STATE)


class SuspendableRequest(Protocol):
    """A request whose call may be suspended. An answer is valid for the same `identity` only."""

    @property
    def call(self) -> Call: ...

    @property
    def client(self) -> ClientInfo: ...

    @property
    def identity(self) -> tuple[Any, ...]: ...

    def by(self, call: Call) -> Any: ...


Request = TypeVar("Request", bound=SuspendableRequest)
Start = Callable[[Ask, Request], Coroutine[Any, Any, Result]]


class _PendingQuestion(Value):
    method: str
    params: Mapping[str, Any]
    answer: asyncio.Future[Result]


class SuspendedCalls:
    """Calls between a question and its answer, limited in time and number. Only its own caller may resume one."""

    def __init__(self, seconds: float = SUSPENDED_SECONDS) -> None:
        self._seconds = seconds
        self._suspended: dict[str, _SuspendedCall[Any]] = {}

    async def run(self, request: Request, start: Start[Request]) -> Result:
        """Run a request: its result, or `input_required` with the server's questions."""
        return await self._wait(_SuspendedCall(request, start))

    async def resume(self, request: SuspendableRequest) -> Result:
        """Continue the call of this request's state with its answers. The state is used up unless it is refused."""
        response = request.client.answers
        state = str(response.get("requestState", ""))
        suspended = self._suspended.get(state)
        if suspended is None or suspended.request.identity != request.identity:
            # The same error for both, so that guessing states reveals nothing.
            raise Invalid(
                "no suspended call has this requestState: it was answered before, it expired, or it belongs to another "
                "call; call again without it",
                code="INVALID_STATE",
            )
        answers = suspended.check_answers(response.get("inputResponses"))
        del self._suspended[state]
        suspended.resume(request.call, answers)
        return await self._wait(suspended)

    async def close(self) -> None:
        """Cancel all suspended calls."""
        suspended = list(self._suspended.values())
        self._suspended.clear()
        await asyncio.gather(*(call.end() for call in suspended))

    async def _wait(self, suspended: _SuspendedCall[Any]) -> Result:
        try:
            await suspended.wait_for_progress()
        except asyncio.CancelledError:
            suspended.cancel()
            raise
        if suspended.task.done():
            return suspended.task.result()
        try:
            self._check_limits(suspended.call)
        except Unavailable:
            suspended.cancel()
            raise
        state = f"{STATE}{secrets.token_urlsafe(24)}"
        self._suspended[state] = suspended
        suspended.expire(self._seconds, lambda: self._suspended.pop(state, None))
        return {"resultType": "input_required", "inputRequests": suspended.input_requests(), "requestState": state}

    def _check_limits(self, call: Call) -> None:
        principal = call.caller.principal
        own = sum(each.call.caller.principal == principal for each in self._suspended.values())
        if own >= SUSPENDED_PER_PRINCIPAL or len(self._suspended) >= SUSPENDED_LIMIT:
            raise Unavailable("too many calls wait for answers; answer those first", code="OVERLOADED")


class _SuspendedCall(Generic[Request]):
    """One call to a server, and the client call that waits for it now."""

    def __init__(self, request: Request, start: Start[Request]) -> None:
        self.request = request
        self.call = request.call
        self._questions: dict[str, _PendingQuestion] = {}
        self._numbers = itertools.count(1)
        self._progress = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self.task = asyncio.get_running_loop().create_task(start(self._ask, self._server_request()))
        self.task.add_done_callback(self._finish)

    async def wait_for_progress(self) -> None:
        """Wait until the call is done or asks something."""
        await self._progress.wait()

    def input_requests(self) -> dict[str, Any]:
        return {
            key: {"method": each.method, **({"params": dict(each.params)} if each.params else {})}
            for key, each in self._questions.items()
        }

    def check_answers(self, answers: Any) -> dict[str, Result]:
        """The answers to all questions; refused when one is missing."""
        items = answers.items() if isinstance(answers, Mapping) else ()
        given = {key: answer for key, answer in items if isinstance(answer, dict)}
        if missing := sorted(self._questions.keys() - given.keys()):
            raise Invalid(f"inputResponses lacks an answer to: {', '.join(missing)}", code="ANSWER_MISSING")
        return given

    def resume(self, call: Call, answers: Mapping[str, Result]) -> None:
        self.call = call
        if self._expiry is not None:
            self._expiry.cancel()
        if not self.task.done():
            self._progress.clear()
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
        question = _PendingQuestion(method, params, asyncio.get_running_loop().create_future())
        key = f"question-{next(self._numbers)}"
        self._questions[key] = question
        self._progress.set()
        try:
            return await question.answer
        finally:
            self._questions.pop(key, None)

    def _server_request(self) -> Any:
        """The request to the server, whose progress and log go to the client call that waits at that moment."""

        async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
            await self.call.progress(done, total, message)

        async def log(message: Mapping[str, Any]) -> None:
            if self.call.client is not None and self.call.client.log is not None:
                await self.call.client.log(message)

        return self.request.by(self.call.replace(progress=progress, client=replace(self.request.client, log=log)))

    def _finish(self, task: asyncio.Task[Result]) -> None:
        with suppress(asyncio.CancelledError):
            task.exception()  # retrieved here: its client may never come back
        self._progress.set()
