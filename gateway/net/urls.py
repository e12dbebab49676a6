"""URLs we may open: read strictly, once, and shown without what may be secret."""

from __future__ import annotations

import re

import httpx2

from gateway.errors import Invalid
from gateway.net.policy import canonical_host

INVALID_URL = "INVALID_URL"
_LONGEST = 8192
_START = re.compile(r"(https?)://([^/?#]*)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:@\[\]\\%]+)(?::([0-9]{0,5}))?")
_HIGHEST_PORT = 65535


def parse(text: str) -> httpx2.URL:
    """The URL in `text`, with its host in the form it is looked up in and without a fragment.

    Refused: every scheme but http and https, user names and passwords, zones, and all that one
    parser may read differently from another.
    """
    if len(text) > _LONGEST:
        raise _refused(f"it has more than {_LONGEST} characters")
    start = _START.match(text)
    if start is None:
        raise _refused("it must start with https:// or http:// and a host")
    if "@" in start[2]:
        raise _refused("it must not have a user name or password before the host")
    authority = _AUTHORITY.fullmatch(start[2])
    if authority is None or not (authority[2] is None or int(authority[2] or "1") in range(1, _HIGHEST_PORT + 1)):
        raise _refused("what stands between // and the next / must be a host, or host:port")
    try:
        url = httpx2.URL(text)
        return url.copy_with(host=canonical_host(url.raw_host.decode("ascii")), fragment=None)
    except (httpx2.InvalidURL, ValueError):
        raise _refused("its host, port or path is malformed") from None


def origin(url: httpx2.URL) -> str:
    """What messages and logs may say of a URL: paths and queries can hold keys."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _refused(reason: str) -> Invalid:
    return Invalid(f"this URL cannot be opened: {reason}", code=INVALID_URL)
