"""Blobs as files: what lies on disk, what happens to damage, and how much memory a large one takes."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Unavailable
from gateway.workspace.blobs import CHUNK, LOOSE_LIMIT, FileBlobs
from gateway.workspace.gc import SweepResult, size, sweep
from gateway.workspace.packs import read_index

from .folders import new_checkout, require_sound_blobs, sha, walk, write

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


def sweep_all(blobs: FileBlobs, live: set[str]) -> SweepResult:
    return sweep(blobs, live, 0, time.time() + 1)


def test_packed_blobs_are_found_by_other_stores_and_swept_when_none_is_used(tmp_path: Path) -> None:
    writer, reader = FileBlobs(tmp_path), FileBlobs(tmp_path)
    contents = [b"%d" % number for number in range(100)]
    digests = [writer.put(io.BytesIO(content)) for content in contents]
    with writer.open(digests[-1]) as blob:  # before it is complete
        assert blob.read() == contents[-1]
    writer.sync()
    assert len(list(tmp_path.glob("packs/*.pack"))) == 1
    assert len(list(tmp_path.glob("??/*"))) == LOOSE_LIMIT
    assert reader.missing(digests) == set()
    for digest, content in zip(digests, contents, strict=True):
        with reader.open(digest) as blob:
            assert (os.fstat(blob.fileno()).st_size, blob.read()) == (len(content), content)
    assert size(reader) == size(writer) and size(reader).blobs == 100
    assert sweep_all(writer, {digests[50]}).blobs == LOOSE_LIMIT  # a pack stays whole
    assert reader.missing(digests) == set(digests[:LOOSE_LIMIT])
    assert sweep_all(writer, set()).blobs == 1
    assert reader.missing(digests) == set(digests)
    with pytest.raises(Unavailable, match="missing"):
        reader.open(digests[50])


def test_packed_blob_that_is_put_again_is_stored_once_and_kept(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    digests = [blobs.put(io.BytesIO(b"%d" % number)) for number in range(50)]
    blobs.sync()
    [pack] = tmp_path.glob("packs/*.pack")
    os.utime(pack, (0, 0))
    assert blobs.put(io.BytesIO(b"49")) == digests[-1]
    blobs.sync()
    assert pack.stat().st_mtime > 0
    assert not Path(blobs.path(digests[-1])).exists()


def test_full_disk_while_a_pack_is_written_spoils_no_other_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FileBlobs(tmp_path)
    for number in range(20):
        blobs.put(io.BytesIO(b"before %d" % number))
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", _write_a_part_then_fail)
        with pytest.raises(OSError, match="No space"):
            blobs.put(io.BytesIO(b"does not fit at all"))
    digests = [blobs.put(io.BytesIO(content)) for content in (b"fits", b"does not fit at all")]
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _fail)
        with pytest.raises(OSError, match="No space"):
            blobs.sync()
    assert blobs.missing(digests) == set(digests)  # nothing is acknowledged
    digests = [blobs.put(io.BytesIO(b"after %d" % number)) for number in range(20)]
    digests.append(blobs.put(io.BytesIO(b"fits")))
    blobs.sync()
    for digest in digests:
        with FileBlobs(tmp_path).open(digest) as blob:
            assert hashlib.sha256(blob.read()).hexdigest() == digest


def _write_a_part_then_fail(descriptor: int, content: memoryview, offset: int) -> int:
    os.lseek(descriptor, offset, os.SEEK_SET)
    os.write(descriptor, content[:5])
    return _fail()


def _fail(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("damage", ["content", "index", "length"])
def test_damaged_pack_is_noticed(tmp_path: Path, damage: str) -> None:
    blobs = FileBlobs(tmp_path)
    digests = [blobs.put(io.BytesIO(b"content %d" % number)) for number in range(50)]
    blobs.sync()
    [pack] = tmp_path.glob("packs/*.pack")
    content = bytearray(pack.read_bytes())
    place = read_index(str(pack))[digests[-1]]
    if damage == "content":
        content[place.offset] ^= 1
    pack.chmod(0o600)
    pack.write_bytes({"content": content, "index": content[:-20], "length": content[:3]}[damage])
    with pytest.raises(Unavailable) as refused:
        FileBlobs(tmp_path).open(digests[-1])
    assert refused.value.code == ("BLOB_CORRUPT" if damage == "content" else "BLOB_MISSING")


def test_first_snapshot_of_a_large_folder_creates_few_files(tmp_path: Path) -> None:
    """Creating a file waits for the journal, for seconds while others write; reading and appending do not."""
    folder = tmp_path / "files"
    for number in range(600):
        write(folder / f"d{number % 20}/{number}", b"%d" % number)
    created = []
    real = os.open

    def count(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            created.append(path)
        return real(path, flags, *arguments, **options)

    checkout = new_checkout(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", count)
        tree = checkout.snapshot()
    assert len(created) < 20
    shutil.rmtree(folder)
    folder.mkdir()
    new_checkout(tmp_path).materialize(tree)
    assert walk(folder) == tree


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
