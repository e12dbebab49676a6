"""Arguments without their secrets: what looks secret by its key, or its name in a URL, is not written down."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, unquote_plus

from gateway.calls import to_json
from gateway.secrets import REDACTED, is_secret

_HINTS = ("pass", "secret", "token", "key", "auth", "cookie", "credential", "bearer", "jwt", "pwd")
_ENCODED_HINTS = tuple(map(str.encode, _HINTS))

# A text that is a URL and nothing else. No command is: whoever has to agree to one must see all of it.
_URL = re.compile(r"(?:[A-Za-z][\w+.-]{0,30}:)?/[^\s$;|<>`\"'\\]+")
_PARAMETER = re.compile(r"([?&#])([^?&#=]+)=([^&#]+)")


def redact(document: bytes) -> tuple[bytes, list[str]]:
    """The JSON document with secret values replaced, and the texts that were taken out of it."""
    folded = document.lower()
    for hint in _ENCODED_HINTS:  # every call passes here and most end here, within a microsecond
        if folded.find(hint) >= 0:  # `in` first tries whether it is a number, and raises
            removed: list[str] = []
            return to_json(_without_secrets(json.loads(document), removed)), removed
    return document, []


def _without_secrets(value: Any, removed: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _told(key, item, removed) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item, removed) for item in value]
    if type(value) is str and "?" in value:
        return _without_parameters(value, removed)
    return value


def _without_parameters(url: str, removed: list[str]) -> str:
    """The URL without the secrets in its query; any other text as it is."""
    query = url.partition("?")[2].lower()
    for hint in _HINTS:
        if hint in query:
            secret = functools.partial(_parameter, removed)
            return _PARAMETER.sub(secret, url) if _URL.fullmatch(url) else url
    return url


def _parameter(removed: list[str], found: re.Match[str]) -> str:
    before, name, value = found.groups()
    if not is_secret(unquote(name)):
        return found[0]
    removed.extend(dict.fromkeys((value, unquote_plus(value))))
    return f"{before}{name}={REDACTED}"


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
