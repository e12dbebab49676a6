"""What a sweep takes, what it leaves, and that no writer loses a content to it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.workspace.blobs import FileBlobs
from gateway.workspace.gc import BlobsSize, SweepResult, size, sweep

from .folders import require_sound_blobs

pytestmark = pytest.mark.promise("T2")

DAY = 24 * 3600.0


def put(blobs: FileBlobs, content: bytes, written_at: float) -> str:
    digest = blobs.put(io.BytesIO(content))
    os.utime(blobs.path(digest), (written_at, written_at))
    return digest


def test_a_sweep_takes_what_no_version_names_and_nobody_touched_for_a_while(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    live, dead, young = put(blobs, b"live", 0), put(blobs, b"dead!", 0), put(blobs, b"young", DAY)
    assert sweep(blobs, {live}, older_than=DAY, now=1.5 * DAY) == SweepResult(blobs=1, bytes=5)
    assert blobs.missing([live, dead, young]) == {dead}
    assert sweep(blobs, {live}, older_than=DAY, now=1.5 * DAY) == SweepResult()


def test_a_sweep_takes_stale_temporary_files(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    for name, at in {"stale": 0.0, "being-written": DAY}.items():
        (tmp_path / "tmp" / name).write_bytes(b"123")
        os.utime(tmp_path / "tmp" / name, (at, at))
    assert sweep(blobs, set(), older_than=DAY, now=1.5 * DAY) == SweepResult(temporary=1, bytes=3)
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["being-written"]


def test_a_content_found_again_is_young_again(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    digest = put(blobs, b"found", 0)
    blobs.put(io.BytesIO(b"found"))
    now = Path(blobs.path(digest)).stat().st_mtime
    assert sweep(blobs, set(), older_than=60, now=now + 59) == SweepResult()
    assert sweep(blobs, set(), older_than=60, now=now + 61) == SweepResult(blobs=1, bytes=5)


def test_a_sweep_begins_an_epoch(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    before = blobs.epoch()
    sweep(blobs, set(), older_than=0, now=0)
    assert blobs.epoch() != before
    assert blobs.epoch() == FileBlobs(tmp_path).epoch()


def test_the_size_is_of_blobs_alone(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    assert size(blobs) == BlobsSize()
    for content in (b"one", b"three"):
        blobs.put(io.BytesIO(content))
    (tmp_path / "tmp/other").write_bytes(b"1234567")
    assert size(blobs) == BlobsSize(blobs=2, bytes=8)


class Pausing(FileBlobs):
    """A writer that stops where it has found a blob and is about to rely on it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.inside, self.go_on = threading.Event(), threading.Event()

    @contextmanager
    def held(self, *, shared: bool) -> Iterator[None]:
        with super().held(shared=shared):
            self.inside.set()
            assert self.go_on.wait(30)
            yield


def test_a_sweep_waits_for_a_writer_that_has_just_found_a_blob(tmp_path: Path) -> None:
    digest = put(FileBlobs(tmp_path), b"found", 0)
    writer = Pausing(tmp_path)
    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(writer.put, io.BytesIO(b"found"))
        assert writer.inside.wait(30)
        sweeping = threads.submit(sweep, FileBlobs(tmp_path), set[str](), older_than=DAY, now=2 * DAY)
        with pytest.raises(TimeoutError):
            sweeping.result(0.2)
        writer.go_on.set()
        assert writing.result(30) == digest
        assert sweeping.result(30) == SweepResult()
    assert not writer.missing([digest])


WRITER = """
import io, os, sys
from pathlib import Path
from gateway.workspace.blobs import FileBlobs
blobs = FileBlobs(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(int(sys.argv[2])):
    digest = blobs.put(io.BytesIO(b"%d" % (number % 7)))
    assert not blobs.missing([digest]), number
    if number % 3 == 0:
        try:
            os.utime(blobs.path(digest), (0, 0))
        except FileNotFoundError:
            pass
"""


def test_a_writer_in_another_process_never_loses_what_it_has_just_found(tmp_path: Path) -> None:
    """The writer makes its blobs old behind the sweep's back, so that every round of both is a race."""
    blobs = FileBlobs(tmp_path)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), "8000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    removed = 0
    while writer.poll() is None:
        removed += sweep(blobs, set(), older_than=DAY, now=2 * DAY).blobs
    _, complaint = writer.communicate()
    assert writer.returncode == 0, complaint
    assert removed > 0
    require_sound_blobs(tmp_path)
