"""HTTP requests as bytes: targets, header lines, and the routing headers of modern requests."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from gateway.calls import to_json
from gateway.errors import Invalid
from gateway.mcp_client.endpoints import HttpEndpoint
from gateway.protocol import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    X_MCP_HEADER_KEY,
)

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_BREAK = re.compile(r"[\r\n\0]")
_SAFE = "%/:=&?~+!$,;'@()*[]"
# Headers that are ours to set; what a configuration says of them does not count.
_OURS = frozenset(
    (
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "expect", "last-event-id"),
        *("mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)


@dataclass(frozen=True)
class Origin:
    """Where requests go: their secrets never leave it."""

    tls: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True)
class Target:
    """An origin and the path there, with its query."""

    origin: Origin
    path: str

    @classmethod
    def parse(cls, url: str) -> Target:
        try:
            parts = urlsplit(url)
            port = parts.port
            name = parts.hostname or ""
            host = name if ":" in name else name.encode("idna").decode()
        except ValueError:
            raise Invalid(f"not a URL: {url.partition('?')[0][:200]!r}", code="INVALID_URL") from None
        if parts.scheme not in ("http", "https") or not host:
            raise Invalid("the URL of a server begins with http:// or https:// and names a host", code="INVALID_URL")
        if parts.username is not None:
            raise Invalid("put credentials into headers, not into the URL", code="INVALID_URL")
        tls = parts.scheme == "https"
        path = quote(parts.path or "/", safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE)}" if parts.query else "")
        return cls(Origin(tls, host, port or (443 if tls else 80)), path)

    def joined(self, location: str) -> Target:
        """Where a reply from here leads."""
        scheme = "https" if self.origin.tls else "http"
        return Target.parse(urljoin(f"{scheme}://{self.origin.authority}{self.path}", location))


def endpoint_headers(endpoint: HttpEndpoint, target: Target) -> bytes:
    """What every request to an endpoint carries."""
    given = {name.lower(): value for name, value in endpoint.headers.items() if name.lower() not in _OURS}
    return header_lines({"host": target.origin.authority, **given, "accept-encoding": "identity"}.items())


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Headers as they are sent; a name or value that would break out of its line is refused."""
    lines = []
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or _LINE_BREAK.search(value):
            raise Invalid(f"not a header: {name[:80]!r}", code="INVALID_HEADER")
        lines.append(f"{name}: {value.strip()}\r\n")
    return "".join(lines).encode()


def frame(method: str, path: str, headers: bytes, body: bytes) -> bytes:
    """A whole request."""
    start = f"{method} {path} HTTP/1.1\r\n".encode("ascii")
    length = b"content-length: %d\r\n\r\n" % len(body) if body or method == "POST" else b"\r\n"
    return b"".join((start, headers, length, body))


# Which arguments of a tool travel as headers too: the path of each, and its header's name.
HeaderMap = Mapping[tuple[str, ...], str]


def routing_headers(
    version: str, method: str, params: Mapping[str, Any], header_maps: Mapping[str, HeaderMap]
) -> list[tuple[str, str]]:
    """The headers by which an intermediary may route a modern request; they must say what the body says."""
    headers = [(MCP_PROTOCOL_VERSION_HEADER, version), (MCP_METHOD_HEADER, method)]
    key = NAME_BEARING_METHODS.get(method)
    if key is None or not isinstance(name := params.get(key), str):
        return headers
    headers.append((MCP_NAME_HEADER, _inbound().encode_header_value(name)))
    if method == "tools/call" and (header_map := header_maps.get(name)):
        headers += _inbound().mcp_param_headers(header_map, params.get("arguments") or {}).items()
    return headers


def header_maps(tools: Iterable[Any]) -> dict[str, HeaderMap]:
    """Of tools as listed: those with arguments that travel as headers. A tool whose annotations are
    invalid sends none."""
    found: dict[str, HeaderMap] = {}
    for tool in tools:
        match tool:
            case {"name": str(name), "inputSchema": dict(schema)} if _mentions_headers(schema):
                if find_invalid_header(schema) is None:
                    found[name] = _inbound().x_mcp_header_map(schema)
    return found


def find_invalid_header(schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the headers that an input schema declares."""
    if not _mentions_headers(schema):
        return None
    fault: str | None = _inbound().find_invalid_x_mcp_header(schema)
    return fault


def _mentions_headers(schema: Mapping[str, Any]) -> bool:
    return X_MCP_HEADER_KEY.encode() in to_json(schema)


@cache
def _inbound() -> Any:
    return importlib.import_module("mcp.shared.inbound")
