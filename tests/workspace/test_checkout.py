"""An earlier tree back in its folder: exactly that, touching only what differs, and never what is in no version."""

from __future__ import annotations

import io
import os
import shutil
import stat
from pathlib import Path

import pytest

from gateway.errors import Conflict, Invalid, Unavailable
from gateway.workspace.blobs import CHUNK, FileBlobs
from gateway.workspace.checkout import Checkout
from gateway.workspace.openat import ComponentOpener
from gateway.workspace.tree import EMPTY, Changes, Tree

from .folders import new_checkout, sha, walk, write

pytestmark = pytest.mark.promise("T2")


def test_an_earlier_tree_comes_back_byte_for_byte(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "a/b.txt", b"1")
    write(work / "large", b"large" * CHUNK)
    write(work / "run.sh", b"#!", 0o755)
    (work / "link").symlink_to("a/b.txt")
    (work / "empty/deep").mkdir(parents=True)
    first = checkout.snapshot()
    write(work / "a/b.txt", b"2")
    (work / "run.sh").chmod(0o644)
    (work / "link").unlink()
    (work / "empty/deep").rmdir()
    write(work / "new/file", b"3")
    second = checkout.snapshot()
    assert checkout.materialize(first) == Changes(
        added=("empty/deep/", "link"), changed=("a/b.txt", "run.sh"), deleted=("new/file",)
    )
    assert walk(work) == first == checkout.snapshot()
    assert checkout.materialize(second) == Changes(
        added=("new/file",), changed=("a/b.txt", "run.sh"), deleted=("empty/deep/", "link")
    )
    assert walk(work) == second
    assert not checkout.materialize(second)


def test_the_other_way_of_opening_restores_the_same(tmp_path: Path) -> None:
    work = tmp_path / "files"
    write(work / "a/b/c", b"1")
    (work / "link").symlink_to("a")
    checkout = Checkout(work, FileBlobs(tmp_path / "blobs"), opener=ComponentOpener())
    tree = checkout.snapshot()
    checkout.materialize(EMPTY)
    assert not list(work.iterdir())
    checkout.materialize(tree)
    assert walk(work) == tree


def test_files_directories_and_links_take_each_others_place(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    trees = [EMPTY]
    for make in (
        lambda: write(work / "a", b"file"),
        lambda: write(work / "a/b/c", b"directory"),
        lambda: (work / "a").symlink_to("elsewhere"),
        lambda: (work / "a/b").mkdir(parents=True),
        lambda: (work / "a").mkdir(),
        lambda: write(work / "a", b"program", 0o755),
    ):
        checkout.materialize(EMPTY)
        make()
        trees.append(checkout.snapshot())
    for one in trees:
        for other in trees:
            checkout.materialize(one)
            checkout.materialize(other)
            assert walk(work) == other == checkout.snapshot()


def test_a_link_in_the_place_of_a_directory_is_replaced_and_never_followed(tmp_path: Path) -> None:
    checkout, work, outside = new_checkout(tmp_path), tmp_path / "files", tmp_path / "outside"
    write(outside / "f", b"mine")
    write(work / "d/f", b"1")
    write(work / "d/g", b"2")
    tree = checkout.snapshot()
    shutil.rmtree(work / "d")
    (work / "d").symlink_to(outside)
    checkout.materialize(tree)
    assert walk(work) == tree
    assert walk(outside) == Tree({"f": sha(b"mine")})


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", "a//b", "./a", "a/.", "x\0y", ".toolgate-x"])
@pytest.mark.parametrize("kind", ["", "x", "l", "d"])
def test_a_tree_that_leads_out_is_refused_before_anything_is_touched(tmp_path: Path, path: str, kind: str) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "kept")
    digest = FileBlobs(tmp_path / "blobs").put(io.BytesIO(b"z"))
    with pytest.raises(Invalid):
        checkout.materialize(Tree({} if kind == "d" else {path: digest}, {path: kind} if kind else {}))
    assert walk(tmp_path / "files") == Tree({"kept": sha(b"x")})


@pytest.mark.parametrize(
    "tree",
    [
        Tree({"kept": sha(b"x"), "kept/b": sha(b"x")}),
        Tree({"d/file": sha(b"x"), "d": sha(b"x")}),
        Tree({"d/file": sha(b"x")}, {"d": "d"}),
    ],
)
def test_a_tree_that_contradicts_the_folder_or_itself_is_refused(tmp_path: Path, tree: Tree) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "kept")
    write(work / "d/file")
    before = checkout.snapshot()
    with pytest.raises(Invalid):
        checkout.materialize(tree)
    assert walk(work) == before


def test_a_link_to_nothing_sayable_is_refused(tmp_path: Path) -> None:
    checkout, blobs = new_checkout(tmp_path), FileBlobs(tmp_path / "blobs")
    for content in (b"", b"a\0b", b"x" * 5000):
        with pytest.raises(Invalid):
            checkout.materialize(Tree({"link": blobs.put(io.BytesIO(content))}, {"link": "l"}))
    assert walk(tmp_path / "files") == EMPTY


def test_only_what_differs_is_touched(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    for name in ("same", "changed", "d/same", "d/gone"):
        write(work / name, b"1")
    tree = checkout.snapshot()
    before = {name: (work / name).stat() for name in ("same", "d/same")}
    write(work / "changed", b"2")
    (work / "d/gone").unlink()
    checkout.materialize(tree)
    assert walk(work) == tree
    for name, found in before.items():
        after = (work / name).stat()
        assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
            found.st_ino,
            found.st_mtime_ns,
            found.st_ctime_ns,
        )


