"""What is in a folder: every kind of thing, odd names, and changes that hide from a look at the times."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import socket
from pathlib import Path

import pytest
from amounts import amount

from gateway.errors import NotFound
from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout
from gateway.workspace.openat import ComponentOpener, Parts, choose_opener
from gateway.workspace.tree import EMPTY, Tree

from .folders import disturb, let_it_age, new_checkout, sha, walk, write

pytestmark = pytest.mark.promise("T2")


def test_every_kind_of_thing_is_in_the_tree(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "a/b.txt", b"1")
    write(work / "run.sh", b"#!", 0o755)
    (work / "link").symlink_to("a/b.txt")
    (work / "directory-link").symlink_to("a")
    (work / "out").symlink_to("/etc/passwd")
    (work / "empty/deep").mkdir(parents=True)
    assert checkout.snapshot() == walk(work)
    assert checkout.snapshot() == Tree(
        {
            "a/b.txt": sha(b"1"),
            "run.sh": sha(b"#!"),
            "link": sha(b"a/b.txt"),
            "directory-link": sha(b"a"),
            "out": sha(b"/etc/passwd"),
        },
        {"run.sh": "x", "link": "l", "directory-link": "l", "out": "l", "empty/deep": "d"},
    )


def test_an_empty_folder_is_the_empty_tree(tmp_path: Path) -> None:
    assert new_checkout(tmp_path).snapshot() == EMPTY


def test_hidden_files_are_files(tmp_path: Path) -> None:
    checkout = new_checkout(tmp_path / ".hidden")
    write(tmp_path / ".hidden/files/.env")
    write(tmp_path / ".hidden/files/.git/config")
    assert set(checkout.snapshot().files) == {".env", ".git/config"}


def test_odd_names_come_back_as_they_were(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    names = [
        "ünï/ðé 漢字\n.txt",
        os.fsdecode(b"bad\xff\xfe/\x80.bin"),
        "private\uef85",
        " ",
        "\\",
        '"',
        "-rf",
        "a\tb",
        "x" * 255,
    ]
    for name in names:
        write(work / name, name.encode("utf-8", "surrogateescape"))
    tree = checkout.snapshot()
    assert tree == walk(work)
    assert len(tree.files) == len(names)
    assert json.loads(json.dumps(tree.files).encode()) == tree.files
    before = sorted(os.fsencode(path) for path in work.rglob("*"))
    checkout.materialize(EMPTY)
    assert not list(work.iterdir())
    checkout.materialize(tree)
    assert sorted(os.fsencode(path) for path in work.rglob("*")) == before
    assert walk(work) == tree


def test_pipes_and_sockets_are_skipped_and_reported_without_waiting(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "file")
    (work / "only").mkdir()
    os.mkfifo(work / "only/pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(work)  # the name of a socket may not be long
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)
    for _ in range(2):
        assert checkout.snapshot() == Tree({"file": sha(b"x")})
        assert checkout.skipped == {"only/pipe": "a pipe, socket or device", "socket": "a pipe, socket or device"}


def test_files_still_being_written_are_not_in_the_tree(tmp_path: Path) -> None:
    checkout = new_checkout(tmp_path)
    write(tmp_path / "files/d/.toolgate-0123")
    assert checkout.snapshot() == Tree({}, {"d": "d"})
    assert checkout.skipped == {}


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as refused:
        Checkout(tmp_path / "gone", FileBlobs(tmp_path / "blobs")).snapshot()
    assert refused.value.code == "WORKSPACE_NOT_FOUND"


class Locked:
    """A way to which some names are closed."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def open(self, directory: int, parts: Parts, flags: int) -> int:
        if parts and parts[-1] in self.names:
            raise PermissionError(errno.EACCES, "no")
        return choose_opener().open(directory, parts, flags)

    def rename_new(self, source: int, name: str, target: int, new_name: str) -> None:
        raise NotImplementedError


