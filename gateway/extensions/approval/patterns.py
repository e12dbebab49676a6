"""Patterns of paths, hosts and commands: compiled once, and compared with every way a text may mean one."""

from __future__ import annotations

import fnmatch
import importlib
import re
import socket
from collections.abc import Iterator, Sequence
from ipaddress import IPv6Address
from urllib.parse import unquote

from gateway.extensions.approval.arguments import Look, folded

# What is said of a text that may mean anything, and so fits any pattern.
UNTOLD = "cannot be told"

EACH_MATCH = 30
LONGEST_COMMAND = 64 * 1024
LONGEST_ADDRESS = 8192
LONGEST_HOST = 300
LEAD_INS = 16

_LITERAL = re.compile(r"[^*?\[]*")
_ADDRESS = re.compile(r"://([^\s/?#]+)")
_WEB = re.compile(r"(?:https?|wss?|ftp):[/\\]*([^/?#]*)", re.IGNORECASE)
_RELATIVE = re.compile(r"[/\\]{2}([^/?#]+)")
_BARE = re.compile(r"[\w.\u3002\uff0e\uff61-]+(?::\d+)?|\[?[0-9A-Fa-f:.]+\]?(?::\d+)?")
_BETWEEN_HOSTS = re.compile(r"[@\\\"'<>(),;|^`]+")
_WITH_PORT = re.compile(r"(\[[^\]]*\]|[^:]*)(?::\d*)?")
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_NUMBERS = re.compile(r"(?:0x[0-9a-f]*|\d+)(?:\.(?:0x[0-9a-f]*|\d+)){0,3}")
_DOTS = re.compile("[.\u3002\uff0e\uff61]")
_COMMANDS = re.compile(r"[;&|\n\r`()]+")
_ASSIGNED = re.compile(r"\w+\+?=\S*|\d*[<>]+&?\S*")
_LEADING = frozenset(
    {"!", "{", "if", "then", "else", "elif", "while", "until", "do", "time", "exec", "command", "builtin", "eval"}
    | {"env", "nohup", "nice", "sudo", "doas", "xargs"}
)


