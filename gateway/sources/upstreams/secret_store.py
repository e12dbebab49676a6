"""Secrets of servers added by hand: kept beside the database, handed to the one server each is for."""

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

_Kept = dict[str, dict[str, str]]


class SecretStore:
    """One file only its owner can read: `{server: {variable: value}}`. It is read whenever a variable is
    resolved, so that what is kept now counts for whoever connects next, in any process."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    def names(self, server: str) -> list[str]:
        return sorted(self._read().get(server, ()))

    def environment(self, server: str, around: Mapping[str, str] = os.environ) -> Mapping[str, str]:
        """What `${VAR}` means to a server: what is kept for it, then the environment. In this order, since a
        variable of the environment may be of that name and meant for another."""
        return _Environment(lambda: self._read().get(server, {}), around)

    def keep(self, server: str, values: Mapping[str, str]) -> None:
        """Keep values for a server, in place of those of the same names."""
        if values:
            self._change(lambda kept: {**kept, server: {**kept.get(server, {}), **values}})

    def forget(self, server: str, *names: str) -> None:
        """Forget the values of those names, or all that is kept for a server."""

        def change(kept: _Kept) -> _Kept:
            left = {name: value for name, value in kept.get(server, {}).items() if names and name not in names}
            others = {name: values for name, values in kept.items() if name != server}
            return {**others, server: left} if left else others

        if self.path.exists():
            self._change(change)

    def _read(self) -> _Kept:
        try:
            kept = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Forbidden(f"{self.path}: {error.strerror}", code="SECRETS_UNREADABLE") from None
        except ValueError:
            raise self._unreadable() from None
        if not isinstance(kept, dict) or not all(isinstance(values, dict) for values in kept.values()):
            raise self._unreadable()
        return kept

    def _unreadable(self) -> Invalid:
        return Invalid(f"{self.path} cannot be read as JSON; mend it or remove it", code="SECRETS_UNREADABLE")

    def _change(self, change: Callable[[_Kept], _Kept]) -> None:
        """Replace the file whole, one process at a time: nobody ever reads half of it."""
        try:
            with closing(FileLock(self.path.with_suffix(".lock"))) as lock, lock:
                text = json.dumps(change(self._read()), indent=2, ensure_ascii=True) + "\n"
                if len(text) > SIZE_LIMIT:
                    raise Invalid(f"more than {SIZE_LIMIT // 1024} KiB of secrets are not kept", code="TOO_LARGE")
                replace_private(self.path, text.encode())
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}", code="SECRETS_UNWRITABLE") from error


class _Environment(Mapping[str, str]):
    def __init__(self, own: Callable[[], Mapping[str, str]], around: Mapping[str, str]) -> None:
        self._own = own
        self._around = around

    def __getitem__(self, name: str) -> str:
        own = self._own()
        return own[name] if name in own else self._around[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._around, **self._own()})

    def __len__(self) -> int:
        return len({*self._around, *self._own()})
