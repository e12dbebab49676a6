"""How much folders and file systems have grown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gateway.sandbox import growth
from gateway.sandbox.growth import DEPTH_LIMIT, Filled, Growth, Size
from gateway.sandbox.launcher import remove

NOTHING = Size(-1, -1)


def test_a_file_system_counts_once_it_is_the_programs_own(tmp_path: Path) -> None:
    assert not Filled(tmp_path, NOTHING, host=tmp_path).full()
    assert not Filled(tmp_path / "gone", NOTHING, host=Path("/proc")).full()
    assert Filled(tmp_path, NOTHING, host=Path("/proc")).full()
    assert not Filled(tmp_path, Size(2**62, 2**62), host=Path("/proc")).full()


@pytest.fixture
def own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that nobody else uses: what others free on the real one hides what was taken."""

    def free(_: Sequence[Path]) -> Size:
        found = [path.lstat() for path in tmp_path.rglob("*")]
        blocks = {(each.st_ino, each.st_blocks) for each in found}
        return Size(2**40 - sum(count for _, count in blocks) * 512, 2**20 - len(blocks))

    monkeypatch.setattr(growth, "_free", free)


@pytest.mark.usefixtures("own_disk")
def test_growth_is_seen_without_waiting_for_a_walk(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(os.urandom(2**20))
    gauge = Growth([tmp_path], Size(2**20, 1000))
    assert not gauge.full()
    (tmp_path / "new").write_bytes(os.urandom(2**21))
    assert gauge.full()
    gauge.renew()
    assert not gauge.full()
    assert not gauge.full()


@pytest.mark.usefixtures("own_disk")
def test_links_are_counted_once_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "outside").write_bytes(os.urandom(2**22))
    gauge = Growth([tmp_path / "folder"], Size(2**21, 30))
    (tmp_path / "folder/file").write_bytes(os.urandom(2**20))
    for number in range(8):
        os.link(tmp_path / "folder/file", tmp_path / f"folder/hard{number}")
        os.symlink(tmp_path / "outside", tmp_path / f"folder/soft{number}")
    assert not gauge.full()
    for number in range(40):
        (tmp_path / f"folder/{number}").touch()
    assert gauge.full()


@pytest.fixture
def pit(tmp_path: Path) -> Iterator[Path]:
    """A folder too deep for a path, with what should not be readable in it."""
    folder = tmp_path / "pit"
    folder.mkdir()
    fd = os.open(folder, os.O_DIRECTORY)
    for _ in range(1500):
        os.mkdir("d" * 20, dir_fd=fd)
        below = os.open("d" * 20, os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT, dir_fd=fd))
    os.mkdir("locked", 0, dir_fd=fd)
    os.close(fd)
    yield folder
    remove(str(folder))


def test_nothing_is_buried_too_deep(pit: Path) -> None:
    assert DEPTH_LIMIT < 1500
    gauge = Growth([pit], Size(2**30, 10**6))
    gauge._walked -= 60
    gauge._since -= 60
    assert gauge.full()


def test_whatever_a_program_leaves_can_be_removed(pit: Path) -> None:
    remove(str(pit))
    assert not pit.exists()
