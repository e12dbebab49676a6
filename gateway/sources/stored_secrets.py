"""Secrets of servers added by hand and of toolsets, in a private file beside the database. Each is given to its owner
only."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from gateway.errors import Forbidden, Invalid, Unavailable
from gateway.files import FileLock, replace_private

FILE_NAME = "secrets.json"
SIZE_LIMIT = 1024 * 1024

_Values = dict[str, dict[str, str]]


class SecretStore:
    """One file that only its owner can read: `{owner: {variable: value}}`, where the owner is a server's name or
    `toolset:ID`. It is looked at whenever a variable is resolved, so that every process uses the current values."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._cached: tuple[tuple[int, int, int], _Values] | None = None

    def names(self, server: str) -> list[str]:
        return sorted(self._read().get(server, ()))

    def values(self, owner: str) -> Mapping[str, str]:
        return self._read().get(owner, {})

    def environment(self, server: str, fallback: Mapping[str, str] = os.environ) -> Mapping[str, str]:
        """The values of a server's `${VAR}`s: its secrets, then the environment. In this order, since a variable of the
        environment with that name may be meant for another program."""
        return _Environment(lambda: self._read().get(server, {}), fallback)

    def keep(self, server: str, values: Mapping[str, str]) -> None:
        """Store values for a server; values of the same names are replaced."""
        if values:
            self._change(lambda stored: {**stored, server: {**stored.get(server, {}), **values}})

    def replace(self, server: str, values: Mapping[str, str]) -> None:
        """Store the values of a new server, without those that an earlier one of its name left behind."""

        def change(stored: _Values) -> _Values:
            others = {name: kept for name, kept in stored.items() if name != server}
            return {**others, server: dict(values)} if values else others

        if values or self.names(server):
            self._change(change)

    def forget(self, server: str, *names: str) -> None:
        """Delete the values of these names, or all values of a server."""

        def change(stored: _Values) -> _Values:
            left = {name: value for name, value in stored.get(server, {}).items() if names and name not in names}
            others = {name: values for name, values in stored.items() if name != server}
            return {**others, server: left} if left else others

        if self.path.exists():
            self._change(change)

    def _read(self) -> _Values:
        try:
            status = self.path.stat()
            state = status.st_mtime_ns, status.st_size, status.st_ino
            if self._cached is not None and self._cached[0] == state:
                return self._cached[1]
            stored = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Forbidden(f"{self.path}: {error.strerror}", code="SECRETS_UNREADABLE") from None
        except ValueError:
            raise self._unreadable() from None
        if not isinstance(stored, dict) or not all(isinstance(values, dict) for values in stored.values()):
            raise self._unreadable()
        self._cached = state, stored
        return stored

    def _unreadable(self) -> Invalid:
        return Invalid(f"{self.path} is not valid JSON; correct or remove it", code="SECRETS_UNREADABLE")

    def _change(self, change: Callable[[_Values], _Values]) -> None:
        """Replace the file atomically, one process at a time."""
        try:
            with closing(FileLock(self.path.with_suffix(".lock"))) as lock, lock:
                text = json.dumps(change(self._read()), indent=2, ensure_ascii=True) + "\n"
                if len(text) > SIZE_LIMIT:
                    raise Invalid(f"secrets may take at most {SIZE_LIMIT // 1024} KiB; remove some", code="TOO_LARGE")
                replace_private(self.path, text.encode())
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}", code="SECRETS_UNWRITABLE") from error


class _Environment(Mapping[str, str]):
    def __init__(self, own: Callable[[], Mapping[str, str]], fallback: Mapping[str, str]) -> None:
        self._own = own
        self._fallback = fallback

    def __getitem__(self, name: str) -> str:
        own = self._own()
        return own[name] if name in own else self._fallback[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._fallback, **self._own()})

    def __len__(self) -> int:
        return len({*self._fallback, *self._own()})
