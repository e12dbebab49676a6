"""One request on its way: what may be sent, and what becomes of it when a server sends it on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urljoin

import httpx2

from gateway import __version__
from gateway.errors import Forbidden, Invalid
from gateway.net import errors
from gateway.net.urls import origin, parse

INSECURE_REDIRECT = "INSECURE_REDIRECT"
REDIRECTS = frozenset({301, 302, 303, 307, 308})
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_METHODS = IDEMPOTENT | {"POST", "PATCH"}

# Headers that decide where a request ends and an answer begins; a caller has no say in them.
_OURS = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)

# Headers another server may see too. Any other can be a key: `X-Api-Key` is as good as `Authorization`.
_FOR_ANYONE = frozenset({"accept", "accept-language", "content-language", "content-type", "user-agent"})

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_HEADER_BYTES = 32 * 1024


@dataclass(frozen=True)
class Hop:
    """A request to one server, without what the connection adds to it."""

    method: str
    url: httpx2.URL
    headers: Mapping[str, str]
    body: bytes | None

    @property
    def origin(self) -> str:
        return origin(self.url)

    def redirected(self, status: int, location: str) -> Hop:
        """The request to send next. It never leaves https, and takes no key to another server."""
        try:
            url = parse(urljoin(str(self.url), location))
        except (Invalid, ValueError):
            raise errors.bad_answer(self.origin, "it redirects to a URL that cannot be opened") from None
        if self.url.scheme == "https" and url.scheme != "https":
            reason = f"{self.origin} redirects from https to plain http, {origin(url)}, which is not followed"
            raise Forbidden(reason, code=INSECURE_REDIRECT, host=url.raw_host.decode("ascii"))
        hop = replace(self, url=url)
        if status == 303 or (status in (301, 302) and self.method == "POST"):
            hop = replace(hop, method="HEAD" if self.method == "HEAD" else "GET", body=None)
            hop = hop.keeping(lambda name: not name.startswith("content-"))
        if hop.origin != self.origin:
            hop = hop.keeping(lambda name: name in _FOR_ANYONE)
        return hop

    def keeping(self, wanted: Callable[[str], bool]) -> Hop:
        return replace(self, headers={name: value for name, value in self.headers.items() if wanted(name)})

    def build(self, connect_seconds: float) -> httpx2.Request:
        """The request as `httpx2` sends it. Its only time limit is for connecting: the whole has its own."""
        own = {"user-agent": f"toolgate/{__version__}", "accept": "*/*", "accept-encoding": "gzip"}
        return httpx2.Request(
            self.method,
            self.url,
            headers=httpx2.Headers({**own, **self.headers}, encoding="latin-1"),
            content=self.body,
            extensions={"timeout": {"connect": connect_seconds, "read": None, "write": None, "pool": None}},
        )


def first_hop(method: str, url: str, headers: Mapping[str, str] | None, body: bytes | None) -> Hop:
    """A checked request; `Invalid` names what is wrong with it, and never shows a header's value."""
    if method.upper() not in _METHODS:
        raise _refused(f"{method[:20]!r} is none of the methods {', '.join(sorted(_METHODS))}")
    checked: dict[str, str] = {}
    for name, value in (headers or {}).items():
        low = name.lower()
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise _refused(f"the header {name[:40]!r} has characters that HTTP does not allow")
        if low in _OURS or low.startswith("proxy-"):
            raise _refused(f"the header {name!r} is set by the gateway alone; leave it out")
        if low in checked:
            raise _refused(f"the header {name!r} is there twice")
        checked[low] = value
    if sum(len(name) + len(value) for name, value in checked.items()) > _HEADER_BYTES:
        raise _refused(f"its headers are larger than {_HEADER_BYTES} bytes")
    return Hop(method.upper(), parse(url), checked, body)


def _refused(reason: str) -> Invalid:
    return Invalid(f"this request cannot be sent: {reason}", code="INVALID_REQUEST")
