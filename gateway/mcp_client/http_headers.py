"""HTTP requests as bytes: targets, header lines, and the routing headers of modern requests."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
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
from gateway.value import Value

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Methods whose requests state the length of their content also where there is none (RFC 9110, 8.6).
_WITH_CONTENT = ("POST", "PUT", "PATCH")
_LINE_BREAK = re.compile(r"[\r\n\0]")
_SAFE = "%/:=&?~+!$,;'@()*[]"
# Headers that only the client sets; configured values of them are ignored.
_RESERVED = frozenset(
    (
        *("accept", "accept-encoding", "connection", "content-length", "content-type", "expect", "last-event-id"),
        *("mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)


class HttpOrigin(Value):
    """The scheme, host and port of requests. Their secrets are never sent elsewhere."""

    tls: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class HttpTarget(Value):
    """An origin and a path with its query."""

    origin: HttpOrigin
    path: str

    @classmethod
    def parse(cls, url: str) -> HttpTarget:
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
        return cls(HttpOrigin(tls, host, port or (443 if tls else 80)), path)

    def join(self, location: str) -> HttpTarget:
        """Return the target of a location in a response from here."""
        scheme = "https" if self.origin.tls else "http"
        return HttpTarget.parse(urljoin(f"{scheme}://{self.origin.authority}{self.path}", location))


def endpoint_headers(endpoint: HttpEndpoint, target: HttpTarget) -> bytes:
    """Return the headers of every request to an endpoint."""
    given = {name.lower(): value for name, value in endpoint.headers.items() if name.lower() not in _RESERVED}
    return header_lines({"host": target.origin.authority, **given, "accept-encoding": "identity"}.items())


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Encode headers; a name or value that would break out of its line is refused."""
    lines = []
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or _LINE_BREAK.search(value):
            raise Invalid(f"not a header: {name[:80]!r}", code="INVALID_HEADER")
        lines.append(f"{name}: {value.strip()}\r\n")
    return "".join(lines).encode()


def frame(method: str, path: str, headers: bytes, body: bytes) -> bytes:
    """Encode a whole request."""
    length = b"content-length: %d\r\n\r\n" % len(body) if body or method in _WITH_CONTENT else b"\r\n"
    return b"".join((_start_line(method, path), headers, length, body))


@lru_cache(maxsize=256)  # a server is mostly asked at one path
def _start_line(method: str, path: str) -> bytes:
    return f"{method} {path} HTTP/1.1\r\n".encode("ascii")


# Arguments of a tool that are sent as headers too: the path of each, and the name of its header.
HeaderMap = Mapping[tuple[str, ...], str]


def routing_headers(
    version: str, method: str, params: Mapping[str, Any], header_maps: Mapping[str, HeaderMap]
) -> list[tuple[str, str]]:
    """Return the headers by which a proxy may route a modern request; they must agree with the body."""
    headers = [(MCP_PROTOCOL_VERSION_HEADER, version), (MCP_METHOD_HEADER, method)]
    key = NAME_BEARING_METHODS.get(method)
    if key is None or not isinstance(name := params.get(key), str):
        return headers
    headers.append((MCP_NAME_HEADER, _sdk_headers().encode_header_value(name)))
    if method == "tools/call" and (header_map := header_maps.get(name)):
        headers += _sdk_headers().mcp_param_headers(header_map, params.get("arguments") or {}).items()
    return headers


def header_maps(tools: Iterable[Any]) -> dict[str, HeaderMap]:
    """Return the header maps of listed tools that have one. A tool with invalid annotations has none."""
    maps: dict[str, HeaderMap] = {}
    for tool in tools:
        match tool:
            case {"name": str(name), "inputSchema": dict(schema)} if _mentions_headers(schema):
                if find_invalid_header(schema) is None:
                    maps[name] = _sdk_headers().x_mcp_header_map(schema)
    return maps


def load_header_rules(tools: Iterable[Any]) -> None:
    """Import the SDK's rules if a listed tool needs them. Call it on the event loop before a thread looks at the tools:
    of two threads that import packages with cycles at once, one gets a half-loaded module."""
    if any(isinstance(tool, Mapping) and _mentions_headers(tool) for tool in tools):
        _sdk_headers()


def find_invalid_header(schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the headers that an input schema declares, or None."""
    if not _mentions_headers(schema):
        return None
    problem: str | None = _sdk_headers().find_invalid_x_mcp_header(schema)
    return problem


def _mentions_headers(schema: Mapping[str, Any]) -> bool:
    return X_MCP_HEADER_KEY.encode() in to_json(schema)


@cache
def _sdk_headers() -> Any:
    """Return the SDK's rules for headers. Importing the SDK takes longer than the rest of a start, so that only a tool
    which needs them imports it."""
    importlib.import_module("mcp")  # first: see gateway.serve.mcp.sdk, which another thread may import now
    return importlib.import_module("mcp.shared.inbound")
