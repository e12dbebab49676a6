"""The one table of what is a secret, and the masking of it wherever something is stored, logged or shown.

A secret is recognised by its name (`is_secret`, `may_be_secret`), by its shape (`looks_like_secret`), or because it is
known: a value becomes known where a `${VAR}` is resolved or a secret is handed to a toolset. The registry of known
values is process-wide, as the environment and the log are. What a tool returns to its caller is not masked.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import logging
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

REDACTED = "[redacted]"
SHORTEST = 6  # characters; shorter values would mask ordinary words
_SHORTEST_ARGUMENT = 4

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,119}")
OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?", re.DOTALL)
# Headers that say what is wanted, never who asks.
PUBLIC_HEADERS = frozenset(
    ["accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "content-type", "user-agent"]
)

# The last word of a name that is surely one of a secret.
_SECRET_WORD = re.compile(
    r"(?:api|app|access|auth|client|private|secret|subscription)key|.*token|.*secret"
    r"|auth|authorization|bearer|cookies?|credentials?|jwt|passphrase|passwd|password|pwd"
)
_SECRET_KEYS = {"access", "api", "app", "auth", "client", "private", "secret", "subscription"}  # … key
# One of these is in every name that is surely one of a secret: a fast search before the exact one.
_HINTS = ("pass", "secret", "token", "key", "auth", "cookie", "credential", "bearer", "jwt", "pwd")
_HINT = re.compile("|".join(_HINTS).encode())
# Names that may be those of a secret. Rather too many than too few: a value kept apart works as well.
_SUSPICIOUS = re.compile(
    r"key|token|secret|pass|pwd|auth|cred|cookie|session|salt|private|bearer|webhook"
    r"|(?:^|[^a-z])(?:pat|pin|otp|jwt|sig|dsn|seed)(?:$|[^a-z])",
    re.IGNORECASE,
)
# Names whose values are no secrets, but say who somebody is: they are not shared.
_PERSONAL = re.compile(r"login|user|account|(?:^|[^a-z])(?:code|id|hash)(?:$|[^a-z])", re.IGNORECASE)
# Tokens whose issuers gave them a shape of their own, and private keys.
_TOKEN = re.compile(r"\b(?:sk-|gh[oprsu]_|github_pat_|glpat-|xox[abprs]-|AKIA|AIza|eyJ|tg[cor]?_)[\w-]{8}|-----BEGIN ")
_LONG_RUN = re.compile(r"[A-Za-z0-9_-]{20,}")
# Tokens alternate between letters and digits; words, versions and dates do not.
_ALTERNATION = re.compile(r"(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]")
_ALTERNATIONS = 4
_PLAIN_WORD = re.compile(r"[a-z]{1,10}|[A-Z]{1,10}|[A-Z][a-z]{1,9}|[0-9]{1,5}")
# Values that a message may quote, and the sections in which users choose the keys.
_QUOTABLE = re.compile(r"[\w.:/@~+*{}$-]{0,60}")
_PRIVATE_SECTIONS = frozenset(["env", "headers"])
_SWITCH = re.compile(r"true|false|yes|no|on|off|none|null|[0-9]{1,5}|", re.IGNORECASE)
# Words, versions, paths, hosts and URLs: values of variables such as LANG, PROJECT or SEARCH_URL.
_PLAIN = re.compile(r"[\s.,:/\\_@~=+-]*(?:(?:[A-Za-z]{1,15}[0-9]{0,3}|[0-9]{1,5})(?:[\s.,:/\\_@~=+-]+|$))*")

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SCHEMES = r"bearer|basic|token|digest|apikey|key"
_SCHEME = re.compile(rf"(?P<scheme>(?:{_SCHEMES})\s+)?(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_ONLY_SCHEME = re.compile(rf"(?:\b(?:{_SCHEMES})\b|[\W_])*", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^\s/?#@:\"'<>\\]*:)([^\s/?#\"'<>\\]+)(?=@)")
_LOGIN = re.compile(r"://[^/\s@]*:[^/\s@]+@")
_URL_MARGIN = 512  # bytes in which the password of a URL ends
# A text that is a URL and nothing else. No command is: a person who approves one must see all of it.
_URL = re.compile(r"(?:[A-Za-z][\w+.-]{0,30}:)?/[^\s$;|<>`\"'\\]+")
_PARAMETER = re.compile(r"([?&#])([^?&#=]+)=([^&#]+)")
_PERCENT = re.compile(r"%[0-9A-F]{2}")
_URL_SAFE = str.maketrans("+/", "-_")


def is_secret(name: str) -> bool:
    """Return whether a key, or its last `_`, `-` or camelCase word, names a secret."""
    words = _split_words(name)
    if words[-1:] == ["key"]:
        return len(words) > 1 and words[-2] in _SECRET_KEYS
    return bool(words) and _SECRET_WORD.fullmatch(words[-1]) is not None


def is_secret_parameter(name: str) -> bool:
    """Return whether a query parameter or an option of that name holds a secret."""
    words = _split_words(name)
    return is_secret(name) or words == ["key"] or words[-1:] in (["sig"], ["signature"])


def may_be_secret(name: str) -> bool:
    """Return whether a value of that name may be a secret, however plain the value looks."""
    return is_secret(name) or _SUSPICIOUS.search(name) is not None


def has_token_shape(value: str) -> bool:
    """Return whether a well-known kind of token is in `value`."""
    return _TOKEN.search(value) is not None


def looks_like_secret(value: str) -> bool:
    """Return whether `value` has a token, a password in a URL, or a run of characters that is random enough."""
    if has_token_shape(value) or _LOGIN.search(value):
        return True
    runs = _LONG_RUN.findall(VARIABLE.sub(" ", value))
    return any(len(_ALTERNATION.findall(run)) >= _ALTERNATIONS for run in runs)


def hides_secret(name: str, value: str) -> bool:
    """Return whether the value of that name may be a secret. A switch or a small number is one only by a sure name."""
    if is_secret(name) or looks_like_secret(value):
        return True
    return may_be_secret(name) and not _SWITCH.fullmatch(value)


def show_value(names: Iterable[str], value: object) -> str:
    """A wrong value as a message may quote it, or nothing if it is no single plain value, or may hold a secret by one
    of the names it stands under."""
    if any(may_be_secret(name) or name in _PRIVATE_SECTIONS for name in names):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    is_plain = isinstance(value, str) and _QUOTABLE.fullmatch(value) and not looks_like_secret(value)
    return repr(value) if is_plain else ""


def is_plain_word(value: str) -> bool:
    """Return whether `value` is a word of at most ten letters or a number of at most five digits."""
    return _PLAIN_WORD.fullmatch(value) is not None


def is_plain_value(value: str) -> bool:
    """Return whether `value` consists of words, versions, paths and numbers."""
    return _PLAIN.fullmatch(value) is not None


def is_shareable(name: str, value: str) -> bool:
    """Return whether a value is plain, and its name neither that of a secret nor of a person's data."""
    return is_plain_word(value) and not may_be_private(name)


