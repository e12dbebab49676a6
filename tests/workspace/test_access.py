"""Folders that a program locked: a chat's own are opened again, a person's are left alone and named."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.errors import Forbidden
from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout
from gateway.workspace.openat import ComponentOpener, PathOpener, choose_opener, restore_access, restore_access_below
from gateway.workspace.tree import EMPTY, Tree
from gateway.workspace.workspaces import Workspaces

from .folders import sha, write

STRANGER = 64101
# Root is kept out by no mode: to it these show that the next program finds its folder open again.
USERS = ["ourselves"] + ["stranger"] * (os.geteuid() == 0)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name).resolve()


@pytest.fixture(params=USERS)
def alone(request: pytest.FixtureRequest, place: Path) -> Callable[[Callable[[], None]], None]:
    """Runs something as ourselves, or as the owner of `place` in a process of its own."""
    return (lambda action: action()) if request.param == "ourselves" else (lambda action: _as_stranger(action, place))


Alone = Callable[[Callable[[], None]], None]


@pytest.mark.parametrize("mode", [0, 0o100, 0o300, 0o400, 0o600])
@pytest.mark.parametrize("opener", [choose_opener(), ComponentOpener()], ids=["best", "stepwise"])
def test_a_chats_own_folders_are_opened_again(place: Path, alone: Alone, mode: int, opener: PathOpener) -> None:
    def locked() -> None:
        work = place / "files"
        write(work / "a/b/file", b"1")
        write(work / "top", b"2")
        checkout = Checkout(work, FileBlobs(place / "blobs"), opener=opener, ours=True)
        expected = Tree({"a/b/file": sha(b"1"), "top": sha(b"2")})
        for folders in ([work], [work / "a"], [work / "a/b", work / "a", work]):
            for folder in folders:
                folder.chmod(mode)
            assert checkout.snapshot() == expected
            assert checkout.skipped == {}
            assert all(folder.stat().st_mode & 0o777 == mode | 0o700 for folder in folders)
        work.chmod(mode)
        checkout.materialize(EMPTY)
        assert not list(work.iterdir())

    alone(locked)


def test_the_next_program_finds_its_folder_open(place: Path, alone: Alone) -> None:
    def locked() -> None:
        workspaces = Workspaces(place / "data")
        write(workspaces.path("chat") / "file", b"1")
        workspaces.path("chat").chmod(0)
        assert workspaces.path("chat").stat().st_mode & 0o777 == 0o700
        with workspaces.root("chat") as root:
            assert root.stat(("file",)).st_size == 1

    alone(locked)


@pytest.mark.parametrize("mode", [0, 0o300, 0o400])
def test_a_persons_folder_is_named_and_not_touched(place: Path, alone: Alone, mode: int) -> None:
    def locked() -> None:
        mine = place / "it's mine"
        write(mine / "file", b"1")
        workspaces = Workspaces(place / "data", {"chat": mine})
        mine.chmod(mode)
        for use in (workspaces.path, workspaces.root):
            with pytest.raises(Forbidden) as refused:
                use("chat")
            assert "chmod u+rx" in refused.value.message
            assert str(mine.name.replace("'", "'\"'\"'")) in refused.value.message
        if os.geteuid() != 0:
            with pytest.raises(Forbidden):
                Checkout(mine, FileBlobs(place / "blobs")).snapshot()
        assert mine.stat().st_mode & 0o777 == mode
        mine.chmod(0o700)
        assert workspaces.path("chat") == mine

    alone(locked)


def test_what_is_locked_in_a_persons_folder_is_left_out_and_not_touched(place: Path, alone: Alone) -> None:
    def locked() -> None:
        write(place / "mine/a/file", b"1")
        (place / "mine/a").chmod(0)
        checkout = Checkout(place / "mine", FileBlobs(place / "blobs"))
        checkout.snapshot()
        assert (place / "mine/a").stat().st_mode & 0o777 == 0
        if os.geteuid() != 0:
            assert checkout.skipped == {"a": "not readable by the gateway"}
        (place / "mine/a").chmod(0o700)

    alone(locked)


def test_nothing_is_opened_through_a_link_nor_what_is_no_folder(place: Path) -> None:
    outside = place / "outside"
    outside.mkdir(0)
    write(place / "file", b"1", 0)
    (place / "link").symlink_to(outside)
    above = os.open(place, os.O_DIRECTORY)
    for name in ("link", "file", "gone"):
        restore_access(place / name)
        restore_access_below(above, name)
    os.close(above)
    assert outside.stat().st_mode & 0o777 == 0
    assert (place / "file").stat().st_mode & 0o777 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what is someone else's")
def test_what_is_someone_elses_is_not_opened(place: Path) -> None:
    folder = place / "theirs"
    folder.mkdir(0)
    os.chown(folder, STRANGER, STRANGER)
    restore_access(folder)
    assert folder.stat().st_mode & 0o777 == 0


def _as_stranger(action: Callable[[], None], place: Path) -> None:
    """In a child that is nobody special: there, modes bind."""
    os.chown(place, STRANGER, STRANGER)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(STRANGER, STRANGER, STRANGER)
            os.setresuid(STRANGER, STRANGER, STRANGER)
            action()
        except BaseException:
            os.write(theirs, traceback.format_exc().encode()[-8000:])
        finally:
            os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(ours, "rb") as file:
        assert file.read().decode() == ""
