"""What a server says when it refuses us: its `WWW-Authenticate` header."""

from __future__ import annotations

import re

_BEARER = re.compile(r"\bbearer\b", re.IGNORECASE)
_PARAMETER = re.compile(r'(?<![\w-])([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.){0,2000})"|([^\s,"]{1,2000}))', re.ASCII)
_SCOPE = re.compile(r"[!#-\[\]-~]{1,500}")
_SCOPES_LIMIT = 200


def parameter(header: str, name: str) -> str | None:
    """The first of that name; what stands in quotes is no name."""
    given = (found for found in _PARAMETER.finditer(header) if found[1].lower() == name)
    return next((found[2] or found[3] for found in given), None)


def scopes(said: object) -> str | None:
    """The scopes of a text that are ones (RFC 6749, 3.3): others would be shown to people, and may be made to harm."""
    words = said.split()[:_SCOPES_LIMIT] if isinstance(said, str) else ()
    return " ".join(word for word in words if _SCOPE.fullmatch(word)) or None


def wants_token(header: str) -> bool:
    return _BEARER.search(header) is not None