def may_be_private(name: str) -> bool:
    """Return whether a value of that name may be a secret or say who somebody is."""
    return may_be_secret(name) or _PERSONAL.search(name) is not None


def is_literal(value: str, reference: re.Pattern[str] = VARIABLE) -> bool:
    """Return whether a value has more in it than references and the scheme before them (`Bearer ${TOKEN}`)."""
    rest = reference.sub("", value)
    return bool(value) if rest == value else not is_scheme(rest)


def is_scheme(text: str) -> bool:
    """Return whether a text is the scheme of an `Authorization` header, or no word at all."""
    return _ONLY_SCHEME.fullmatch(text) is not None


def split_scheme(value: str) -> tuple[str, str]:
    """The scheme before a token, with its blanks, and the rest."""
    match = _SCHEME.fullmatch(value)
    return ((match["scheme"] or ""), match["rest"]) if match else ("", value)


def variable_name(text: str) -> str:
    """The name of an environment variable made of `text`."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()[:64] or "VALUE"
    return f"_{name}" if name[0].isdigit() else name


class VariableNames:
    """Assigns a variable to each secret. Two different values never get one name."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def choose(self, value: str, taken: Container[str], *candidates: str) -> str:
        """The first candidate that is free, else the last one with a number."""
        last = candidates[-1][:110]
        numbered = (f"{last}_{number}" for number in itertools.count(2))
        for name in itertools.chain((*candidates[:-1], last), numbered):
            if _VARIABLE_NAME.fullmatch(name) and name not in taken and self.values.get(name, value) == value:
                self.values[name] = value
                return name
        raise AssertionError("there is always another number")


