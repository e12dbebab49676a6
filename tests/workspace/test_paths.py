"""Every verb of a workspace root, in both ways of opening paths."""

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import GatewayError
from gateway.workspace import ComponentOpener, Openat2, PathOpener, Root, parse
from gateway.workspace.walk import DEPTH_LIMIT, timestamp

WAYS = [pytest.param(Openat2(), id="openat2"), pytest.param(ComponentOpener(), id="stepwise")]


@pytest.fixture(params=WAYS)
def opener(request: pytest.FixtureRequest) -> PathOpener:
    chosen: PathOpener = request.param
    return chosen


@pytest.fixture
def root(opener: PathOpener, tmp_path: Path) -> Iterator[Root]:
    (tmp_path / "ws").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    before = len(os.listdir("/proc/self/fd"))
    with Root(tmp_path / "ws", opener) as root:
        yield root
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"


def code(call: object, *arguments: object, **options: object) -> str:
    assert callable(call)
    with pytest.raises(GatewayError) as refused:
        result = call(*arguments, **options)
        list(result)
    return refused.value.code


def test_a_file_is_created_read_and_replaced(root: Root, tmp_path: Path) -> None:
    root.create(("a.txt",), b"one")
    with root.open(("a.txt",)) as file:
        assert file.read() == b"one"
    root.replace(("a.txt",), b"two")
    assert (tmp_path / "ws/a.txt").read_bytes() == b"two"
    assert os.listdir(tmp_path / "ws") == ["a.txt"]


def test_creating_never_replaces(root: Root, tmp_path: Path) -> None:
    root.create(("a.txt",), b"one")
    os.symlink("nowhere", tmp_path / "ws/dangling")
    (tmp_path / "ws/dir").mkdir()
    assert code(root.create, ("a.txt",), b"two") == "FILE_EXISTS"
    assert code(root.create, ("dangling",), b"two") == "FILE_EXISTS"
    assert code(root.create, ("dir",), b"two") == "IS_DIRECTORY"
    assert sorted(os.listdir(tmp_path / "ws")) == ["a.txt", "dangling", "dir"]
    assert (tmp_path / "ws/a.txt").read_bytes() == b"one"


def test_replacing_keeps_permissions_but_no_setuid_bit(root: Root, tmp_path: Path) -> None:
    script = tmp_path / "ws/run.sh"
    script.write_text("old")
    script.chmod(0o4750)
    root.replace(("run.sh",), b"new")
    assert stat.S_IMODE(script.stat().st_mode) == 0o750


