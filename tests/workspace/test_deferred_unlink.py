"""Files that go: the names now, everything held for it soon, however many and whatever they are."""

from __future__ import annotations

import os
from pathlib import Path

from eventually import eventually

from gateway.workspace.restore import DeferredUnlink


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else set()


def test_names_are_gone_at_once_and_nothing_stays_open(tmp_path: Path) -> None:
    for number in range(700):
        (tmp_path / str(number)).write_bytes(b"x")
    (tmp_path / "closed").touch(0)
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    directory = os.open(tmp_path, os.O_RDONLY)
    before = open_descriptors()
    farewell = DeferredUnlink()
    for name in sorted(path.name for path in tmp_path.iterdir()):
        farewell.unlink(directory, name)
    assert not list(tmp_path.iterdir())
    farewell.flush()
    eventually(lambda: not open_descriptors() - before)
    os.close(directory)
