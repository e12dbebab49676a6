"""Changes: telling clients of both protocol eras that a list has changed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

log = logging.getLogger(__name__)


class Changes:
    """Clients of the 2026-07-28 era ask with `subscriptions/listen` and are served by the SDK's
    bus. The SDK has nothing for the handshake era: there every initialized connection is told."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus)
        self._sessions: dict[Any, ServerSession] = {}
        self._gathering = False
        self._announcements: set[asyncio.Task[None]] = set()

    async def middleware(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Remember each handshake-era connection for as long as it lives."""
        answer = await call_next(ctx)
        if ctx.method == "notifications/initialized":
            connection = ctx.session._connection  # the SDK has no public way to a connection's end
            self._sessions[connection] = ctx.session
            connection.exit_stack.callback(self._sessions.pop, connection, None)
        return answer

    def tools_changed(self) -> None:
        """Announce it; several changes before the announcement has left become one."""
        if not self._gathering:
            self._gathering = True
            task = asyncio.get_running_loop().create_task(self._announce())
            self._announcements.add(task)
            task.add_done_callback(self._announcements.discard)

    def close(self) -> None:
        self.listen.close()

    async def _announce(self) -> None:
        await asyncio.sleep(0)  # let the changes of this turn of the loop gather
        self._gathering = False
        await self._bus.publish(ToolsListChanged())
        await asyncio.gather(*(self._tell(session) for session in list(self._sessions.values())))

    async def _tell(self, session: ServerSession) -> None:
        """One client that does not read must not keep the others from hearing."""
        try:
            async with asyncio.timeout(5):
                await session.send_notification(types.ToolListChangedNotification())
        except Exception as error:
            log.debug("a client could not be told of a changed list: %r", error)
