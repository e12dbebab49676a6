"""The repository of a person's own folder that lies elsewhere, because the folder is one of its worktrees."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import GatewayError
from gateway.workspace import Parts

if TYPE_CHECKING:
    from gateway.sources.development.call_context import Bench

_LINE = 4096


def elsewhere(bench: Bench, where: Parts) -> Path | None:
    """The repository that a folder is a worktree of, where the repository says so too: who can write to the folder
    could else have any repository of the machine read. Blocks, for a thread."""
    nearest = next((parts for parts in _upwards(where) if bench.found(parts) is not None), None)
    if not bench.attached or nearest != (".git",):
        return None
    try:
        with bench.root.open(nearest) as file:
            led = file.read(_LINE).removeprefix(b"gitdir: ").strip()
        own = Path(os.path.realpath(os.fsdecode(led)))
        if not led.startswith(b"/") or own.parent.name != "worktrees":
            return None
        back = os.path.realpath(_line(own / "gitdir"))
    except (GatewayError, OSError, ValueError):
        return None
    return own.parent.parent if back == os.path.realpath(bench.folder / ".git") else None


def _upwards(where: Parts) -> list[Parts]:
    return [(*where[:depth], ".git") for depth in range(len(where), -1, -1)]


def _line(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{path} is no file")
        return os.fsdecode(file.read(_LINE).strip())
