"""One MCP request and its response, independent of transport and protocol version; the caller and chat of a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address
from typing import Any

from gateway.calls import DEFAULT_CHAT, LOCAL, Caller, ClientInfo, Progress, no_progress
from gateway.errors import Invalid
from gateway.serve.mcp.sessions import Session

CHAT = "dev.toolgate/chat"

# Headers by which a proxy, or a client of one, shows that the gateway serves more than the person of this machine.
_OTHER_USERS = frozenset(["authorization", "cookie", "forwarded", "via", "x-forwarded-for", "x-real-ip"])


@dataclass(slots=True)
class Request:
    """A parsed request. `chat` is the connection's; a request may name another in `_meta`. `session` is None for a
    client of a modern version."""

    method: str
    params: Mapping[str, Any]
    version: str
    caller: Caller
    chat: str
    client: ClientInfo
    session: Session | None = None
    progress: Progress = no_progress

    @property
    def modern(self) -> bool:
        return self.client.modern


@dataclass(slots=True)
class Response:
    """The response to a request: a result, or the whole message of an upstream, to be sent unchanged."""

    result: dict[str, Any] | None = None
    call_id: str | None = None
    message: bytes | None = None


def principal_of(_headers: Mapping[str, str] | Mapping[bytes, bytes] | None) -> str:
    """Return the principal of a request, for every transport. `_headers` are those of an HTTP request; over stdio there
    are none, and the caller owns the process."""
    return LOCAL


@lru_cache(maxsize=256)  # a few clients make all the calls
def caller_of(principal: str, client: str | None) -> Caller:
    """Return the caller of an MCP request. `client` is the client's own name for itself: recorded, never trusted."""
    return Caller(principal=principal, surface="mcp", client=client)


def client_name(info: Mapping[str, Any]) -> str:
    """Return name and version of a client, as they are recorded with calls."""
    return f"{info['name']} {info['version']}"[:200]


def connection_chat(named: str | None, session: Session | None = None, method: str = "") -> str:
    """Return the chat of a request that names none: the URL's or the command line's, the HTTP session's."""
    return named or (session and session.chat_for(method)) or DEFAULT_CHAT


def client_chat(principal: str, name: str, headers: Mapping[str, str], peer: str) -> str | None:
    """Return the chat that a client's HTTP sessions share when they continue each other (see `Session.chat_for`).

    None where users cannot be told apart: `LOCAL` is one person only without a proxy or another machine in between.
    """
    if principal == LOCAL and not (_is_loopback(peer) and _OTHER_USERS.isdisjoint(headers)):
        return None
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    digest = sha256(f"{principal}\0{name}".encode()).hexdigest()
    return f"client-{readable}-{digest[:8]}"


def _is_loopback(peer: str) -> bool:
    try:
        return ip_address(peer).is_loopback
    except ValueError:
        return False


def meta_text(meta: Mapping[str, Any], key: str) -> str | None:
    """Return a string of `_meta`, None if it is not there; any other type is refused."""
    value = meta.get(key)
    if value is not None and not isinstance(value, str):
        raise Invalid(f"_meta {key!r} must be a string")
    return value