class PathPatterns:
    """Each fits a path or what it ends in, so that `*.env` and `secrets/*` fit at any depth; and the directories it
    names, for who moves or takes `secrets` does so to all that is in it."""

    def __init__(self, patterns: Sequence[str]) -> None:
        every = dict.fromkeys(each for pattern in patterns for each in _with_directories(folded(pattern)))
        self._patterns = [(_needle(each), re.compile(fnmatch.translate(each))) for each in every]

    async def found(self, look: Look) -> str | None:
        paths = await look.paths()
        if paths is None:
            return f"path {UNTOLD}"
        for path in paths:
            look.spend(EACH_MATCH // 3 + len(path) // 8)
            text = f"/{folded(path)}"
            for needle, pattern in self._patterns:
                if _fits_an_ending(text, needle, pattern, look):
                    return f"path {path[:200]!r}"
        return None


class HostPatterns:
    """Each fits a host as the network will read it, however it is spelled. Where all of a text is an address, and its
    host cannot be read, that fits too."""

    def __init__(self, patterns: Sequence[str]) -> None:
        # With the tables of international names, a hundredth of a second: only who has such rules waits for it.
        self._canonical_host = importlib.import_module("gateway.net.policy").canonical_host
        self._patterns = [self._pattern(pattern.strip()) for pattern in patterns]

    async def found(self, look: Look) -> str | None:
        for host in look.once("hosts", lambda: self._hosts(look)):
            if host is None:
                return f"host {UNTOLD}"
            look.spend((EACH_MATCH + len(host)) * len(self._patterns))
            if any(fnmatch.fnmatchcase(host, pattern) for pattern in self._patterns):
                return f"host {host[:200]!r}"
        return None

    def _hosts(self, look: Look) -> Iterator[str | None]:
        for text in look.texts():
            yield from self.hosts(text, look)

    def hosts(self, text: str, look: Look) -> Iterator[str | None]:
        """The hosts a text names; None for one it hides."""
        look.spend(EACH_MATCH + len(text) // 64)
        for match in _ADDRESS.finditer(text):
            yield from self._read(match[1], look)
        word = text.strip()
        if not 0 < len(word) <= LONGEST_ADDRESS or len(word.split(maxsplit=1)) > 1:
            return
        if address := _WEB.match(word):
            yield from self._read(address[1], look, strictly=True)
        elif address := _RELATIVE.match(word):
            yield from self._read(address[1], look)
        elif _BARE.fullmatch(word):
            yield from self._read(word, look)

    def _read(self, authority: str, look: Look, strictly: bool = False) -> Iterator[str | None]:
        """Every host that stands between `//` and the next `/`; parsers do not agree which of several it is."""
        look.spend(EACH_MATCH + len(authority))
        pieces = [piece for piece in _BETWEEN_HOSTS.split(authority) if piece]
        for number, piece in enumerate(pieces, 1):
            match = _WITH_PORT.fullmatch(piece)
            try:
                yield self._canonical(match[1] if match else piece, look)
            except ValueError:
                if strictly and number == len(pieces):
                    yield None

    def _canonical(self, host: str, look: Look | None = None) -> str:
        """The host as it is looked up; `ValueError` for what is none."""
        name = (unquote(host) if "%" in host else host).lower().removesuffix(".")
        if _NAME.fullmatch(name):
            return _address(name)
        if len(name) > LONGEST_HOST:
            raise ValueError("too long for a host")
        if look is not None:
            look.spend(EACH_MATCH * (10 if name.isascii() else 100))
        return _address(str(self._canonical_host(name)))

    def _pattern(self, pattern: str) -> str:
        try:
            return self._canonical(pattern)
        except ValueError:
            return ".".join(map(self._label, _DOTS.split(pattern.lower())))

    def _label(self, label: str) -> str:
        try:
            return label if label.isascii() else str(self._canonical_host(label))
        except ValueError:  # with a `*` in it: compared as it is written
            return label


class CommandPatterns:
    """Each fits a line, or one command on it, without what may stand before a command. It reminds and does not confine:
    a shell has more ways to say a thing than anyone can list."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [re.compile(fnmatch.translate(pattern)) for pattern in patterns]

    async def found(self, look: Look) -> str | None:
        for text in look.texts():
            for command in commands(text):
                if command is None:
                    return f"command {UNTOLD}"
                look.spend((EACH_MATCH + len(command)) * len(self._patterns))
                if any(pattern.match(command) for pattern in self._patterns):
                    return f"command {command[:200]!r}"
        return None


def commands(text: str) -> Iterator[str | None]:
    """A line, and each command on it, with single spaces; None for what is too long or too tangled to be read."""
    if len(text) > LONGEST_COMMAND:
        yield None
        return
    yield " ".join(text.split())
    for part in _COMMANDS.split(text):
        yield from _without_lead_ins(part.split())


def _without_lead_ins(words: list[str]) -> Iterator[str | None]:
    """The command as it stands, and without `then`, `FOO=1` or `sudo -n`, its quotes and the program's folder."""
    start = 0
    for _ in range(LEAD_INS):
        if start == len(words):
            return
        yield " ".join(words[start:])
        first = re.sub(r"[\\\"']", "", words[start])
        program = first.rpartition("/")[2]
        if program != words[start]:
            yield " ".join([program, *words[start + 1 :]])
        if program not in _LEADING and not _ASSIGNED.fullmatch(first):
            return
        start += 1
        while start < len(words) and words[start].startswith("-"):
            start += 1
    yield None


def _with_directories(pattern: str) -> Iterator[str]:
    named = pattern.removeprefix("./").removeprefix("**/")
    parts = f"{named}*".split("/") if named.endswith("/") else named.split("/")
    yield "/".join(parts)
    for count in range(1, len(parts)):
        if parts[count - 1].strip("*"):
            yield "/".join(parts[:count])


def _needle(pattern: str) -> str | None:
    """What stands in a path wherever the pattern may begin; None where that is at once: `*` takes all before it."""
    return None if pattern.startswith("*") else f"/{_LITERAL.match(pattern)[0]}"  # type: ignore[index]


def _fits_an_ending(text: str, needle: str | None, pattern: re.Pattern[str], look: Look) -> bool:
    look.spend(EACH_MATCH // 3 + len(text) // 64)
    at = 0 if needle is None else text.find(needle)
    while at >= 0:
        look.spend(EACH_MATCH + len(text) - at)
        if pattern.match(text, at + 1):
            return True
        at = -1 if needle is None else text.find(needle, at + 1)
    return False


def _address(host: str) -> str:
    """An IPv4 address in its usual form, also where it is spelled as one number, in hexadecimal, or as IPv6."""
    if _NUMBERS.fullmatch(host):
        try:
            return socket.inet_ntoa(socket.inet_aton(host))
        except OSError:
            return host
    mapped = IPv6Address(host).ipv4_mapped if ":" in host else None
    return host if mapped is None else str(mapped)
