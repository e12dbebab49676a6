"""Sessions of the handshake versions: a client after its `initialize`, its calls in progress, and requests to it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from gateway.calls import Caller
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, RpcError
from gateway.serve.mcp.notifications import Send, Subscriber

# Maximum number of questions that wait for one client's answer.
QUESTIONS = 64

# The time in which a client is told that a question is withdrawn, in seconds.
WITHDRAW_SECONDS = 1.0

# Sends a message to the client, on the stream of the request it belongs to.
Notify = Callable[[Mapping[str, Any]], Awaitable[None]]


class Cancellable(Protocol):
    """A call in progress."""

    def cancel(self) -> object: ...


class Session:
    """One client. `calls` are its calls in progress, by request id as text, since some clients cancel 7 as "7".
    `level` is the lowest log level it wants. `subscriber` gets its notifications. Over HTTP it has a chat: `own_chat`,
    or the `client_chat` that it shares with other sessions of its client."""

    def __init__(
        self,
        version: str,
        capabilities: Mapping[str, Any],
        caller: Caller,
        send: Send,
        own_chat: str | None = None,
        client_chat: str | None = None,
    ) -> None:
        self.version = version
        self.capabilities = capabilities
        self.caller = caller
        self.level: str | None = None
        self.subscriber = Subscriber(caller.principal, send)
        self.calls: dict[str, Cancellable] = {}
        self._questions: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._own_chat = own_chat
        self.chat = client_chat or own_chat
        self._is_undecided = client_chat is not None

    def chat_for(self, method: str) -> str | None:
        """Return the chat of a request; the session's first `tools/list` or `tools/call` decides which one.

        A client that keeps its session lists the tools in it, and that conversation has a chat of its own. A session
        that calls a tool it has not listed continues the work of another one: some clients open a session per call.
        """
        if self._is_undecided and method in ("tools/list", "tools/call"):
            self._is_undecided = False
            if method == "tools/list":
                self.chat = self._own_chat
        return self.chat

    async def ask(self, notify: Notify, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the client and return its answer, which arrives in a message of its own."""
        if len(self._questions) >= QUESTIONS:
            raise RpcError(INTERNAL_ERROR, f"{QUESTIONS} questions wait for an answer already")
        number = f"toolgate-{next(self._numbers)}"  # the SDK numbers its own questions without a prefix
        pending = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            await notify({"jsonrpc": "2.0", "id": number, "method": method, "params": dict(params)})
            return _parse_response(await pending)
        except asyncio.CancelledError:
            await _withdraw(notify, number)
            raise
        finally:
            del self._questions[number]

    def take_reply(self, message: Mapping[str, Any]) -> bool:
        """Take the response to a question of this session, or the cancellation of one of its calls; return False for
        any other message."""
        if "method" in message:
            params = message.get("params") if message["method"] == "notifications/cancelled" else None
            return isinstance(params, dict) and self._cancel(params.get("requestId"))
        pending = self._questions.get(str(message.get("id")))
        if pending is None:
            return False
        if not pending.done():
            pending.set_result(message)
        return True

    def _cancel(self, request_id: Any) -> bool:
        call = self.calls.get(str(request_id)) if type(request_id) in (int, str) else None
        if call is None:
            return False
        call.cancel()
        return True

    def end(self) -> None:
        for call in list(self.calls.values()):
            call.cancel()


class Sessions:
    """Every session, by its id; the one over stdio has the id None. `end_chat` is called with the id of an HTTP session
    that has ended, which is the id of its chat unless its requests named another."""

    def __init__(
        self,
        on_open: Callable[[Session], None],
        on_close: Callable[[Session], None],
        end_chat: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_open = on_open
        self._on_close = on_close
        self._end_chat = end_chat
        self._open: dict[Hashable, Session] = {}

    def get(self, session_id: Hashable) -> Session | None:
        return self._open.get(session_id)

    def open(self, session_id: Hashable, session: Session) -> None:
        self._open[session_id] = session
        self._on_open(session)

    def close(self, session_id: Hashable) -> None:
        session = self._open.pop(session_id, None)
        if session is not None:
            self._on_close(session)
            session.end()
            if isinstance(session_id, str):
                self._end_chat(session_id)


async def _withdraw(notify: Notify, number: str) -> None:
    """Tell the client that nobody waits for its answer any more, if it reads at all."""
    params = {"requestId": number, "reason": "the question was withdrawn"}
    with suppress(Exception):
        async with asyncio.timeout(WITHDRAW_SECONDS):
            await notify({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})


def _parse_response(message: Mapping[str, Any]) -> dict[str, Any]:
    match message:
        case {"result": dict(result)}:
            return result
        case {"error": {"code": int(code), "message": str(text), **rest}}:
            raise RpcError(code, text, rest.get("data"))
    raise RpcError(INVALID_REQUEST, "the client answered with neither result nor error")
