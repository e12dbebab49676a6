"""Rules for paths in a bundle: each must name the same file on every operating system."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

DEPTH_LIMIT = 16
PATH_LIMIT = 512
NAME_LIMIT = 128

# Device names on Windows, with or without an extension.
DEVICES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$"]
    + [f"{port}{number}" for port in ("com", "lpt") for number in "0123456789¹²³"]
)

# Leftovers of other programs; never part of a bundle.
SKIPPED = frozenset([".git", ".DS_Store", "__pycache__", "__MACOSX"])

_SECRETS = re.compile(
    r"\.env(?:\..+)?|\.?_?netrc|\.pypirc|\.git-credentials|\.htpasswd|\.vault[-_]pass(?:word)?|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?"
    r"|.*\.(?:pem|key|p12|pfx|jks|keystore|kdbx|ppk|ovpn)"
)
# Examples of secret files have no secrets.
_SECRETS_SHOWN = re.compile(r"\.env\.(?:example|sample|template|dist)")

_DRIVE = re.compile(r"[A-Za-z]:")
_FOREIGN = re.compile(r'[<>:"|?*]')
_TEMPORARY = ".toolgate-"  # prefix of files being written; nothing lists them


def path_problem(path: str) -> str | None:
    """Return the reason why a path is not allowed, or None."""
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in path):
        return "has a control or invisible character in it"
    if "\\" in path:
        return "has a backslash in it; write paths with '/'"
    if path.startswith("/") or _DRIVE.match(path):
        return "is an absolute path; paths are relative to the bundle"
    if len(path.encode()) > PATH_LIMIT:
        return f"is longer than {PATH_LIMIT} bytes"
    parts = path.split("/")
    if len(parts) > DEPTH_LIMIT:
        return f"is deeper than {DEPTH_LIMIT} directories"
    return next(filter(None, map(_name_problem, parts)), None)


def secret_problem(path: str) -> str | None:
    """Return the reason why a file usually holds secrets and must not be in a bundle, or None."""
    name = path.rpartition("/")[2].lower()
    if not _SECRETS.fullmatch(name) or _SECRETS_SHOWN.fullmatch(name):
        return None
    return "usually holds secrets, and a toolset is shared; declare the variable under 'secrets' instead"


def find_clash(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return two paths that are one path on some system, or of which one is both file and directory; else None.

    Systems that ignore case or Unicode normalization merge directories as well as files. The path of a
    directory ends in a slash.
    """
    spelled: dict[str, tuple[str, bool]] = {}
    for path in paths:
        parts = path.removesuffix("/").split("/")
        for depth in range(1, len(parts) + 1):
            here, is_file = "/".join(parts[:depth]), depth == len(parts) and not path.endswith("/")
            other, was_file = spelled.setdefault(_fold(here), (here, is_file))
            if other != here or was_file != is_file:
                return other, path
    return None


def is_skipped(path: str) -> bool:
    return not SKIPPED.isdisjoint(path.split("/"))


def quote_path(path: str) -> str:
    """Quote a path for a message, shortened to 200 characters."""
    return repr(path if len(path) <= 200 else f"{path[:200]}…")


def _name_problem(name: str) -> str | None:
    if name == "..":
        return "has '..' in it"
    if name in ("", "."):
        return "has an empty or '.' part in it"
    if len(name.encode()) > NAME_LIMIT:
        return f"has a name longer than {NAME_LIMIT} bytes"
    if _FOREIGN.search(name) or name.endswith((".", " ")) or name.startswith(" "):
        return f"has a name that Windows does not take: {name!r}"
    if name.split(".")[0].rstrip(" ").lower() in DEVICES:
        return f"has a name that is a device on Windows: {name!r}"
    if name.startswith(_TEMPORARY):
        return f"has a name beginning with {_TEMPORARY!r}, which is reserved for temporary files"
    return None


def _fold(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", path).casefold())