def test_a_file_keeps_its_permissions_but_for_the_exec_bit(tmp_path: Path) -> None:
    checkout, file = new_checkout(tmp_path), write(tmp_path / "files/file", b"1", 0o640)
    plain = checkout.snapshot()
    file.write_bytes(b"2")
    file.chmod(0o750)
    executable = checkout.snapshot()
    checkout.materialize(plain)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    checkout.materialize(executable)
    assert stat.S_IMODE(file.stat().st_mode) == 0o750


def test_what_a_tool_writes_in_place_never_reaches_a_blob(tmp_path: Path) -> None:
    checkout, file = new_checkout(tmp_path), write(tmp_path / "files/file", b"first")
    tree = checkout.snapshot()
    checkout.materialize(EMPTY)
    checkout.materialize(tree)
    with file.open("r+b") as opened:
        opened.write(b"other")
    checkout.materialize(tree)
    assert file.read_bytes() == b"first"


def test_a_missing_content_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "a", b"1")
    write(work / "d/b", b"2")
    tree = checkout.snapshot()
    (work / "a").unlink()
    shutil.rmtree(work / "d")
    write(work / "new", b"3")
    now = checkout.snapshot()
    Path(FileBlobs(tmp_path / "blobs").path(sha(b"2"))).unlink()
    with pytest.raises(Unavailable) as refused:
        checkout.materialize(tree)
    assert refused.value.code == "BLOB_MISSING"
    assert refused.value.details == {"digest": sha(b"2"), "path": "d/b"}
    assert "d/b" in refused.value.message
    assert walk(work) == now


@pytest.mark.parametrize("size", [1, 3 * CHUNK])
@pytest.mark.parametrize("there", [True, False])
def test_a_damaged_content_is_never_put_into_the_folder(tmp_path: Path, size: int, there: bool) -> None:
    checkout, file = new_checkout(tmp_path), write(tmp_path / "files/file", b"a" * size)
    tree = checkout.snapshot()
    if there:
        file.write_bytes(b"now")
    else:
        file.unlink()
    before = checkout.snapshot()
    blob = Path(FileBlobs(tmp_path / "blobs").path(sha(b"a" * size)))
    blob.chmod(0o644)
    blob.write_bytes(b"b" * size)
    with pytest.raises(Unavailable) as refused:
        checkout.materialize(tree)
    assert refused.value.code == "BLOB_CORRUPT"
    assert walk(file.parent) == before
    assert [path.name for path in file.parent.iterdir()] == list(before.files)


def test_a_pipe_gives_way_to_a_file_of_the_version(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "a", b"1")
    write(work / "d/b", b"2")
    tree = checkout.snapshot()
    shutil.rmtree(work / "d")
    (work / "a").unlink()
    os.mkfifo(work / "d")
    (work / "a").mkdir()
    os.mkfifo(work / "a/pipe")
    checkout.materialize(tree)
    assert walk(work) == tree


def test_a_pipe_that_is_in_nobodys_way_stays(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "d/file")
    os.mkfifo(work / "d/pipe")
    checkout.materialize(EMPTY)
    assert [path.name for path in (work / "d").iterdir()] == ["pipe"]
    assert checkout.snapshot() == EMPTY


def test_what_an_interrupted_writer_left_does_not_keep_a_directory(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "d/file")
    write(work / "d/.toolgate-0123")
    checkout.materialize(EMPTY)
    assert not list(work.iterdir())


def test_a_change_nobody_has_seen_is_a_conflict_for_those_who_ask(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    write(work / "file", b"1")
    tree = checkout.snapshot()
    write(work / "file", b"by hand")
    with pytest.raises(Conflict):
        checkout.materialize(EMPTY, seen=tree)
    assert (work / "file").read_bytes() == b"by hand"
    checkout.materialize(EMPTY, seen=checkout.snapshot())
    assert not list(work.iterdir())


class Meddling(FileBlobs):
    """A store during whose reading someone changes the folder."""

    meddle = staticmethod(lambda: None)

    def open(self, digest: str):  # type: ignore[no-untyped-def]
        self.meddle()
        return super().open(digest)


@pytest.mark.parametrize("there", [True, False])
def test_what_changes_during_a_restore_is_not_overwritten(tmp_path: Path, there: bool) -> None:
    work, blobs = tmp_path / "files", Meddling(tmp_path / "blobs")
    write(work / "file", b"1")
    checkout = Checkout(work, blobs)
    tree = checkout.snapshot()
    if there:
        write(work / "file", b"2")
    else:
        (work / "file").unlink()
    blobs.meddle = lambda: write(work / "file", b"by hand")  # type: ignore[assignment]
    with pytest.raises(Conflict):
        checkout.materialize(tree)
    assert walk(work) == Tree({"file": sha(b"by hand")})
    assert checkout.snapshot() == walk(work)


def test_a_folder_that_someone_half_cleared_is_completed(tmp_path: Path) -> None:
    checkout, work = new_checkout(tmp_path), tmp_path / "files"
    for number in range(100):
        write(work / f"{number % 7}/{number}", b"%d" % number)
    tree = checkout.snapshot()
    shutil.rmtree(work / "3")
    write(work / "4/4", b"half")
    new_checkout(tmp_path).materialize(tree)
    assert walk(work) == tree
