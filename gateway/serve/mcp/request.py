"""One MCP request and its response, independent of transport and protocol version; the caller and chat of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from gateway.calls import LOCAL, Caller, ClientInfo, Progress, no_progress
from gateway.errors import Invalid
from gateway.identity import Principal
from gateway.protocol.jsonrpc import RequestId
from gateway.serve.mcp.sessions import Session

CHAT = "dev.toolgate/chat"
TRACEPARENT = "traceparent"
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}(-[0-9a-f]{2,32}){3}")

# Headers by which a proxy, or a client of one, shows that the gateway serves more than the person of this machine.
_OTHER_USERS = frozenset(["authorization", "cookie", "forwarded", "via", "x-forwarded-for", "x-real-ip"])


@dataclass(slots=True)
class Request:
    """A parsed request. `chat` is the connection's; a request may name another in `_meta`. `session` is None for a
    client of a modern version. `id` is that of the request where it is encoded by the fast path; `relayed` allows the
    bytes of an upstream's response to it to be passed on."""

    method: str
    params: Mapping[str, Any]
    version: str
    caller: Caller
    chat: str
    client: ClientInfo
    session: Session | None = None
    progress: Progress = no_progress
    id: RequestId = ""
    relayed: bool = False

    @property
    def modern(self) -> bool:
        return self.client.modern


@dataclass(slots=True)
class Response:
    """The response to a request: a result, or the bytes of its whole message. `error` is the code of an error response,
    `retry_after` the seconds after which the request may be sent again."""

    result: dict[str, Any] | None = None
    call_id: str | None = None
    message: bytes = b""
    error: int | None = None
    retry_after: int | None = None


@lru_cache(maxsize=4096)  # a few clients of each principal make all the calls
def caller_of(principal: Principal, client: str | None) -> Caller:
    """Return the caller of an MCP request. `client` is the client's own name for itself: recorded, never trusted."""
    return principal.caller("mcp", client)


def client_name(info: Mapping[str, Any]) -> str:
    """Return name and version of a client, as they are recorded with calls."""
    return f"{info['name']} {info['version']}"[:200]


def connection_chat(principal: Principal, named: str | None, session: Session | None = None, method: str = "") -> str:
    """Return the chat of a request that names none: the URL's or the command line's, the HTTP session's, the
    principal's default."""
    return named or (session and session.chat_for(method)) or principal.default_chat


def client_chat(principal: Principal, name: str, headers: Mapping[str, str], peer: str) -> str | None:
    """Return the chat that a client's HTTP sessions share when they continue each other (see `Session.chat_for`).

    None where users cannot be told apart: `LOCAL` is one person only without a proxy or another machine in between.
    """
    if principal.id == LOCAL and not (_is_loopback(peer) and _OTHER_USERS.isdisjoint(headers)):
        return None
    return principal.client_chat(name)


def _is_loopback(peer: str) -> bool:
    try:
        return ip_address(peer).is_loopback
    except ValueError:
        return False


def read_traceparent(header: bytes | None) -> str | None:
    """Return the trace that the header of an HTTP request names, by W3C Trace Context."""
    return header.decode() if header is not None and _TRACEPARENT.fullmatch(header) else None


def meta_text(meta: Mapping[str, Any], key: str) -> str | None:
    """Return a string of `_meta`, None if it is not there; any other type is refused."""
    value = meta.get(key)
    if value is not None and not isinstance(value, str):
        raise Invalid(f"_meta {key!r} must be a string")
    return value
