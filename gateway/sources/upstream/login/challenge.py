"""What a server says when it refuses us: its `WWW-Authenticate` header."""

from __future__ import annotations

import re

_BEARER = re.compile(r"\bbearer\b", re.IGNORECASE)


def parameter(header: str, name: str) -> str | None:
    found = re.search(rf'(?<![\w-]){name}\s*=\s*(?:"([^"]{{1,2000}})"|([^\s,"]{{1,2000}}))', header, re.IGNORECASE)
    return None if found is None else found[1] or found[2]


def wants_token(header: str) -> bool:
    return _BEARER.search(header) is not None
