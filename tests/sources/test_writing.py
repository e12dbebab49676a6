"""write_file, move_file and delete_file."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.calls import Outcome
from gateway.errors import GatewayError

pytestmark = pytest.mark.promise("C1")
Calling = Callable[..., Outcome]
Asking = Callable[..., str | None]


def code(outcome: Outcome) -> str:
    assert outcome.error is not None, outcome.value
    return outcome.error.code


def test_a_new_file_is_written_without_asking(call: Calling, ask: Asking, workspace: Path) -> None:
    assert ask("write_file", path="a/b.txt", content="hi") is None
    assert code(call("write_file", path="a/b.txt", content="hi")) == "FILE_NOT_FOUND"
    outcome = call("write_file", path="a/b.txt", content="grün", createDirs=True)
    assert outcome.value == {"path": "a/b.txt", "size": 5, "created": True}
    assert (workspace / "a/b.txt").read_text() == "grün"


def test_overwriting_asks_first_and_keeps_permissions(call: Calling, ask: Asking, workspace: Path) -> None:
    (workspace / "a").write_text("old")
    (workspace / "a").chmod(0o640)
    assert ask("write_file", path="./a", content="new") == "write_file overwrites 'a' (3 bytes)"
    assert call("write_file", path="a", content="new", confirmed=True).value["created"] is False
    assert (workspace / "a").read_text() == "new"
    assert stat.S_IMODE((workspace / "a").stat().st_mode) == 0o640


def test_a_file_that_appeared_after_the_question_is_not_overwritten(
    call: Calling, ask: Asking, workspace: Path
) -> None:
    assert ask("write_file", path="a", content="mine") is None
    (workspace / "a").write_text("theirs")
    outcome = call("write_file", path="a", content="mine")
    assert code(outcome) == "FILE_EXISTS"
    assert outcome.error is not None
    assert "choose another path" in outcome.error.message
    assert (workspace / "a").read_text() == "theirs"
    assert os.listdir(workspace) == ["a"]


def test_bytes_are_written_from_base64(call: Calling, workspace: Path) -> None:
    call("write_file", path="a", content="/wAK", encoding="base64")
    assert (workspace / "a").read_bytes() == b"\xff\x00\n"
    assert code(call("write_file", path="b", content="/wA*", encoding="base64")) == "INVALID_CONTENT"
    assert code(call("write_file", path="b", content="ü", encoding="base64")) == "INVALID_CONTENT"


def test_too_much_content_is_refused(call: Calling, workspace: Path) -> None:
    assert code(call("write_file", path="a", content="x" * (32 * 2**20 + 1))) == "FILE_TOO_LARGE"
    assert os.listdir(workspace) == []


def test_a_directory_is_no_file_to_write(call: Calling, workspace: Path) -> None:
    (workspace / "d").mkdir()
    for confirmed in (True, False):
        assert code(call("write_file", path="d", content="x", confirmed=confirmed)) == "IS_DIRECTORY"
        assert code(call("write_file", path=".", content="x", confirmed=confirmed)) == "IS_DIRECTORY"
    (workspace / "f").touch()
    assert code(call("write_file", path="f/x", content="x")) == "FILE_NOT_FOUND"
    assert code(call("write_file", path="f/x", content="x", createDirs=True)) == "NOT_A_DIRECTORY"


def test_a_file_is_moved_and_a_taken_path_refused(call: Calling, ask: Asking, workspace: Path) -> None:
    (workspace / "a").write_text("a")
    (workspace / "b").write_text("b")
    assert code(call("move_file", **{"from": "a", "to": "b"})) == "FILE_EXISTS"
    assert code(call("move_file", **{"from": "a", "to": "new/c"})) == "FILE_NOT_FOUND"
    assert call("move_file", **{"from": "a", "to": "new/c", "createDirs": True}).value == {"from": "a", "to": "new/c"}
    assert (workspace / "new/c").read_text() == "a"
    assert code(call("move_file", **{"from": "a", "to": "d"})) == "FILE_NOT_FOUND"


def test_moving_over_a_file_asks_first(call: Calling, ask: Asking, workspace: Path) -> None:
    (workspace / "a").write_text("a")
    assert ask("move_file", **{"from": "a", "to": "b", "overwrite": True}) is None
    (workspace / "b").write_text("b")
    assert ask("move_file", **{"from": "a", "to": "b"}) is None
    assert ask("move_file", **{"from": "a", "to": "b", "overwrite": True}) == "move_file replaces 'b' with 'a'"
    assert code(call("move_file", **{"from": "a", "to": "b", "overwrite": True})) == "FILE_EXISTS"
    assert call("move_file", confirmed=True, **{"from": "a", "to": "b", "overwrite": True}).ok
    assert (workspace / "b").read_text() == "a"


def test_a_directory_is_not_moved_into_itself(call: Calling, workspace: Path) -> None:
    (workspace / "d/e").mkdir(parents=True)
    assert code(call("move_file", **{"from": "d", "to": "d/e/f"})) == "INVALID_PATH"
    assert code(call("move_file", **{"from": ".", "to": "x"})) == "INVALID_PATH"
    assert call("move_file", **{"from": "d", "to": "x"}).ok
    assert (workspace / "x/e").is_dir()


def test_a_link_is_moved_and_deleted_as_itself(call: Calling, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    os.symlink("../outside", workspace / "link")
    assert call("move_file", **{"from": "link", "to": "moved"}).ok
    assert os.readlink(workspace / "moved") == "../outside"
    assert call("delete_file", path="moved", recursive=True).value == {"deleted": ["moved"], "count": 1}
    assert (tmp_path / "outside").is_dir()


def test_deleting_always_asks(ask: Asking, workspace: Path) -> None:
    (workspace / "dir").mkdir()
    (workspace / "dir/file").touch()
    for arguments in ({"path": "dir/file"}, {"path": "dir", "recursive": True}):
        assert ask("delete_file", **arguments) == "delete_file deletes files"


def test_deleting_what_cannot_be_deleted_is_refused_before_anybody_is_asked(ask: Asking, workspace: Path) -> None:
    (workspace / "dir").mkdir()
    (workspace / "dir/file").touch()
    for path, reason in (("gone", "'gone' does not exist"), ("dir", "set recursive to delete all of it")):
        with pytest.raises(GatewayError, match=reason):
            ask("delete_file", path=path)


def test_a_missing_directory_is_named_with_the_argument_that_makes_it(call: Calling, workspace: Path) -> None:
    (workspace / "a.txt").touch()
    for tool, arguments in (
        ("write_file", {"path": "new/deep/a.txt", "content": "hi"}),
        ("move_file", {"from": "a.txt", "to": "new/deep/a.txt"}),
    ):
        refused = call(tool, **arguments).error
        assert refused is not None and refused.code == "FILE_NOT_FOUND"
        assert refused.message == "the directory 'new/deep' does not exist; set createDirs to true to have it made"
    assert call("write_file", path="new/deep/a.txt", content="hi", createDirs=True).ok


def test_a_directory_with_something_in_it_is_deleted_only_when_recursive(call: Calling, workspace: Path) -> None:
    for path in ("d/b", "d/a/x"):
        (workspace / path).mkdir(parents=True)
    (workspace / "d/.toolgate-half").touch()
    refused = call("delete_file", path="d")
    assert code(refused) == "DIRECTORY_NOT_EMPTY"
    assert refused.error is not None
    assert "set recursive" in refused.error.message
    outcome = call("delete_file", path="d", recursive=True)
    assert outcome.value == {"deleted": ["d", "d/.toolgate-half", "d/a", "d/a/x", "d/b"], "count": 5}
    assert os.listdir(workspace) == []


def test_many_deleted_paths_are_counted_not_all_named(call: Calling, workspace: Path) -> None:
    (workspace / "d").mkdir()
    for number in range(1200):
        (workspace / f"d/{number}").touch()
    value = call("delete_file", path="d", recursive=True).value
    assert (len(value["deleted"]), value["count"], value["deleted"][0]) == (1000, 1201, "d")


def test_the_root_is_never_deleted(call: Calling, workspace: Path) -> None:
    (workspace / "a").touch()
    for path in (".", "", "./."):
        assert code(call("delete_file", path=path, recursive=True, confirmed=True)) == "INVALID_PATH"
    assert os.listdir(workspace) == ["a"]
    assert code(call("delete_file", path="gone")) == "FILE_NOT_FOUND"
