"""The short way over stdin and stdout: the lines it can answer never reach the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp_types import RequestId

from ..calls import DEFAULT_CHAT, LOCAL, Caller, to_json
from . import express
from .express import Express, Ready
from .mcp import McpFace
from .sessions import Session

Write = Callable[[bytes], Awaitable[None]]
"""Sends one line, without its end."""


class ExpressStdio:
    """`asked` is told the id of each request that is dealt with here, `answered` when it has its answer or will
    never have one."""

    def __init__(
        self, face: McpFace, write: Write, asked: Callable[[RequestId], None], answered: Callable[[RequestId], None]
    ) -> None:
        self._face = face
        self._write = write
        self._asked = asked
        self._answered = answered
        self._express = Express(face.tools)
        self._calls: dict[RequestId, asyncio.Task[None]] = {}

    def take(self, line: bytes) -> bool:
        """Whether the line is dealt with here; a request is answered later."""
        message = express.parse(line)
        if message is None:
            return False
        session = self._face.sessions.get(None)
        if self._settles(session, message):
            return True
        request = self._ready(session, message)
        if request is None or request.id in self._calls:
            return False
        self._asked(request.id)
        task = asyncio.get_running_loop().create_task(self._express.answer(request, _Reply(self._write)))
        self._calls[request.id] = task
        if session is not None:
            session.calls[request.id] = task
        task.add_done_callback(lambda _: self._over(session, request.id))
        return True

    async def close(self) -> None:
        """Call off what is still under way."""
        tasks = list(self._calls.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ready(self, session: Session | None, message: Mapping[str, Any]) -> Ready | None:
        chat = self._face.chat or DEFAULT_CHAT
        if session is not None:
            return express.in_session(message, session, chat)
        return express.modern(message, Caller(principal=LOCAL, surface="mcp"), chat)

    def _settles(self, session: Session | None, message: Mapping[str, Any]) -> bool:
        """Whether this is no request but the client's word about one under way here."""
        if message.get("method") == "notifications/cancelled":
            params = message.get("params")
            request_id = params.get("requestId") if isinstance(params, dict) else None
            call = self._calls.get(request_id) if isinstance(request_id, int | str) else None
            return call is not None and call.cancel()
        return session is not None and "method" not in message and session.answered(message)

    def _over(self, session: Session | None, request_id: RequestId) -> None:
        del self._calls[request_id]
        if session is not None:
            session.calls.pop(request_id, None)
        self._answered(request_id)


class _Reply:
    """An answer as a line, after those said before it."""

    def __init__(self, write: Write) -> None:
        self._write = write

    async def say(self, message: Mapping[str, Any]) -> None:
        await self._write(to_json(message))

    async def end(self, answer: bytes, *, error: int | None = None, call_id: str | None = None) -> None:
        await self._write(answer)
