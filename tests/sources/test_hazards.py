"""What a program in the workspace may plant there, against every file tool."""

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.calls import Outcome
from gateway.sources.builtin.source import BUILTINS

Calling = Callable[..., Outcome]
Snapshot = dict[str, tuple[int, bytes | str | None]]

SECRET = "TOP-SECRET-7f3a"
PLAIN = "plain text\n"


def arguments(path: str) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """For each tool the ways it can be pointed at a path."""
    patch = f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{{}}\n+changed\n"
    return {
        "list_directory": [("list_directory", {"path": path, "recursive": True, "includeHidden": True})],
        "read_file": [
            ("read_file", {"path": path}),
            ("read_file", {"path": path, "encoding": "base64"}),
        ],
        "find_files": [("find_files", {"pattern": "*", "path": path, "includeHidden": True, "type": "any"})],
        "search_code": [("search_code", {"pattern": ".", "path": path})],
        "write_file": [
            ("write_file", {"path": path, "content": "planted"}),
            ("write_file", {"path": path, "content": "planted", "createDirs": True}),
        ],
        "edit_file": [
            ("edit_file", {"path": path, "edits": [{"oldText": text, "newText": "changed"}]})
            for text in (SECRET, PLAIN.strip())
        ],
        "apply_patch": [
            ("apply_patch", {"patch": patch.format(SECRET)}),
            ("apply_patch", {"patch": patch.format(PLAIN.strip())}),
            ("apply_patch", {"patch": f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+planted\n"}),
            ("apply_patch", {"patch": f"--- a/{path}\n+++ /dev/null\n@@ -1 +0,0 @@\n-{SECRET}\n"}),
            ("apply_patch", {"patch": f"--- a/mine.txt\n+++ b/{path}\n@@ -1 +1 @@\n-{PLAIN}+planted\n"}),
        ],
        "move_file": [
            ("move_file", {"from": "mine.txt", "to": path, "overwrite": True}),
            ("move_file", {"from": path, "to": "stolen"}),
        ],
        "delete_file": [("delete_file", {"path": path, "recursive": True})],
    }


TOOLS = list(arguments("x"))


def test_the_table_names_every_file_tool() -> None:
    assert set(TOOLS) == set(BUILTINS["files"])


def snapshot(folder: Path) -> Snapshot:
    found: Snapshot = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        found[str(path)] = (status.st_mode, os.readlink(path) if path.is_symlink() else content)
    return found


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "ws-evil"
    (folder / "inner").mkdir(parents=True)
    (folder / "secret.txt").write_text(f"{SECRET}\n")
    (folder / "inner/secret.txt").write_text(f"{SECRET}\n")
    return folder


def text_of(outcome: Outcome) -> str:
    return orjson.dumps([outcome.to_dict(), outcome.content]).decode()


def reset(workspace: Path) -> None:
    (workspace / "mine.txt").write_text(PLAIN)
    (workspace / "stolen").unlink(missing_ok=True)


LINKS = {
    "a link to a file": ("../ws-evil/secret.txt", "bait"),
    "a file under a link": ("../ws-evil", "bait/secret.txt"),
    "a new file under a link": ("../ws-evil", "bait/new.txt"),
    "a file deep under a link": ("../ws-evil", "bait/inner/secret.txt"),
    "a linked directory": ("../ws-evil", "bait"),
    "our own environment": ("/proc/self/environ", "bait"),
    "our own descriptors": ("/proc/self/fd", "bait/0"),
    "our root": ("/proc/self/root", "bait/etc/passwd"),
    "a link to nowhere": ("../ws-evil/not-yet", "bait"),
    "a link to itself": ("bait", "bait"),
    "a link inside": ("mine.txt", "bait"),
    "the workspace itself": (".", "bait/mine.txt"),
}


@pytest.mark.promise("C1")
@pytest.mark.promise("C6")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("hazard", LINKS)
def test_no_tool_goes_through_a_link(call: Calling, workspace: Path, outside: Path, tool: str, hazard: str) -> None:
    target, path = LINKS[hazard]
    before = snapshot(outside)
    for name, given in arguments(path)[tool]:
        reset(workspace)
        (workspace / "bait").unlink(missing_ok=True)
        os.symlink(target, workspace / "bait")
        outcome = call(name, confirmed=True, **given)
        assert snapshot(outside) == before
        assert SECRET not in text_of(outcome)
        assert "PATH=" not in text_of(outcome)
        as_itself = tool in ("move_file", "delete_file") and path == "bait"
        assert outcome.ok is as_itself, text_of(outcome)
        if outcome.error:
            assert outcome.error.code in ("INVALID_PATH", "FILE_EXISTS", "NOT_A_DIRECTORY")
            assert os.readlink(workspace / "bait") == target


@pytest.mark.promise("C1")
@pytest.mark.parametrize("tool", TOOLS)
def test_a_link_is_passed_by_when_its_directory_is_meant(
    call: Calling, workspace: Path, outside: Path, tool: str
) -> None:
    before = snapshot(outside)
    for name, given in arguments("dir")[tool]:
        reset(workspace)
        (workspace / "dir").mkdir(exist_ok=True)
        for bait, target in (("file", "secret.txt"), ("folder", "."), ("deep", "inner")):
            with contextlib.suppress(FileExistsError):
                os.symlink(outside / target, workspace / "dir" / bait)
        outcome = call(name, confirmed=True, **given)
        assert snapshot(outside) == before
        assert SECRET not in text_of(outcome)
        if (workspace / "stolen").is_dir():
            os.rename(workspace / "stolen", workspace / "dir")


@pytest.mark.promise("C6")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("form", ["sibling", "absolute", "absolute own", "parent inside"])
def test_no_path_leaves_by_its_spelling(call: Calling, workspace: Path, outside: Path, tool: str, form: str) -> None:
    path = {
        "sibling": "../ws-evil/secret.txt",
        "absolute": str(outside / "secret.txt"),
        "absolute own": str(workspace / "mine.txt"),
        "parent inside": "dir/../mine.txt",
    }[form]
    before = snapshot(outside)
    for name, given in arguments(path)[tool]:
        reset(workspace)
        outcome = call(name, confirmed=True, **given)
        assert outcome.error is not None
        assert outcome.error.code == "INVALID_PATH", text_of(outcome)
        assert "relative to the workspace root" in outcome.error.message
        assert SECRET not in text_of(outcome)
        assert snapshot(outside) == before


@pytest.fixture
def special(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    os.mkfifo(workspace / "pipe")
    monkeypatch.chdir(workspace)  # the name of a socket may have 107 bytes only
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        yield


@pytest.mark.promise("C1")
@pytest.mark.usefixtures("special")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("path", ["pipe", "socket"])
def test_nothing_waits_for_a_pipe_or_a_socket(call: Calling, workspace: Path, tool: str, path: str) -> None:
    for name, given in arguments(path)[tool]:
        reset(workspace)
        outcome = call(name, confirmed=True, **given)
        if tool in ("move_file", "delete_file"):
            assert outcome.ok, text_of(outcome)
            return
        assert outcome.error is not None
        assert outcome.error.code in ("NOT_A_FILE", "NOT_A_DIRECTORY", "FILE_EXISTS"), text_of(outcome)


@pytest.mark.usefixtures("special")
def test_pipes_and_sockets_are_listed_and_never_searched(call: Calling) -> None:
    entries = call("list_directory", path=".").value["entries"]
    assert [(entry["name"], entry["type"]) for entry in entries] == [("pipe", "other"), ("socket", "other")]
    assert call("search_code", pattern=".").value["filesSearched"] == 0


@pytest.mark.promise("C1")
def test_names_that_are_no_text_are_shown_escaped_and_always_as_json(call: Calling, workspace: Path) -> None:
    for planted in (b"bad\xff.txt", b"new\nline", b"esc\x1b[31m", b"dir\xfe/inner"):
        path = os.path.join(os.fsencode(workspace), planted)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write("needle")
    listed = call("list_directory", path=".", recursive=True).value["entries"]
    names = [entry["name"] for entry in listed]
    assert names == ["bad\\xff.txt", "dir\\xfe", "dir\\xfe/inner", "esc\\x1b[31m", "new\\x0aline"]
    assert all(entry["escaped"] for entry in listed)
    found = [match["path"] for match in call("find_files", pattern="*").value["matches"]]
    assert found == ["bad\\xff.txt", "dir\\xfe/inner", "esc\\x1b[31m", "new\\x0aline"]
    assert [match["path"] for match in call("search_code", pattern="needle").value["matches"]] == found
    for name in names:
        assert not call("read_file", path=name).ok
    (workspace / "tree").mkdir()
    os.rename(os.path.join(os.fsencode(workspace), b"dir\xfe"), os.path.join(os.fsencode(workspace), b"tree/\xfe"))
    deleted = call("delete_file", path="tree", recursive=True, confirmed=True).value
    assert deleted == {"deleted": ["tree", "tree/\\xfe", "tree/\\xfe/inner"], "count": 3}


def test_no_tool_keeps_or_gives_a_setuid_bit(call: Calling, workspace: Path) -> None:
    for name, given in (
        ("write_file", {"path": "s", "content": "new"}),
        ("edit_file", {"path": "s", "edits": [{"oldText": "old", "newText": "new"}]}),
        ("apply_patch", {"patch": "--- a/s\n+++ b/s\n@@ -1 +1 @@\n-old\n+new\n"}),
        ("apply_patch", {"patch": "--- a/s\n+++ b/t\n@@ -1 +1 @@\n-old\n+new\n"}),
    ):
        (workspace / "s").write_text("old\n")
        (workspace / "s").chmod(0o6755)
        assert call(name, confirmed=True, **given).ok
        (changed,) = workspace.iterdir()
        assert stat.S_IMODE(changed.stat().st_mode) == 0o755


@pytest.mark.promise("C1")
def test_a_sparse_tebibyte_stops_no_tool(call: Calling, workspace: Path) -> None:
    with (workspace / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert call("list_directory", path=".").value["entries"][0]["size"] == 1 << 40
    assert call("find_files", pattern="*").value["matches"][0]["size"] == 1 << 40
    assert call("search_code", pattern=".").value["filesSkipped"] == 1
    assert call("read_file", path="huge").value["truncated"]
    for name in ("edit_file", "apply_patch"):
        for tool, given in arguments("huge")[name][:2]:
            refused = call(tool, **given).error
            assert refused is not None
            assert refused.code == "FILE_TOO_LARGE"
    assert call("move_file", **{"from": "huge", "to": "moved"}).ok
    assert call("write_file", path="moved", content="small", confirmed=True).ok
    assert call("delete_file", path="moved", confirmed=True).ok


@pytest.mark.promise("C1")
def test_a_tree_deeper_than_any_path_is_listed_as_far_as_paths_go_and_deleted_whole(
    call: Calling, workspace: Path
) -> None:
    here = os.open(workspace, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    for name, given in (
        ("list_directory", {"path": ".", "recursive": True}),
        ("find_files", {"pattern": "*", "type": "any"}),
        ("search_code", {"pattern": "x"}),
    ):
        assert call(name, **given).value["truncated"] is True
    assert call("move_file", **{"from": "d", "to": "e"}).ok
    assert call("delete_file", path="e", recursive=True, confirmed=True).value["count"] == 300
    assert os.listdir(workspace) == []


@pytest.mark.parametrize("tool", TOOLS)
def test_without_a_hazard_the_same_calls_work(call: Calling, workspace: Path, tool: str) -> None:
    worked = []
    for name, given in arguments("bait")[tool]:
        reset(workspace)
        (workspace / "bait").unlink(missing_ok=True)
        if tool in ("list_directory", "find_files"):
            (workspace / "bait").mkdir()
        else:
            (workspace / "bait").write_text(PLAIN)
        worked.append(call(name, confirmed=True, **given).ok)
    assert any(worked)
