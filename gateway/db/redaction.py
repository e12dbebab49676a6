"""Arguments without their secrets: what looks secret by its key is not written down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..calls import to_json

REDACTED = "[redacted]"

_SHORTEST = 4  # shorter ones would blot out ordinary words
_SECRET = {
    "apikey",
    "auth",
    "authorization",
    "bearer",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "jwt",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "pwd",
    "secret",
    "token",
}
_SECRET_KEYS = {"access", "api", "auth", "private", "secret"}  # … key
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_HINTS = (b"pass", b"secret", b"token", b"key", b"auth", b"cookie", b"credential", b"bearer", b"jwt", b"pwd")


def redact(document: bytes) -> tuple[bytes, list[str]]:
    """The JSON document with secret values replaced, and the texts that were taken out of it."""
    folded = document.lower()
    for hint in _HINTS:  # every call passes here and most end here, within a microsecond
        if hint in folded:
            removed: list[str] = []
            return to_json(_without_secrets(json.loads(document), removed)), removed
    return document, []


def blot(value: Any, secrets: Iterable[str]) -> Any:
    """`value` with those texts blotted out wherever they stand in it, keys and numbers included."""
    return _blotted(value, _spellings(secrets))


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


def _spellings(secrets: Iterable[str]) -> list[str]:
    """The secrets as they are and as JSON inside a text spells them; the longest first, which may hold others."""
    long = {secret for secret in secrets if len(secret) >= _SHORTEST}
    quoted = {json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for secret in long for ascii_only in (True, False)}
    return sorted(long | quoted, key=len, reverse=True)


def _blotted(value: Any, spellings: list[str]) -> Any:
    if isinstance(value, str):
        for secret in spellings:
            value = value.replace(secret, REDACTED)
        return value
    if isinstance(value, Mapping):
        return {_blotted(key, spellings): _blotted(item, spellings) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_blotted(item, spellings) for item in value]
    if isinstance(value, int | float) and str(value) in spellings:
        return REDACTED
    return value