def test_what_cannot_be_read_is_reported_and_taken_in_when_it_can(tmp_path: Path) -> None:
    work, way = tmp_path / "files", Locked("secret", "closed")
    write(work / "secret")
    write(work / "closed/file")
    write(work / "open/file")
    let_it_age(work)
    checkout = Checkout(work, FileBlobs(tmp_path / "blobs"), opener=way)
    for _ in range(2):
        assert set(checkout.snapshot().files) == {"open/file"}
        assert set(checkout.skipped) == {"secret", "closed"}
    way.names = ()
    assert checkout.snapshot() == walk(work)
    assert checkout.skipped == {}


def test_both_ways_of_opening_see_the_same(tmp_path: Path) -> None:
    work = tmp_path / "files"
    write(work / "a/b/c")
    (work / "link").symlink_to("a")
    assert Checkout(work, FileBlobs(tmp_path / "blobs"), opener=ComponentOpener()).snapshot() == walk(work)


def test_a_deep_tree_is_seen_to_its_bottom(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work.joinpath(*["d"] * 300, "file"))
    tree = checkout.snapshot()
    assert tree == walk(work)
    checkout.materialize(EMPTY)
    assert not list(work.iterdir())
    checkout.materialize(tree)
    assert walk(work) == tree


def test_no_rewrite_of_the_same_size_in_the_same_instant_is_missed(tmp_path: Path) -> None:
    checkout, file = new_checkout(tmp_path), tmp_path / "files/file"
    for number in range(amount(300, 100)):
        file.write_bytes(b"%06d" % number)
        assert checkout.snapshot().files == {"file": sha(b"%06d" % number)}


def test_a_modification_time_set_back_hides_nothing(tmp_path: Path) -> None:
    checkout, file = new_checkout(tmp_path), write(tmp_path / "files/file", b"aaa")
    let_it_age(file.parent)
    checkout.snapshot()
    before = file.stat()
    file.write_bytes(b"bbb")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    let_it_age(file.parent)
    assert checkout.snapshot().files == {"file": sha(b"bbb")}


def test_two_directories_that_trade_names_are_told_apart(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    for path, content in {"a/f": b"1", "b/f": b"2", "a/only": b"3"}.items():
        os.utime(write(work / path, content), ns=(10**18, 10**18))
    for name in "ab":
        os.utime(work / name, ns=(10**18, 10**18))
    let_it_age(work)
    checkout.snapshot()
    (work / "a").rename(work / "c")
    (work / "b").rename(work / "a")
    (work / "c").rename(work / "b")
    assert checkout.snapshot() == walk(work)


def test_a_file_and_a_directory_that_trade_places_are_seen(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "a/b")
    let_it_age(work)
    checkout.snapshot()
    shutil.rmtree(work / "a")
    write(work / "a", b"file")
    assert checkout.snapshot() == Tree({"a": sha(b"file")})
    (work / "a").unlink()
    (work / "a").symlink_to("b")
    assert checkout.snapshot() == walk(work)


def test_an_exec_bit_alone_is_a_change(tmp_path: Path) -> None:
    checkout, file = new_checkout(tmp_path), write(tmp_path / "files/file")
    let_it_age(file.parent)
    checkout.snapshot()
    file.chmod(0o755)
    assert checkout.snapshot().meta == {"file": "x"}
    file.chmod(0o644)
    assert checkout.snapshot().meta == {}


class Counting(FileBlobs):
    """Says how many contents were read."""

    count = 0

    def put(self, source: object) -> str:
        self.count += 1
        return super().put(source)  # type: ignore[arg-type]


def test_only_what_changed_is_read(tmp_path: Path) -> None:
    work, blobs = tmp_path / "files", Counting(tmp_path / "blobs")
    for number in range(50):
        write(work / f"{number % 5}/{number}", b"%d" % number)
    let_it_age(work)
    checkout = Checkout(work, blobs, tmp_path / "index")
    first = checkout.snapshot()
    checkout.save()
    blobs.count = 0
    assert checkout.snapshot() is first
    assert Checkout(work, blobs, tmp_path / "index").snapshot() == first
    assert blobs.count == 0
    write(work / "1/1", b"changed")
    assert checkout.snapshot() == walk(work)
    assert blobs.count == 1


def test_a_file_too_young_to_trust_is_read_again(tmp_path: Path) -> None:
    work, blobs = tmp_path / "files", Counting(tmp_path / "blobs")
    write(work / "old")
    let_it_age(work)
    young = write(work / "young")
    os.utime(young, (2**33, 2**33))
    checkout = Checkout(work, blobs)
    for count in (2, 3, 4):
        checkout.snapshot()
        assert blobs.count == count
    os.utime(young, (0, 0))
    let_it_age(work)
    for _ in range(3):
        checkout.snapshot()
        assert blobs.count == 5, "once more because it changed, and then no more"


def test_a_restore_of_many_files_needs_no_second_reading(tmp_path: Path) -> None:
    work, blobs = tmp_path / "files", Counting(tmp_path / "blobs")
    for number in range(70):
        write(work / f"{number % 5}/{number}", b"%d" % number)
    checkout = Checkout(work, blobs)
    tree = checkout.snapshot()
    checkout.materialize(EMPTY)
    checkout.materialize(tree)
    blobs.count = 0
    assert checkout.snapshot() == tree == walk(work)
    assert blobs.count == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"toolgate-index-0" + content[16:],
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(sha(b"x").encode(), sha(b"y").encode()),
        lambda content: b"\xff" * len(content),
    ],
)
def test_a_damaged_index_is_passed_over(tmp_path: Path, damage: object) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "file", b"x")
    let_it_age(work)
    checkout.snapshot()
    checkout.save()
    index = tmp_path / "index"
    index.write_bytes(damage(index.read_bytes()))  # type: ignore[operator]
    assert new_checkout(tmp_path).snapshot() == walk(work)


