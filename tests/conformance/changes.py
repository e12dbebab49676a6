"""Changed lists: told to `subscriptions/listen` streams and to every initialized handshake-era connection."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ServerEvent
from mcp.shared.subscriptions import event_to_notification

from .asking import Context, connection


class Changes:
    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self._counts: Counter[type[ServerEvent]] = Counter()
        self._sessions: dict[Any, ServerSession] = {}

    def count(self, kind: type[ServerEvent]) -> int:
        return self._counts[kind]

    async def publish(self, event: ServerEvent) -> None:
        self._counts[type(event)] += 1
        await self.bus.publish(event)
        for session in list(self._sessions.values()):
            await session.send_notification(event_to_notification(event, {}))

    async def remember(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Middleware: the SDK's bus reaches the 2026-07-28 era only."""
        answer = await call_next(ctx)
        if ctx.method == "notifications/initialized":
            self._sessions[connection(ctx)] = ctx.session
            connection(ctx).exit_stack.callback(self._sessions.pop, connection(ctx), None)
        return answer


CHANGES = Changes()
