"""The user that programs run as if the gateway is root: never root."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

if sys.platform != "win32":
    import pwd

# An operator can choose the account by creating one with this name.
USER = "toolgate"

# Otherwise: an id that neither distributions nor systemd assign, and that containers have.
_UID = 60700

_MAP = Path("/proc/self/uid_map")


@dataclass(frozen=True)
class UserAccount:
    uid: int
    gid: int


def account() -> UserAccount | None:
    """Return the user for programs; None if the gateway is not root, or is root only of a container without other
    users, which is a normal user outside."""
    if os.geteuid() != 0:
        return None
    found = UserAccount(_UID, _UID)
    with suppress(KeyError):
        entry = pwd.getpwnam(USER)
        if entry.pw_uid != 0:
            found = UserAccount(entry.pw_uid, entry.pw_gid or entry.pw_uid)
    return found if is_known(found.uid, _MAP) else None


def is_known(uid: int, known: Path) -> bool:
    """Return whether a user exists in our user namespace."""
    try:
        lines = [[int(number) for number in line.split()] for line in known.read_text().splitlines()]
    except (OSError, ValueError):
        return True
    return any(first <= uid < first + count for first, _, count in lines)


def owner(path: Path) -> UserAccount:
    found = path.stat()
    return UserAccount(found.st_uid, found.st_gid)


def owner_or(dedicated: UserAccount, folders: Iterable[Path]) -> UserAccount:
    """Return the owner of the first folder that is not root's, so that files created there belong to the owner."""
    for folder in folders:
        found = owner(folder)
        if found.uid != 0:
            return UserAccount(found.uid, found.gid or found.uid)
    return dedicated
