"""What a client's file writes out and we must not store: each secret becomes `${NAME}`, its value goes apart."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.secrets import is_secret

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,119}")
# Names that may stand for a secret. Too many are taken for one rather than too few: a value kept apart works as well.
_TELLING = re.compile(
    r"key|token|secret|pass|pwd|auth|cred|cookie|session|salt|private|bearer|webhook"
    r"|(?:^|[^a-z])(?:pat|pin|otp|jwt|sig|dsn|seed)(?:$|[^a-z])",
    re.IGNORECASE,
)
_TRIVIAL = re.compile(r"true|false|yes|no|on|off|none|null|[0-9]{1,5}|", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]{1,10}|[0-9]{1,5}")
_WELL_KNOWN = re.compile(
    r"\b(?:sk-|gh[oprsu]_|github_pat_|glpat-|xox[abprs]-|AKIA|AIza|eyJ)[\w-]{8}|-----BEGIN |://[^/\s@]*:[^/\s@]+@"
)
_RUN = re.compile(r"[A-Za-z0-9_-]{20,}")
_SWITCH = re.compile(r"(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]")
# Tokens leap between letters and digits; words, versions and dates do not.
_SWITCHES = 4

_SCHEME = re.compile(r"(?P<scheme>(?:bearer|basic|token|digest|apikey|key)\s+)?(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_ONLY_SCHEME = re.compile(r"(?:\b(?:bearer|basic|token|key|apikey|digest)\b|[\W_])*", re.IGNORECASE)
_PUBLIC_HEADERS = frozenset(
    ["accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "content-type", "user-agent"]
)
_URL = re.compile(
    r"(?P<start>[A-Za-z][\w+.-]*://)(?:(?P<login>[^/?#\s]*)@)?(?P<host>[^/?#\s@]*)(?P<rest>.*)", re.DOTALL
)
_PIECE = re.compile(r"(?P<start>[?&;#])(?P<name>[^=&;#]+)=(?P<value>[^&;#]*)|(?P<segment>[^/?&;#=]+)")
_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?", re.DOTALL)
_PAIR = re.compile(r"(?P<name>[A-Za-z_][\w-]*)(?P<sign>=|:\s*)(?P<value>.+)", re.DOTALL)


class Names:
    """Hands out a variable for each secret. Two different values never get one name, whichever server has them."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def choose(self, value: str, taken: frozenset[str], *wishes: str) -> str:
        """The first of the wishes that is free, else the last one with a number."""
        numbered = (f"{wishes[-1]}_{number}" for number in itertools.count(2))
        fitting = (name for name in itertools.chain(wishes, numbered) if _NAME.fullmatch(name) and name not in taken)
        name = next(name for name in fitting if self._values.get(name, value) == value)
        self._values[name] = value
        return name


def mask(server: str, settings: Mapping[str, Any], names: Names) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of a server with a `${NAME}` for each secret in them, and the value of each name."""
    masking = _Masking(upper(server), names, frozenset(variables(settings)))
    masked = {**settings}
    if "env" in settings:
        masked["env"] = {name: masking.environment(name, value) for name, value in settings["env"].items()}
    if "headers" in settings:
        masked["headers"] = {name: masking.header(name, value) for name, value in settings["headers"].items()}
    if "args" in settings:
        masked["args"] = list(masking.arguments(settings["args"]))
    if "url" in settings:
        masked["url"] = masking.address(settings["url"])
    return masked, masking.values


def variables(settings: Mapping[str, Any]) -> list[str]:
    """Every variable that must be set for a server to be reached, in order."""
    said = [settings.get(key) for key in ("command", "cwd", "url")] + list(settings.get("args") or ())
    said += [value for key in ("env", "headers", "oauth") for value in (settings.get(key) or {}).values()]
    texts = [text for text in said if isinstance(text, str)]
    return list(dict.fromkeys(name for text in texts for name in VARIABLE.findall(text)))


def missing(settings: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    return [name for name in variables(settings) if name not in environment]


def upper(text: str) -> str:
    """A text as the name of a variable."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()[:50] or "VALUE"
    return f"_{name}" if name[0].isdigit() else name


