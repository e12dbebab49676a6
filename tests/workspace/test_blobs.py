"""Blobs as files: what lies on disk, what happens to damage, and how much memory a large one takes."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.errors import Unavailable
from gateway.workspace.blobs import CHUNK, FileBlobs

from .folders import require_sound_blobs, sha

pytestmark = pytest.mark.promise("T2")


def test_a_blob_is_a_read_only_file_named_for_its_content(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    digest = blobs.put(io.BytesIO(b"hello"))
    path = tmp_path / "blobs" / digest[:2] / digest
    assert path.read_bytes() == b"hello"
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert not list((tmp_path / "blobs/tmp").iterdir())


@pytest.mark.parametrize("content", [b"small", b"large" * CHUNK])
def test_a_blob_that_is_there_is_not_written_again(tmp_path: Path, content: bytes) -> None:
    blobs = FileBlobs(tmp_path)
    path = Path(blobs.path(blobs.put(io.BytesIO(content))))
    before = path.stat()
    os.utime(path, (1, 1))
    blobs.put(io.BytesIO(content))
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime >= before.st_mtime, "it is young again, so that no sweep takes it"
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("content", [b"small", b"large" * CHUNK])
def test_a_blob_cut_short_by_a_loss_of_power_is_written_anew(tmp_path: Path, content: bytes) -> None:
    blobs = FileBlobs(tmp_path)
    path = Path(blobs.path(sha(content)))
    path.parent.mkdir()
    path.write_bytes(b"")
    blobs.put(io.BytesIO(content))
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"small", b"large" * CHUNK])
@pytest.mark.parametrize("piece", [-1, 7, CHUNK])
def test_a_damaged_blob_is_never_read_to_its_end(tmp_path: Path, content: bytes, piece: int) -> None:
    blobs = FileBlobs(tmp_path)
    path = Path(blobs.path(blobs.put(io.BytesIO(content))))
    path.chmod(0o644)
    path.write_bytes(content[:-1] + b"!")
    with blobs.open(path.name) as blob, pytest.raises(Unavailable) as refused:
        while blob.read(piece):
            pass
    assert refused.value.code == "BLOB_CORRUPT"
    assert path.name in refused.value.message


def test_what_fails_on_the_way_leaves_nothing_behind(tmp_path: Path) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 2 * CHUNK:
                raise OSError("the disk went away")
            return super().read(size)

    blobs = FileBlobs(tmp_path)
    with pytest.raises(OSError, match="went away"):
        blobs.put(Failing(b"x" * 4 * CHUNK))
    assert not list((tmp_path / "tmp").iterdir())
    assert require_sound_blobs(tmp_path) == 0


@pytest.mark.parametrize("count", [1, 8, 9, 40])
def test_few_and_many_blobs_are_made_durable(tmp_path: Path, count: int) -> None:
    blobs = FileBlobs(tmp_path)
    for number in range(count):
        blobs.put(io.BytesIO(b"%d" % number))
    blobs.sync()
    blobs.sync()
    assert require_sound_blobs(tmp_path) == count


LARGE = """
import re, resource, sys
from pathlib import Path
from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout
from gateway.workspace.tree import EMPTY

def peak():  # what getrusage says includes the process that started this one
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

place = Path(sys.argv[1])
checkout = Checkout(place / "files", FileBlobs(place / "blobs"))
checkout.snapshot()
before = peak()
with (place / "files/large").open("wb") as file:
    for number in range(500):
        file.write(number.to_bytes(2, "big") * (512 * 1024))
tree = checkout.snapshot()
checkout.materialize(EMPTY)
checkout.materialize(tree)
print(peak() - before, tree.files["large"])
"""


@pytest.mark.slow
def test_half_a_gigabyte_goes_in_and_out_in_less_than_20_mb_of_memory(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    output = subprocess.run([sys.executable, "-c", LARGE, str(tmp_path)], capture_output=True, text=True, check=True)
    grown, digest = output.stdout.split()
    assert int(grown) < 20_000_000
    with (tmp_path / "files/large").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest
    assert (tmp_path / "files/large").stat().st_size == 500 * 1024 * 1024
