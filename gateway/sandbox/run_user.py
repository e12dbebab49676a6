"""Whom programs run as when the gateway itself is root: never as root."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

if sys.platform != "win32":
    import pwd

# An operator can name the account by making one of this name.
USER = "toolgate"

# Without one: a number that neither distributions nor systemd give to anyone, and containers have.
_UID = 60700

_MAP = Path("/proc/self/uid_map")


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int


def account() -> Account | None:
    """Whom to become for a program; None when we are nobody special ourselves, as is the root of a container
    that knows no other users: outside it is a normal one."""
    if os.geteuid() != 0:
        return None
    found = Account(_UID, _UID)
    with suppress(KeyError):
        entry = pwd.getpwnam(USER)
        if entry.pw_uid != 0:
            found = Account(entry.pw_uid, entry.pw_gid or entry.pw_uid)
    return found if is_known(found.uid, _MAP) else None


def is_known(uid: int, known: Path) -> bool:
    """Whether a user is among those of our namespace."""
    try:
        lines = [[int(number) for number in line.split()] for line in known.read_text().splitlines()]
    except (OSError, ValueError):
        return True
    return any(first <= uid < first + count for first, _, count in lines)


def owner(path: Path) -> Account:
    found = path.stat()
    return Account(found.st_uid, found.st_gid)


def owner_or(dedicated: Account, folders: Iterable[Path]) -> Account:
    """The owner of the first folder that is not root's, so that what a program makes there is the owner's."""
    for folder in folders:
        found = owner(folder)
        if found.uid != 0:
            return Account(found.uid, found.gid or found.uid)
    return dedicated
