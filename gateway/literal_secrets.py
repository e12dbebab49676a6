"""Finding literal secrets in the settings of servers and tools: in arguments, addresses, headers and texts. Where a
secret stands is decided here; whether it is replaced by a variable or refused is up to the caller."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gateway.secrets import (
    OPTION,
    PUBLIC_HEADERS,
    has_token_shape,
    hides_secret,
    is_plain_value,
    is_plain_word,
    is_secret,
    is_secret_parameter,
    looks_like_secret,
    may_be_secret,
)

_URL = re.compile(
    r"(?P<start>[A-Za-z][\w+.-]*://)(?:(?P<login>[^/?#\s]*)@)?(?P<host>[^/?#\s@]*)(?P<rest>.*)", re.DOTALL
)
_PIECE = re.compile(r"(?P<start>[?&;#])(?P<name>[^=&;#?]+)=(?P<value>[^&;#]*)|(?P<segment>[^/?&;#=]+)")
_PAIR = re.compile(r"(?P<name>[A-Za-z_][\w-]*)(?P<sign>=|:\s*)(?P<value>.+)", re.DOTALL)
_ASSIGNMENT = re.compile(
    r"(?<![\w-])(?P<name>[A-Za-z_][\w-]*)(?P<sign>[\"']?\s{0,9}[=:]\s{0,9}[\"']?)(?P<value>[\w+/=.~-]+)"
)
_WORD = re.compile(r"[^\s\"'<>,;]+")
# Options whose value is a header, and those whose value is `name:password`.
_HEADER_OPTIONS = frozenset({"H", "header", "proxy-header"})
_LOGIN_OPTIONS = frozenset({"u", "user", "U", "proxy-user"})
# Paths of files, digests, commits and UUIDs are as random as a token, but no secrets.
_PATH = re.compile(r"(?:~|\.\.?|[A-Za-z]:)?[/\\][^/\\]+[/\\].*", re.DOTALL)
_IDENTIFIER = re.compile(
    r"sha(?:1|256|384|512)[-:=/][\w+/=]{20,}|(?<=[@#])[0-9a-f]{40}\b"
    r"|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",
    re.IGNORECASE,
)

Replace = Callable[[str, str], str]


def is_secret_value(name: str, value: str) -> bool:
    """Return whether a value is a secret: its name or its look says so. A `key` may also be a column or a file."""
    return is_secret(name) or looks_random(value) or (is_secret_parameter(name) and not is_plain_value(value))


def looks_random(value: str) -> bool:
    """Return whether a value has a token, a password in a URL, or random characters that identify nothing."""
    if has_token_shape(value):
        return True
    return not _PATH.fullmatch(value) and looks_like_secret(_IDENTIFIER.sub(" ", value))


class LiteralSecrets:
    """Replaces literal secrets in settings. `replace` gets each of them with a name for it, and returns what stands in
    its place; a value with references comes there, too. `suspects` also takes what only may be a secret:
    where the value is kept elsewhere, one too many does no harm."""

    def __init__(self, replace: Replace, suspects: bool = False) -> None:
        self._replace = replace
        self._suspects = suspects
        self._is_secret = hides_secret if suspects else is_secret_value

    def mask_arguments(self, arguments: Iterable[str]) -> Iterator[str]:
        """`--token=abc`, `--token abc`, `-e TOKEN=abc`, `--header "Name: abc"`, `-u name:abc`, addresses, and whatever
        looks like a token by itself."""
        pending_option: str | None = None
        for argument in arguments:
            option = OPTION.fullmatch(argument)
            if option is not None and option["value"] is None:
                pending_option = option["name"]
                yield self._replace(argument, "argument") if looks_random(argument) else argument
            elif option is not None:
                start = argument[: option.start("value")]
                yield start + self._mask_option(option["name"], option["value"], option["name"])
                pending_option = None
            else:
                yield self._mask_option(pending_option, argument)
                pending_option = None

    def _mask_option(self, option: str | None, value: str, name: str = "argument") -> str:
        pair = _PAIR.fullmatch(value)
        if option in _HEADER_OPTIONS and pair is not None:
            return pair["name"] + pair["sign"] + self.mask_header(pair["name"], pair["value"])
        if option in _LOGIN_OPTIONS and ":" in value and "://" not in value:
            user, _, password = value.partition(":")
            return value if is_plain_value(password) else f"{user}:{self._replace(password, 'password')}"
        if option is not None and may_be_secret(option) and self._is_secret(option, value):
            return self._replace(value, option)
        if pair is not None and pair["sign"] == "=":
            return f"{pair['name']}={self._mask_named(pair['name'], pair['value'])}"
        if pair is not None and is_secret_parameter(pair["name"]) and not is_plain_value(pair["value"]):
            return pair["name"] + pair["sign"] + self.mask_header(pair["name"], pair["value"])
        return self._mask_named(name, value)

    def _mask_named(self, name: str, value: str) -> str:
        if not may_be_secret(name) and _URL.fullmatch(value):
            return self.mask_url(value)
        return self._replace(value, name) if self._is_secret(name, value) else value

    def mask_header(self, name: str, value: str) -> str:
        """A header's value; of suspected ones all but a plain word under a plain name."""
        secret = not is_plain_word(value) or may_be_secret(name) if self._suspects else self._is_secret(name, value)
        return self._replace(value, name) if secret and name.lower() not in PUBLIC_HEADERS else value

    def mask_url(self, url: str) -> str:
        """The password, what of the query is named like a secret, and what of the path looks like one."""
        parts = _URL.fullmatch(url)
        if parts is None:
            if url.startswith("/"):
                return _PIECE.sub(self._mask_piece, url)
            return self._replace(url, "url") if looks_random(url) else url
        user, colon, password = (parts["login"] or "").partition(":")
        if colon and password:
            password = self._replace(password, "password")
        if looks_random(user):
            user = self._replace(user, "user")
        login = f"{user}{colon}{password}@" if parts["login"] is not None else ""
        return parts["start"] + login + parts["host"] + _PIECE.sub(self._mask_piece, parts["rest"])

    def _mask_piece(self, match: re.Match[str]) -> str:
        if (segment := match["segment"]) is not None:
            return self._replace(segment, "url_token") if looks_random(segment) else segment
        value = match["value"]
        if value and (is_secret_parameter(match["name"]) or self._is_secret(match["name"], value)):
            value = self._replace(value, match["name"])
        return f"{match['start']}{match['name']}={value}"

    def mask_text(self, text: str) -> str:
        """A text of any kind: `password=abc123x` and words that look like tokens. Prose such as `token: the word` has
        no secret."""
        text = _ASSIGNMENT.sub(self._mask_assignment, text)
        return _WORD.sub(lambda word: self._mask_word(word[0]), text)

    def _mask_assignment(self, match: re.Match[str]) -> str:
        secret = is_secret_parameter(match["name"]) and not is_plain_value(match["value"])
        return match["name"] + match["sign"] + self._replace(match["value"], match["name"]) if secret else match[0]

    def _mask_word(self, word: str) -> str:
        if _URL.fullmatch(word):
            return self.mask_url(word)
        return self._replace(word, "text") if looks_random(word) else word

    def mask_value(self, value: Any, name: str = "") -> Any:
        """A JSON value: texts under keys that name a secret, and others as `mask_text` does."""
        if isinstance(value, str):
            return self._replace(value, name) if value and is_secret(name) else self.mask_text(value)
        if isinstance(value, Mapping):
            return {key: self.mask_value(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.mask_value(item, name) for item in value)
        return value
