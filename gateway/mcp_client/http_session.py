"""The wire of streamable HTTP in the handshake eras: requests of one session, and a stream for what nobody asked."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway import protocol
from gateway.calls import to_json
from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client.errors import LinkLost, Unreachable
from gateway.mcp_client.http_connection import Reply
from gateway.mcp_client.http_headers import header_lines
from gateway.mcp_client.http_pool import Pool
from gateway.mcp_client.messages import Message, decode
from gateway.mcp_client.pending_request import Exchange
from gateway.mcp_client.streamable_http import HEARD, POSTED, REPEATABLE, TELL_SECONDS, Hearing, check, settle
from gateway.protocol import jsonrpc

if TYPE_CHECKING:
    from gateway.mcp_client.client import Link

RESUMPTIONS = 3
FAREWELL_SECONDS = 2.0
_RETRY_SECONDS = 1.0
_RETRY_LIMIT = 30.0
_log = logging.getLogger(__name__)


class SessionWire:
    """The stream a question comes on says whose it is. A server that forgot the session ends the link."""

    one_each = False

    def __init__(self, link: Link, pool: Pool) -> None:
        self._link = link
        self._pool = pool
        self._session: str | None = None
        self._shaken = False

    async def carry(self, exchange: Exchange, message: Message) -> None:
        hearing = Hearing(self._link, exchange)
        exchange.sent = True
        try:
            reply = await self._post(message, hearing, exchange.method in REPEATABLE)
        except LinkLost:
            if hearing.last_id is None:
                raise
            await self._resume(hearing, exchange)
            return
        if exchange.method == "initialize":
            self._session = reply.header(b"mcp-session-id") or None
            self._shaken = True
        self._check_session(reply)
        if reply.streaming and not exchange.answer.done() and hearing.last_id is not None:
            await self._resume(hearing, exchange)
        settle(self._link, exchange, reply)

    async def tell(self, message: Message) -> None:
        reply = await self._post(message)
        check(self._link, message.get("method", "an answer"), reply)
        if message.get("method") == "notifications/initialized" and self._session is not None:
            self._link.spawn(self._hear_unasked())

    def say(self, message: Message) -> None:
        self._link.spawn(self._try_to_tell(message))

    async def close(self) -> None:
        if self._session is not None:
            with suppress(TimeoutError, GatewayError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._pool.send("DELETE", self._headers())
        self._pool.close()

    async def _post(self, message: Message, hearing: Hearing | None = None, repeatable: bool = False) -> Reply:
        return await self._pool.send(
            "POST", POSTED + self._headers(), to_json(message), sink=hearing, repeatable=repeatable
        )

    def _headers(self, last_id: str | None = None) -> bytes:
        """What every request after the handshake carries."""
        if not self._shaken:
            return b""
        headers = [(protocol.MCP_PROTOCOL_VERSION_HEADER, self._link.era)]
        if self._session is not None:
            headers.append(("mcp-session-id", self._session))
        if last_id is not None:
            headers.append(("last-event-id", last_id))
        return header_lines(headers)

    def _check_session(self, reply: Reply) -> None:
        """404 says that the session is over; some older servers say it with 400 and in words."""
        if self._session is None or reply.status not in (400, 404):
            return
        match reply.status, decode(reply.body):
            case 404, [{"error": {"code": jsonrpc.METHOD_NOT_FOUND}}]:
                return
            case 400, [{"error": {"message": str(text)}}] if "session" in text.lower():
                pass
            case 400, _:
                return
        self._session = None
        lost = LinkLost(f"{self._link.label} has ended our session")
        self._link.lose(lost)
        raise lost.again()

    async def _try_to_tell(self, message: Message) -> None:
        try:
            async with asyncio.timeout(TELL_SECONDS):
                await self.tell(message)
        except (Unavailable, TimeoutError) as error:
            _log.debug("%s was not told something: %s", self._link.label, error)

    async def _resume(self, hearing: Hearing, exchange: Exchange) -> None:
        """A stream that broke off is taken up again where it ended, by servers that can."""
        for _ in range(RESUMPTIONS):
            await asyncio.sleep(_RETRY_SECONDS if hearing.retry is None else min(hearing.retry / 1000, _RETRY_LIMIT))
            with suppress(LinkLost, Unreachable):
                reply = await self._pool.send("GET", HEARD + self._headers(hearing.last_id), sink=hearing)
                if not reply.streaming:
                    break
            if exchange.answer.done():
                return
        raise LinkLost(f"{self._link.label} broke off {exchange.method}, and it could not be resumed")

    async def _hear_unasked(self) -> None:
        hearing = Hearing(self._link)
        failures = 0
        while self._link.lost is None:
            failures += 1
            try:
                reply = await self._pool.send("GET", HEARD + self._headers(hearing.last_id), sink=hearing)
                self._check_session(reply)
                if reply.streaming:
                    failures = 0
                elif reply.status < 500:
                    return  # it offers no such stream
            except Unavailable as error:
                _log.debug("the stream of %s broke off: %s", self._link.label, error)
            wait = _RETRY_SECONDS * 2 ** min(failures, 5) if hearing.retry is None else hearing.retry / 1000
            await asyncio.sleep(min(wait, _RETRY_LIMIT))