def redact(document: bytes) -> tuple[bytes, list[str]]:
    """A JSON document without the values of secret keys and URL parameters, and the texts that were removed."""
    if _HINT.search(document.lower()) is None:  # every call passes here and most end here, within a microsecond
        return document, []
    removed: list[str] = []
    return _to_json(_redact(json.loads(document), removed)).encode(), removed


def mask_in(value: Any, secrets: Iterable[str]) -> Any:
    """Replace those texts wherever they stand in `value`, keys and numbers included."""
    long = {secret for secret in secrets if len(secret) >= _SHORTEST_ARGUMENT}
    forms = sorted(long | {form for secret in long for form in _escape(secret)}, key=len, reverse=True)
    return _map_texts(value, lambda text: _replace(text, forms))


class KnownSecrets:
    """The secret values of this process. Without any, masking only looks for passwords in URLs."""

    def __init__(self) -> None:
        # Bytes a text must be read beyond where it is cut, so that no secret is cut in two and missed.
        self.margin = _URL_MARGIN
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
        if is_secret(name) or is_secret(field) or not is_plain_value(value):
            self.add(value)
        for match in _URL_PASSWORD.finditer(value):
            self.add(unquote(match[2]))

    def add_literal(self, value: str, field: str) -> None:
        """Add a value written into the settings, without its scheme, if the field is named like a secret."""
        if is_secret(field):
            self.add(split_scheme(value)[1])

    def mask(self, text: str) -> str:
        """`text` without known secrets, also escaped as JSON, percent-encoded or in base64, and URL passwords."""
        if self._forms:
            text = _replace(text, self._forms)
        if "@" in text and "://" in text:  # one character is found much faster than three
            return _URL_PASSWORD.sub(rf"\1{REDACTED}", text)
        return text

    def mask_json(self, document: str) -> str:
        """A JSON document with its texts, keys and numbers masked."""
        if not self._forms and "@" not in document:
            return document
        return document if self.mask(document) == document else _to_json(self.mask_value(json.loads(document)))

    def mask_value(self, value: Any) -> Any:
        return _map_texts(value, self.mask)


KNOWN = KnownSecrets()


class MaskingFormatter(logging.Formatter):
    """Masks known secrets in log lines, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return KNOWN.mask(super().format(record))


def _split_words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]


def _redact(value: Any, removed: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _redact_item(key, item, removed) for key, item in value.items()}
    if isinstance(value, list):
        return [_redact(item, removed) for item in value]
    if type(value) is str and "?" in value:
        return _redact_url(value, removed)
    return value


def _redact_item(key: str, value: Any, removed: list[str]) -> Any:
    if not is_secret(key):
        return _redact(value, removed)
    removed.extend(_texts(value))
    return REDACTED


def _redact_url(url: str, removed: list[str]) -> str:
    """The URL without the secrets in its query; any other text as it is."""
    query = url.partition("?")[2].lower()
    if any(hint in query for hint in _HINTS) and _URL.fullmatch(url):
        return _PARAMETER.sub(functools.partial(_redact_parameter, removed), url)
    return url


def _redact_parameter(removed: list[str], match: re.Match[str]) -> str:
    before, name, value = match.groups()
    if not is_secret(unquote(name)):
        return match[0]
    removed.extend(dict.fromkeys((value, unquote_plus(value))))
    return f"{before}{name}={REDACTED}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)


def _forms(value: str) -> set[str]:
    escaped = _escape(value)
    quoted = {quote(value, safe=safe, errors="replace") for safe in ("", "/", "!'()*")}
    quoted.add(quote_plus(value, errors="replace"))
    lower = {_PERCENT.sub(lambda code: code[0].lower(), form) for form in quoted}
    twice = {form for text in escaped for form in _escape(text)}  # JSON inside a text of a JSON document
    return {value} | escaped | twice | quoted | lower | _base64(value)


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


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
