"""Files that several processes share: the gate they write through, and where it can be trusted."""

from __future__ import annotations

import fcntl
import os
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from gateway.errors import Unavailable

_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "fuse"}
_MOUNTS = Path("/proc/self/mountinfo")


class Gate:
    """One lock across processes, held while inside. SQLite before 3.51.3 can corrupt a database
    when one connection writes while another checkpoints; inside the gate they cannot meet."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._at_once = _AtOnce(self._descriptor)

    def __enter__(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def at_once(self) -> AbstractContextManager[None]:
        """Held while inside too; `BlockingIOError` where that would take waiting."""
        return self._at_once

    def close(self) -> None:
        os.close(self._descriptor)


class _AtOnce:
    """One for all who pass a gate so: every call that is recorded does."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def create_private(path: Path) -> None:
    """Make an empty file only its owner can read; an existing one is left alone.

    Without O_EXCL, closing the descriptor would drop the locks another connection of this process
    holds on the file.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return


def require_local(directory: Path, mounts: Path = _MOUNTS) -> None:
    """Refuse a network file system: its locks and shared memory do not hold between processes."""
    kind = _file_system(directory, mounts)
    if kind is not None and kind.partition(".")[0] in _NETWORK:
        raise Unavailable(
            f"{directory} is on {kind}, where SQLite's locks cannot be trusted; "
            "choose a data directory on a local disk",
            code="NETWORK_FILE_SYSTEM",
            file_system=kind,
        )


def _file_system(directory: Path, mounts: Path) -> str | None:
    """The type of the file system a directory is on, where Linux tells; None elsewhere."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, origin = line.partition(" - ")
        if mount.split()[2] == wanted:
            return origin.split()[0]
    return None
