"""The short way over stdin and stdout: the lines it can answer never reach the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
from mcp_types import CONNECTION_CLOSED, RequestId

from ..calls import DEFAULT_CHAT, LOCAL, to_json
from . import express
from .express import Express, Ready
from .mcp import McpFace
from .sessions import Session

Write = Callable[[bytes], Awaitable[None]]
"""Sends one line, without its end."""


CLOSE_SECONDS = 2.0
"""How long a call that is ended may take to let go."""


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
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._modern: bool | None = None
        self._closing = False

    def take(self, line: bytes) -> bool:
        """Whether the line is dealt with here; a request is answered later."""
        message = express.parse(line)
        if self._modern is None:  # the first request decides the era of the connection, and the SDK has to see it
            self._modern = _opens_modern(message)
            return False
        if message is None:
            return False
        session = self._face.sessions.get(None)
        if self._settles(session, message):
            return True
        request = self._ready(session, message)
        if request is None or str(request.id) in self._calls:
            return False
        self._asked(request.id)
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._calls[str(request.id)] = task
        if session is not None:
            session.calls[str(request.id)] = task
        task.add_done_callback(lambda _: self._over(session, request.id))
        return True

    async def close(self) -> None:
        """End what is still under way; its client is told."""
        self._closing = True
        tasks = list(self._calls.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

    async def _answer(self, request: Ready) -> None:
        try:
            written = await self._express.answer(request, self._say)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            written = express.failed(request.id, CONNECTION_CLOSED, "Connection closed")
        await self._write(written.message)

    async def _say(self, message: Mapping[str, Any]) -> None:
        await self._write(to_json(message))

    def _ready(self, session: Session | None, message: Mapping[str, Any]) -> Ready | None:
        chat = self._face.chat or DEFAULT_CHAT
        if session is not None:
            return express.in_session(message, session, chat)
        if not self._modern:
            return None
        return express.modern(message, LOCAL, chat)

    def _settles(self, session: Session | None, message: Mapping[str, Any]) -> bool:
        """Whether this is no request but the client's word about one under way here."""
        if message.get("method") == "notifications/cancelled":
            params = message.get("params")
            request_id = params.get("requestId") if isinstance(params, dict) else None
            call = self._calls.get(str(request_id)) if type(request_id) in (int, str) else None
            return call is not None and call.cancel()
        return session is not None and "method" not in message and session.answered(message)

    def _over(self, session: Session | None, request_id: RequestId) -> None:
        del self._calls[str(request_id)]
        if session is not None:
            session.calls.pop(str(request_id), None)
        self._answered(request_id)


def _opens_modern(message: Mapping[str, Any] | None) -> bool | None:
    """Whether a connection that begins with this is one of the newest era, where that is ours to see; None for what
    is no request."""
    match message:
        case {"id": int() | str(), "method": "initialize"}:
            return False
        case {"id": int() | str(), "method": str(), "params": {"_meta": {types.PROTOCOL_VERSION_META_KEY: _}}}:
            return True
        case {"id": int() | str(), "method": str()} | None:
            return False
    return None
