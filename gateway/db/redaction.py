"""Arguments without their secrets: what looks secret by its key is not written down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ..calls import to_json

REDACTED = "[redacted]"

_SECRET = {
    "apikey",
    "authorization",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "secret",
    "token",
}
_SECRET_KEYS = {"access", "api", "private", "secret"}  # … key
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_HINTS = (b"pass", b"secret", b"token", b"key", b"authorization", b"credential")


def redact(document: bytes) -> tuple[bytes, list[str]]:
    """The JSON document with secret values replaced, and the texts that were taken out of it."""
    folded = document.lower()
    for hint in _HINTS:  # every call passes here and most end here, within a microsecond
        if hint in folded:
            removed: list[str] = []
            return to_json(_without_secrets(json.loads(document), removed)), removed
    return document, []


def is_secret(key: str) -> bool:
    """Whether a key, or its last `_`, `-` or camelCase word, names a secret."""
    words = [word.lower() for word in _WORD.findall(key)]
    if words[-1:] == ["key"]:
        return len(words) > 1 and words[-2] in _SECRET_KEYS
    return bool(words) and words[-1] in _SECRET


def _without_secrets(value: Any, removed: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _told(key, item, removed) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item, removed) for item in value]
    return value


def _told(key: str, value: Any, removed: list[str]) -> Any:
    if not is_secret(key):
        return _without_secrets(value, removed)
    removed.extend(_texts(value))
    return REDACTED


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)