def test_a_new_file_has_the_permissions_of_any_new_file(root: Root, tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_text("")
    root.create(("a",), b"")
    assert (tmp_path / "ws/a").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


def test_replacing_what_was_changed_since_it_was_seen_is_refused(root: Root, tmp_path: Path) -> None:
    root.create(("a.txt",), b"one")
    seen = root.stat(("a.txt",))
    (tmp_path / "ws/a.txt").write_bytes(b"other")
    assert code(root.replace, ("a.txt",), b"two", seen=seen) == "CONFLICT"
    (tmp_path / "ws/a.txt").unlink()
    assert code(root.replace, ("a.txt",), b"two", seen=seen) == "CONFLICT"
    assert os.listdir(tmp_path / "ws") == []


def test_directories_are_made_once_and_told(root: Root) -> None:
    assert root.make_directories(("a", "b", "c")) == [("a",), ("a", "b"), ("a", "b", "c")]
    assert root.make_directories(("a", "b", "d")) == [("a", "b", "d")]
    root.create(("file",), b"")
    assert code(root.make_directories, ("file", "x")) == "NOT_A_DIRECTORY"


def test_a_rename_takes_no_taken_name_unless_told(root: Root, tmp_path: Path) -> None:
    root.create(("a",), b"a")
    root.create(("b",), b"b")
    assert code(root.rename, ("a",), ("b",)) == "FILE_EXISTS"
    root.rename(("a",), ("b",), over=True)
    assert (tmp_path / "ws/b").read_bytes() == b"a"
    assert code(root.rename, ("gone",), ("c",)) == "FILE_NOT_FOUND"
    assert code(root.rename, ("b",), ("no", "such", "directory")) == "FILE_NOT_FOUND"


def test_a_directory_is_renamed_but_not_into_itself_nor_over_another(root: Root, tmp_path: Path) -> None:
    root.make_directories(("d", "inner"))
    root.make_directories(("e", "full"))
    root.make_directories(("empty",))
    root.create(("file",), b"")
    assert code(root.rename, ("d",), ("d", "inner", "x")) == "INVALID_PATH"
    assert code(root.rename, ("d",), ("d",)) == "INVALID_PATH"
    assert code(root.rename, (), ("x",)) == "INVALID_PATH"
    assert code(root.rename, ("d",), ("e",)) == "FILE_EXISTS"
    assert code(root.rename, ("d",), ("e",), over=True) == "DIRECTORY_NOT_EMPTY"
    assert code(root.rename, ("d",), ("file",), over=True) == "FILE_EXISTS"
    assert code(root.rename, ("d",), ("empty",)) == "FILE_EXISTS"
    assert code(root.rename, ("file",), ("d",), over=True) == "IS_DIRECTORY"
    root.rename(("d",), ("f",))
    assert (tmp_path / "ws/f/inner").is_dir()


def test_removing_takes_files_links_and_empty_directories(root: Root, tmp_path: Path) -> None:
    root.make_directories(("empty",))
    root.make_directories(("full", "x"))
    os.symlink(tmp_path / "outside", tmp_path / "ws/link")
    root.remove(("empty",))
    root.remove(("link",))
    assert code(root.remove, ("full",)) == "DIRECTORY_NOT_EMPTY"
    assert code(root.remove, ("gone",)) == "FILE_NOT_FOUND"
    assert code(root.remove, ()) == "INVALID_PATH"
    assert os.listdir(tmp_path / "ws") == ["full"]
    assert os.listdir(tmp_path / "outside") == ["secret"]


def test_a_tree_deeper_than_any_path_is_removed_and_links_in_it_only_as_links(root: Root, tmp_path: Path) -> None:
    deep(tmp_path / "ws", "tree", 5 * DEPTH_LIMIT)
    os.symlink(tmp_path / "outside", tmp_path / "ws/tree/link")
    os.mkfifo(tmp_path / "ws/tree/pipe")
    removed = list(root.remove_tree(("tree",)))
    assert removed[-1] == ("tree",)
    assert {("tree", "link"), ("tree", "pipe"), ("tree", "tree")} <= set(removed)
    assert os.listdir(tmp_path / "ws") == []
    assert os.listdir(tmp_path / "outside") == ["secret"]


def test_a_walk_is_sorted_bounded_and_follows_nothing(root: Root, tmp_path: Path) -> None:
    root.make_directories(("b", "x"))
    for name in ("b/z", "b/x/1", "a", "c", ".toolgate-half"):
        (tmp_path / "ws" / name).write_text(name)
    os.symlink(tmp_path / "outside", tmp_path / "ws/link")
    walked = [(entry.path, entry.kind) for entry in root.walk()]
    assert walked == [
        ("a", "file"),
        ("b", "directory"),
        ("b/x", "directory"),
        ("b/x/1", "file"),
        ("b/z", "file"),
        ("c", "file"),
        ("link", "symlink"),
    ]
    assert [entry.path for entry in root.walk(("b",), depth=1)] == ["b/x", "b/z"]
    assert [entry.path for entry in root.walk(enter=lambda entry: False)] == ["a", "b", "c", "link"]


def test_a_walk_ends_where_no_path_could_go_on(root: Root, tmp_path: Path) -> None:
    deep(tmp_path / "ws", "d", 3 * DEPTH_LIMIT)
    walk = root.walk()
    assert len(list(walk)) == DEPTH_LIMIT
    assert walk.truncated


def test_a_walk_left_early_leaves_nothing_open(root: Root) -> None:
    root.make_directories(("a", "b", "c"))
    with root.walk() as walk:
        next(iter(walk))
    root.walk()


def test_a_walk_of_what_is_no_directory_is_refused(root: Root, tmp_path: Path) -> None:
    root.create(("file",), b"")
    os.symlink(tmp_path / "outside", tmp_path / "ws/link")
    assert code(root.walk, ("file",)) == "NOT_A_DIRECTORY"
    assert code(root.walk, ("gone",)) == "FILE_NOT_FOUND"
    assert code(root.walk, ("link",)) == "INVALID_PATH"
    assert code(root.walk, ("file", "x")) == "FILE_NOT_FOUND"


@pytest.mark.promise("C6")
def test_links_are_never_followed(root: Root, tmp_path: Path) -> None:
    os.symlink(tmp_path / "outside", tmp_path / "ws/dir")
    os.symlink(tmp_path / "outside/secret", tmp_path / "ws/file")
    os.symlink("loop", tmp_path / "ws/loop")
    for path in ("file", "dir/secret", "loop", "loop/x"):
        assert code(root.open, parse(path)) == "INVALID_PATH"
    assert code(root.replace, ("file",), b"x") == "INVALID_PATH"
    for verb in (root.stat, root.remove, root.remove_tree, root.make_directories):
        assert code(verb, ("dir", "secret")) == "INVALID_PATH"
    assert code(root.create, ("dir", "new"), b"x") == "INVALID_PATH"
    assert code(root.replace, ("dir", "secret"), b"x") == "INVALID_PATH"
    assert code(root.rename, ("dir", "secret"), ("stolen",)) == "INVALID_PATH"
    root.create(("mine",), b"")
    assert code(root.rename, ("mine",), ("dir", "planted")) == "INVALID_PATH"
    assert code(root.remove_tree, ("dir",)) in ("INVALID_PATH", "FILE_NOT_FOUND")
    assert os.listdir(tmp_path / "outside") == ["secret"]


@pytest.mark.promise("C6")
def test_only_regular_files_are_opened_and_nothing_waits(root: Root, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ws/pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "ws/socket"))
        assert code(root.open, ("pipe",)) == "NOT_A_FILE"
        assert code(root.open, ("socket",)) == "NOT_A_FILE"
        assert code(root.replace, ("pipe",), b"x") == "NOT_A_FILE"
        assert code(root.open, ()) == "IS_DIRECTORY"