class _Masking:
    """The secrets of one server as they are found."""

    def __init__(self, owner: str, names: Names, taken: frozenset[str]) -> None:
        self.values: dict[str, str] = {}
        self._owner = owner
        self._names = names
        self._taken = taken

    def environment(self, name: str, value: str) -> str:
        own = f"{self._owner}_{upper(name)}"
        return self._masked(value, *([name] if _NAME.fullmatch(name) else []), own) if _hides(name, value) else value

    def header(self, name: str, value: str) -> str:
        plain = name.lower() in _PUBLIC_HEADERS or (_WORD.fullmatch(value) and not _TELLING.search(name))
        return value if plain else self._authorized(value, name)

    def arguments(self, arguments: Sequence[str]) -> Iterator[str]:
        """`--token=abc`, `--token abc`, `-e TOKEN=abc`, `--header "Name: abc"`, addresses, and whatever looks
        like a token by itself."""
        awaited: str | None = None
        for argument in arguments:
            option = _OPTION.fullmatch(argument)
            if option is not None and option["value"] is None:
                awaited = option["name"]
                yield argument if not _looks_secret(argument) else self._masked(argument, f"{self._owner}_ARGUMENT")
                continue
            yield self._argument(argument, option, awaited)
            awaited = None

    def _argument(self, argument: str, option: re.Match[str] | None, awaited: str | None) -> str:
        if option is not None:
            start, value = argument[: option.start("value")], option["value"]
            return start + self._named(option["name"], value)
        if awaited in ("header", "H") and (pair := _PAIR.fullmatch(argument)):
            return pair["name"] + pair["sign"] + self.header(pair["name"], pair["value"])
        if awaited is not None and _TELLING.search(awaited) and _hides(awaited, argument):
            return self._masked(argument, f"{self._owner}_{upper(awaited)}")
        if (pair := _PAIR.fullmatch(argument)) and pair["sign"] == "=":
            return f"{pair['name']}={self._named(pair['name'], pair['value'])}"
        return self._named("argument", argument)

    def _named(self, name: str, value: str) -> str:
        if not _TELLING.search(name) and _URL.fullmatch(value):
            return self.address(value)
        return self._authorized(value, name) if _hides(name, value) else value

    def address(self, url: str) -> str:
        """The password, what of the query is named like a secret, and what of the path looks like one."""
        parts = _URL.fullmatch(url)
        if parts is None:
            return self._masked(url, f"{self._owner}_URL") if _looks_secret(url) else url
        user, colon, password = (parts["login"] or "").partition(":")
        if colon:
            password = self._masked(password, f"{self._owner}_PASSWORD")
        if _looks_secret(user):
            user = self._masked(user, f"{self._owner}_USER")
        login = f"{user}{colon}{password}@" if parts["login"] is not None else ""
        return parts["start"] + login + parts["host"] + _PIECE.sub(self._piece, parts["rest"])

    def _piece(self, match: re.Match[str]) -> str:
        if match["segment"] is not None:
            found = _looks_secret(match["segment"])
            return self._masked(match["segment"], f"{self._owner}_URL_TOKEN") if found else match["segment"]
        value = match["value"]
        if _hides(match["name"], value):
            value = self._masked(value, f"{self._owner}_{upper(match['name'])}")
        return f"{match['start']}{match['name']}={value}"

    def _authorized(self, value: str, name: str) -> str:
        """`Bearer abc` as `Bearer ${NAME}`: what one sets is then the token alone."""
        parts = _SCHEME.fullmatch(value)
        scheme, rest = (parts["scheme"] or "", parts["rest"]) if parts else ("", value)
        return scheme + self._masked(rest, f"{self._owner}_{upper(name)}")

    def _masked(self, text: str, *wishes: str) -> str:
        """Each part that is no reference as one; those that are stay, since what is kept is not read again."""
        pieces = VARIABLE.split(text)
        return "".join(
            f"${{{piece}}}" if index % 2 else self._reference(piece, wishes, len(pieces) > 1)
            for index, piece in enumerate(pieces)
        )

    def _reference(self, text: str, wishes: Sequence[str], partial: bool) -> str:
        if not text or (partial and _ONLY_SCHEME.fullmatch(text)):
            return text
        name = self._names.choose(text, self._taken, *wishes)
        self.values[name] = text
        return f"${{{name}}}"


def _hides(name: str, value: str) -> bool:
    """Whether the value of that name may be a secret."""
    if is_secret(name) or name.lower() == "cookie" or _looks_secret(value):
        return True
    return bool(_TELLING.search(name)) and not _TRIVIAL.fullmatch(value)


def _looks_secret(value: str) -> bool:
    if _WELL_KNOWN.search(value):
        return True
    return any(len(_SWITCH.findall(run)) >= _SWITCHES for run in _RUN.findall(VARIABLE.sub(" ", value)))
