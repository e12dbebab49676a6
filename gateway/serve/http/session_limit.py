"""The limit on HTTP sessions of the handshake era, for all clients together and for each one."""

from __future__ import annotations

import math
from collections import Counter
from ipaddress import AddressValueError, IPv6Address, IPv6Network

from mcp.server.streamable_http import StreamableHTTPServerTransport as Transport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from gateway.calls import LOCAL
from gateway.protocol.jsonrpc import INTERNAL_ERROR

SESSIONS, SESSIONS_PER_CLIENT = 1000, 500

_TOO_MANY = {"code": INTERNAL_ERROR, "message": "too many sessions are in use; close one or try again later"}


class SessionLimit:
    """At a limit, a new session ends the one that has been idle longest: one of the same client or, at the limit for
    all clients, of the client with the most sessions, if it has more. If there is none, the new session is refused.

    A client is a principal at a remote address. A session with a request in flight or an open stream is not idle.
    """

    def __init__(self, manager: StreamableHTTPSessionManager) -> None:
        self._manager = manager
        self._clients: dict[str, tuple[str, str]] = {}  # by session id
        # The SDK has no public hook for the moment in which it opens a session.
        self._serve = manager._serve_opening_request
        manager._serve_opening_request = self._serve_within_limit  # type: ignore[method-assign]

    async def _serve_within_limit(self, http_transport: Transport, scope: Scope, receive: Receive, send: Send) -> None:
        sessions, new = self._manager._server_instances, http_transport.mcp_session_id or ""
        self._clients = {key: client for key, client in self._clients.items() if key in sessions}
        client = LOCAL, _network(scope["client"][0] if scope["client"] else "")
        ended = self._find_session_to_end(client, new)
        self._clients[new] = client
        if ended is not None:
            # The manager forgets the session before it first awaits, so nobody else can choose it too.
            await self._manager._discard_session(ended, sessions[ended])
        if ended == new:
            response = JSONResponse({"jsonrpc": "2.0", "id": None, "error": _TOO_MANY}, 503, {"Retry-After": "1"})
            await response(scope, receive, send)
        else:
            await self._serve(http_transport, scope, receive, send)

    def _find_session_to_end(self, client: tuple[str, str], new: str) -> str | None:
        """Return the id of an idle session, `new` if no session may be ended, or None if there is room."""
        held = Counter(self._clients.values())
        is_full = held[client] >= SESSIONS_PER_CLIENT
        if not is_full and len(self._clients) < SESSIONS:
            return None
        idle = (
            (-held[owner], scope.deadline, key)
            for key, owner in self._clients.items()
            if owner == client or (not is_full and held[owner] > held[client])
            # The SDK ends an idle session at this deadline; it is infinite while the session is in use.
            if (scope := self._manager._server_instances[key].idle_scope) is not None and scope.deadline < math.inf
        )
        return min(idle, default=(0, 0, new))[-1]


def _network(address: str) -> str:
    """Return the address or, of an IPv6 address, its /64, all of which one machine can use."""
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except AddressValueError:
        return address
    return str(parsed.ipv4_mapped or IPv6Network((parsed, 64), strict=False))