def test_a_mount_inside_is_not_entered(opener: PathOpener) -> None:
    with Root(Path("/"), opener) as whole:
        assert code(whole.open, ("proc", "self", "environ")) == "INVALID_PATH"
        assert code(whole.walk, ("proc",)) == "INVALID_PATH"


def test_a_failed_write_leaves_no_temporary_file(root: Root, tmp_path: Path) -> None:
    (tmp_path / "ws/dir").mkdir()
    assert code(root.replace, ("dir",), b"x") == "IS_DIRECTORY"
    assert code(root.create, ("gone", "x"), b"x") == "FILE_NOT_FOUND"
    root.create(("a",), b"")
    assert code(root.create, ("a",), b"x") == "FILE_EXISTS"
    with pytest.raises(TypeError):
        root.create(("b",), "text")  # type: ignore[arg-type]
    assert sorted(os.listdir(tmp_path / "ws")) == ["a", "dir"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_what_the_file_system_denies_is_denied(root: Root, tmp_path: Path) -> None:
    (tmp_path / "ws/closed").mkdir()
    (tmp_path / "ws/closed/x").write_text("x")
    (tmp_path / "ws/unreadable").write_text("x")
    (tmp_path / "ws/unreadable").chmod(0)
    (tmp_path / "ws/closed").chmod(0)
    try:
        assert code(root.open, ("unreadable",)) == "PERMISSION_DENIED"
        assert code(root.open, ("closed", "x")) == "PERMISSION_DENIED"
        assert code(root.create, ("closed", "y"), b"") == "PERMISSION_DENIED"
        assert [entry.path for entry in root.walk()] == ["closed", "unreadable"]
    finally:
        (tmp_path / "ws/closed").chmod(0o700)


def test_of_many_who_create_one_file_one_succeeds(root: Root, tmp_path: Path) -> None:
    start = threading.Barrier(8)
    codes: list[str] = []

    def create(number: int) -> None:
        start.wait()
        try:
            root.create(("one",), str(number).encode())
            codes.append("created")
        except GatewayError as refused:
            codes.append(refused.code)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == ["FILE_EXISTS"] * 7 + ["created"]
    assert os.listdir(tmp_path / "ws") == ["one"]


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123_456_789, "2023-11-14T22:13:20.123Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (2**80, "9999-12-31T23:59:59.174Z"),
        (-(2**80), "0001-01-01T00:00:00.825Z"),
    ],
)
def test_a_time_beyond_the_calendar_is_still_a_time(nanoseconds: int, expected: str) -> None:
    assert timestamp(nanoseconds) == expected


def deep(parent: Path, name: str, depth: int) -> None:
    """A tree too deep for any path, made as a program in a sandbox would."""
    here = os.open(parent, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
