"""Known secret values, and their masking wherever something is stored, logged or shown to an operator.

A value becomes known where a `${VAR}` is resolved or a secret is handed to a toolset. The registry is process-wide, as
the environment and the log are. What a tool returns to its caller is not masked.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote

REDACTED = "[redacted]"
SHORTEST = 6  # characters; shorter values would mask ordinary words
_SHORTEST_ARGUMENT = 4
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
# Words, versions, paths, hosts and URLs: values of variables such as LANG, PROJECT or SEARCH_URL.
_PLAIN = re.compile(r"[\s.,:/\\_@~=+-]*(?:(?:[A-Za-z]{1,15}[0-9]{0,3}|[0-9]{1,5})(?:[\s.,:/\\_@~=+-]+|$))*")
_SCHEME = re.compile(r"^(?:bearer|basic|token|digest|apikey|key)\s+", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^\s/?#@:\"'<>\\]*:)([^\s/?#\"'<>\\]+)(?=@)")
_URL_MARGIN = 512  # bytes in which the password of a URL ends
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_URL_SAFE = str.maketrans("+/", "-_")


def is_secret(key: str) -> bool:
    """Return whether a key, or its last `_`, `-` or camelCase word, names a secret."""
    words = [word.lower() for word in _WORD.findall(key)]
    if words[-1:] == ["key"]:
        return len(words) > 1 and words[-2] in _SECRET_KEYS
    return bool(words) and words[-1] in _SECRET


def blot(value: Any, secrets: Iterable[str]) -> Any:
    """Replace those texts wherever they stand in `value`, keys and numbers included."""
    long = {secret for secret in secrets if len(secret) >= _SHORTEST_ARGUMENT}
    forms = sorted(long | {form for secret in long for form in _escape(secret)}, key=len, reverse=True)
    return _map_texts(value, lambda text: _replace(text, forms))


class KnownSecrets:
    """The secret values of this process. Without any, masking only looks for passwords in URLs."""

    def __init__(self) -> None:
        self.margin = _URL_MARGIN
        """Bytes a text must be read beyond where it is cut, so that no secret is cut in two and missed."""
        self._values: dict[object, str] = {}
        self._forms: tuple[str, ...] = ()

    def add(self, value: str, owner: object = None) -> None:
        """Mask `value` from now on, unless it is too short. Replaces the last value of the same `owner`."""
        value = value.strip()
        key = value if owner is None else owner
        if self._values.get(key) == value or len(value) < SHORTEST or value in REDACTED:
            return
        self._values[key] = value
        forms = {form for known in list(self._values.values()) for form in _forms(known)}
        # The longest first: a form may contain another one.
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        self.margin = max(_URL_MARGIN, *(len(form.encode(errors="replace")) for form in forms))

    def add_variable(self, name: str, value: str, field: str = "") -> None:
        """Add the value of a variable used in `field`. A plain value is taken for a secret only by either name."""
        if is_secret(name) or is_secret(field) or not _PLAIN.fullmatch(value):
            self.add(value)
        for match in _URL_PASSWORD.finditer(value):
            self.add(unquote(match[2]))

    def add_literal(self, value: str, field: str) -> None:
        """Add a value written into the settings, without its scheme, if the field is named like a secret."""
        if is_secret(field):
            self.add(_SCHEME.sub("", value, count=1))

    def mask(self, text: str) -> str:
        """`text` without known secrets, also escaped as JSON, percent-encoded or in base64, and URL passwords."""
        text = _replace(text, self._forms)
        if "@" in text and "://" in text:  # one character is found much faster than three
            return _URL_PASSWORD.sub(rf"\1{REDACTED}", text)
        return text

    def mask_json(self, document: str) -> str:
        """A JSON document with its texts, keys and numbers masked."""
        if self.mask(document) == document:
            return document
        return json.dumps(self.mask_value(json.loads(document)), ensure_ascii=False, separators=(",", ":"))

    def mask_value(self, value: Any) -> Any:
        return _map_texts(value, self.mask)


KNOWN = KnownSecrets()


class MaskingFormatter(logging.Formatter):
    """Masks known secrets in log lines, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return KNOWN.mask(super().format(record))


def _forms(value: str) -> set[str]:
    once = _escape(value)
    quoted = {quote(value, safe=safe, errors="replace") for safe in ("", "/", "!'()*")}
    quoted.add(quote_plus(value, errors="replace"))
    lower = {_PERCENT.sub(lambda code: code[0].lower(), form) for form in quoted}
    twice = {form for text in once for form in _escape(text)}  # JSON inside a text of a JSON document
    return {value} | once | twice | quoted | lower | _base64(value)


def _escape(text: str) -> set[str]:
    return {json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}


def _base64(value: str) -> set[str]:
    """The characters that hold bits of `value` alone, for each of the three places it can have in a group."""
    encoded = value.encode(errors="replace")
    forms = set()
    for before, start in ((0, 0), (1, 2), (2, 3)):
        text = base64.b64encode(bytes(before) + encoded).decode()[start : (before + len(encoded)) * 8 // 6]
        forms |= {text, text.translate(_URL_SAFE)}
    return forms


def _replace(text: str, forms: Iterable[str]) -> str:
    for form in forms:
        if form in text:
            text = text.replace(form, REDACTED)
    return text


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_texts(key, change): _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(item, change) for item in value]
    if isinstance(value, int | float) and change(str(value)) == REDACTED:
        return REDACTED
    return value