def test_the_index_of_another_folder_is_passed_over(tmp_path: Path) -> None:
    checkout = new_checkout(tmp_path / "one")
    write(tmp_path / "one/files/file", b"x")
    checkout.snapshot()
    checkout.save()
    other = new_checkout(tmp_path / "other")
    shutil.copy(tmp_path / "one/index", tmp_path / "other/index")
    assert other.snapshot() == EMPTY


def test_a_stale_index_misleads_nobody(tmp_path: Path) -> None:
    work, chance = tmp_path / "files", random.Random(3)
    new_checkout(tmp_path)
    for _ in range(30):
        checkout = new_checkout(tmp_path)
        assert checkout.snapshot() == walk(work)
        checkout.save()
        for _ in range(3):
            disturb(work, chance)
            assert checkout.snapshot() == walk(work)


def test_a_content_that_a_sweep_took_is_kept_anew(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "file", b"x")
    let_it_age(work)
    tree = checkout.snapshot()
    checkout.save()
    blobs = FileBlobs(tmp_path / "blobs")
    for fresh in (checkout, new_checkout(tmp_path)):
        Path(blobs.path(sha(b"x"))).unlink()
        blobs.begin_epoch()
        assert fresh.snapshot() == tree
        assert blobs.missing(tree.files.values()) == set()


def test_a_store_that_was_deleted_is_filled_again(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "file", b"x")
    let_it_age(work)
    tree = checkout.snapshot()
    checkout.save()
    shutil.rmtree(tmp_path / "blobs")
    assert new_checkout(tmp_path).snapshot() == tree
    assert FileBlobs(tmp_path / "blobs").missing(tree.files.values()) == set()


@pytest.mark.parametrize("aged", [True, False])
def test_names_that_stay_while_what_they_name_changes(tmp_path: Path, aged: bool) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    for name in ("file", "taken", "taker", "link"):
        write(work / name, name.encode())
    write(work / "directory/inside", b"1")
    checkout.snapshot()
    if aged:
        let_it_age(work)
        checkout.snapshot()
    (work / "file").unlink()
    write(work / "file/now-inside", b"2")
    shutil.rmtree(work / "directory")
    write(work / "directory", b"3")
    (work / "taker").rename(work / "taken")
    write(work / "taker", b"4")
    (work / "link").unlink()
    (work / "link").symlink_to("taken")
    assert checkout.snapshot() == walk(work)
    assert set(walk(work).files) == {"file/now-inside", "directory", "taken", "taker", "link"}
