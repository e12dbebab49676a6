"""Sessions of the handshake era: what a client said of itself when it began, and what is under way with it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST
from starlette.requests import Request

from ..calls import Caller
from .peers import Context

QUESTIONS = 64
"""What may be asked of one client at once."""

COURTESY_SECONDS = 1.0
"""How long it may take to tell a client that a question is void."""

Say = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Sends a message to the client, on the stream of the request it belongs to."""


class Underway(Protocol):
    """A call that somebody waits for."""

    def cancel(self) -> object: ...


class Session:
    """One client. `calls` are those it waits for, by their request ids as text, since some clients call off 7 as "7";
    `level` is the least of log messages it
    wants at this moment."""

    def __init__(self, context: Context, caller: Caller, level: Callable[[], str | None]) -> None:
        known = context.session.client_capabilities
        self.version = context.protocol_version
        self.capabilities = known.model_dump(mode="json", by_alias=True, exclude_none=True) if known else {}
        self.caller = caller
        self.level = level
        self.calls: dict[str, Underway] = {}
        self._questions: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._numbers = itertools.count(1)

    async def ask(self, say: Say, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The client's answer to a question, which must come in a request of its own."""
        if len(self._questions) >= QUESTIONS:
            raise MCPError(INTERNAL_ERROR, f"{QUESTIONS} questions wait for an answer already")
        number = f"toolgate-{next(self._numbers)}"  # a name no other part of this server gives its questions
        waiting = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            await say({"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)})
            return _read(await waiting)
        except asyncio.CancelledError:
            await _withdraw(say, number)
            raise
        finally:
            del self._questions[number]

    def answered(self, message: Mapping[str, Any]) -> bool:
        """Take an answer to a question of ours; False when it is none."""
        waiting = self._questions.get(str(message.get("id")))
        if waiting is None or "method" in message:
            return False
        if not waiting.done():
            waiting.set_result(message)
        return True

    def called_off(self, request_id: Any) -> bool:
        """End a call the client gave up; False when it is none of those here."""
        call = self.calls.get(str(request_id)) if type(request_id) in (int, str) else None
        if call is None:
            return False
        call.cancel()
        return True

    def end(self) -> None:
        for call in list(self.calls.values()):
            call.cancel()


class Sessions:
    """Every client that has begun, by its session id; the one over stdio has none."""

    def __init__(self, level: Callable[[ServerSession], str | None]) -> None:
        self._level = level
        self._open: dict[str | None, Session] = {}

    def get(self, session_id: str | None) -> Session | None:
        return self._open.get(session_id)

    def open(self, context: Context, caller: Caller) -> None:
        """A client has begun; it is known until its connection ends."""
        request = context.request
        session_id = request.headers.get("mcp-session-id") if isinstance(request, Request) else None
        if session_id in self._open:  # it says so again; what is under way stays so
            return
        talk = context.session
        session = self._open[session_id] = Session(context, caller, lambda: self._level(talk))
        # The SDK has no public way to a connection's end.
        talk._connection.exit_stack.callback(self._ended, session_id, session)

    def _ended(self, session_id: str | None, session: Session) -> None:
        if self._open.get(session_id) is session:
            del self._open[session_id]
        session.end()


async def _withdraw(say: Say, number: str) -> None:
    """Tell the client that nobody waits for its answer any more; one that does not listen is not waited for."""
    params = {"requestId": number, "reason": "the question was called off"}
    with suppress(Exception):
        async with asyncio.timeout(COURTESY_SECONDS):
            await say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


def _read(message: Mapping[str, Any]) -> dict[str, Any]:
    match message:
        case {"result": dict(result)}:
            return result
        case {"error": {"code": int(code), "message": str(text), **rest}}:
            raise MCPError(code, text, rest.get("data"))
    raise MCPError(INVALID_REQUEST, "the client answered with neither result nor error")
