"""HTTP requests as bytes: where they go, and headers that stay in their lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

from gateway.errors import Invalid
from gateway.mcp_client.endpoints import HttpEndpoint

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
