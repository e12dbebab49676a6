"""Change times, asked for in bulk: the same as one would ask for each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.workspace import index
from gateway.workspace.index import change_times


@pytest.fixture(params=["at once", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "one by one":
        monkeypatch.setattr(index, "_statx", lambda: None)
    elif index._statx() is None:
        pytest.skip("this system has no statx")


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 700])
def test_each_file_has_its_own_time(tmp_path: Path, way: None, count: int) -> None:
    names = [f"{number} ü\udcff".encode(errors="surrogateescape") for number in range(count)]
    for name in names:
        (tmp_path / os.fsdecode(name)).touch()
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        asked = [os.stat(name, dir_fd=directory).st_ctime_ns for name in names]
        assert change_times(directory, names) == index.to_change_times(asked)
    finally:
        os.close(directory)


def test_a_link_is_asked_itself_and_a_missing_file_is_none(tmp_path: Path, way: None) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        own = (tmp_path / "link").lstat().st_ctime_ns
        assert change_times(directory, [b"link"]) == index.to_change_times([own])
        assert change_times(directory, [b"link", b"gone"]) is None
    finally:
        os.close(directory)
