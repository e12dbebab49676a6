"""`toolgate workspace`: a chat's files and versions on the command line."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway import Gateway
from gateway.cli import main

pytestmark = pytest.mark.promise("T2")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`toolgate workspace …` in this process: its exit status, what it printed, what it said of errors."""

    def workspace(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["workspace", *arguments, "--data-dir", str(tmp_path / "data")])
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return workspace


def write(place: Path, *contents: tuple[str, str], **settings: Any) -> list[str]:
    """Write files by the tool, one call each; the versions that leaves."""

    async def calls() -> list[str]:
        async with Gateway.open({"data_dir": place / "data", **settings}) as gateway:
            outcomes = [
                await gateway.call("write_file", {"path": path, "content": text, "createDirs": True}, confirmed=True)
                for path, text in contents
            ]
            return [str(outcome.post_manifest) for outcome in outcomes]

    return asyncio.run(calls())


def test_files_are_listed_and_read_now_and_in_a_version(tmp_path: Path, run: Run) -> None:
    first, _ = write(tmp_path, ("src/a.txt", "one\n"), ("src/a.txt", "two\n"))
    folder = tmp_path / "data/chats/default/workspace"
    (folder / "run.sh").write_text("#!")
    (folder / "run.sh").chmod(0o755)
    assert run("ls") == (0, "KIND        SIZE  PATH\nexecutable  2     run.sh\ndirectory         src\n", "")
    assert json.loads(run("ls", "src", "--json")[1]) == [{"path": "src/a.txt", "kind": "file", "size": 4}]
    assert [line.split()[-1] for line in run("ls", "-r", "--manifest", first)[1].splitlines()] == [
        "PATH",
        "src",
        "src/a.txt",
    ]
    assert run("cat", "src/a.txt") == (0, "two\n", "")
    assert run("cat", "src/a.txt", "--manifest", first[:18]) == (0, "one\n", "")
    for arguments in (["cat", "run.sh"], ["ls", "run.sh"], ["cat", "nowhere"]):
        status, _, error = run(*arguments, "--manifest", first)
        assert (status, error.split()[1]) == (1, "FILE_NOT_FOUND:")
    assert run("cat", "src", "--manifest", first)[2].startswith("toolgate: IS_DIRECTORY: ")


def test_the_log_and_a_diff_are_read_by_people_and_programs(tmp_path: Path, run: Run) -> None:
    first, second = write(tmp_path, ("a.txt", "one\n"), ("a.txt", "two\n"))
    status, printed, _ = run("log")
    assert status == 0
    assert [line[:20] for line in printed.splitlines()[::2]] == [f"* {second[:18]}", f"  {first[:18]}"]
    assert printed.splitlines()[1::2] == ["    1 changed (a.txt)", "    1 added (a.txt)"]
    newest, oldest = json.loads(run("log", "--json")[1])
    assert (newest["id"], newest["parent"], newest["head"], oldest["head"]) == (second, first, True, False)
    assert [each["id"] for each in json.loads(run("log", "--json", "--before", second[:18], "--limit", "1")[1])] == [
        first
    ]
    hunk = "--- a/a.txt\n+++ b/a.txt\n@@ -1,1 +1,1 @@\n-one\n+two\n"
    assert run("diff") == (0, f"diff --git a/a.txt b/a.txt\n{hunk}", "")
    (tmp_path / "data/chats/default/workspace/a.txt").write_text("three \x1b[31m\n")
    assert "+three \x1b[31m\n" in run("diff", first, "now")[1], "piped, it is as the file is"
    assert json.loads(run("diff", first, second, "--json")[1])["files"][0]["path"] == "a.txt"
    assert run("diff", "--path", "b.txt") == (0, "", "")


def test_undo_names_a_later_call_that_changed_only_an_ignored_file(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "a.txt").write_text("one\n")
    write(tmp_path, ("a.txt", "two\n"), ("b.log", "new\n"), workspace=folder)
    status, _, notes = run("undo", "--yes", "--workspace", str(folder))
    assert status == 0
    assert re.search(r"^not undone: write_file of call \S+, which came later", notes, re.MULTILINE)
    assert [(folder / name).read_text() for name in ("a.txt", "b.log")] == ["one\n", "new\n"]


def test_undo_goes_back_version_by_version_and_says_the_way_forward(tmp_path: Path, run: Run) -> None:
    first, second = write(tmp_path, ("a.txt", "one\n"), ("b.txt", "two\n"))
    folder = tmp_path / "data/chats/default/workspace"
    (folder / "a.txt").write_text("by hand\n")
    status, printed, _ = run("undo", "--yes", "--json")
    undone = json.loads(printed)
    assert (status, undone["manifest"], undone["changes"]["changed"]) == (0, second, ["a.txt"])
    status, printed, _ = run("undo", "--yes")
    assert f"to go back: toolgate workspace checkout {second[:18]} --data-dir {tmp_path / 'data'}\n" in printed
    assert os.listdir(folder) == ["a.txt"]
    status, printed, place = run("undo", "--yes")
    assert (status, place) == (0, "in the chat default\n")
    output, where, _ = printed.splitlines()
    assert output.startswith("undone: write_file of call ")
    assert where == "The files are at the initial state (no files) now: 1 deleted (a.txt)."
    assert os.listdir(folder) == []
    assert run("undo", "--yes") == (
        1,
        "",
        "toolgate: NOTHING_TO_UNDO: nothing to undo: this is the first version\n",
    )
    assert run("checkout", undone["previous"], "--yes")[0] == 0
    assert (folder / "a.txt").read_text() == "by hand\n"
    assert (folder / "b.txt").read_text() == "two\n"
    assert first in [each["id"] for each in json.loads(run("log", "--json")[1])]
    assert "UTC  by hand\n" in run("log")[1]


def test_an_empty_log_says_so(tmp_path: Path, run: Run) -> None:
    async def read() -> None:
        async with Gateway.open({"data_dir": tmp_path / "data"}) as gateway:
            await gateway.call("list_directory", {"path": "."})

    asyncio.run(read())
    assert run("log") == (0, "no versions yet\n", "in the chat default\n")
    assert run("log", "--json")[1] == "[]\n"


def test_files_do_not_change_unasked(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115 - pytest puts back its own
    first, second = write(tmp_path, ("a.txt", "1"), ("a.txt", "2"))
    status, printed, error = run("checkout", first)
    assert (status, printed) == (1, "")
    assert error.startswith("toolgate: CONFIRMATION_REQUIRED: this would change files: 1 changed (a.txt);")
    assert run("cat", "a.txt")[1] == "2"
    assert run("checkout", second)[0] == 0, "nothing changes, nobody is asked"
    sys.stdin.close()


def test_undo_asks_nobody_since_it_can_be_undone(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115 - pytest puts back its own
    _, second = write(tmp_path, ("a.txt", "1"), ("a.txt", "2"))
    status, printed, _ = run("undo")
    assert status == 0 and f"to go back: toolgate workspace checkout {second[:18]}" in printed
    assert run("cat", "a.txt")[1] == "1"
    sys.stdin.close()


@pytest.mark.promise("T1")
def test_files_are_uploaded_as_a_version_of_their_own(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src/main.py").write_text("print(1)")
    (folder / "link").symlink_to("/etc/passwd")
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh")
    script.chmod(0o755)
    status, printed, error = run("upload", str(script), str(folder), "--to", "given")
    assert (status, error) == (0, "") and printed.endswith("2 added (given/project/src/main.py, given/run.sh).\n")
    assert "executable" in run("ls", "given")[1]
    assert "UTC  upload\n" in run("log")[1]
    [version] = json.loads(run("log", "--json")[1])
    assert (version["source"], version["parent"], version["head"]) == ("user_upload", None, True)
    script.write_text("#!/bin/bash")
    assert json.loads(run("upload", str(script), "--to", "given", "--json")[1])["changes"]["changed"] == [
        "given/run.sh"
    ]
    assert run("undo")[0] == 0 and run("cat", "given/run.sh")[1] == "#!/bin/sh"


def test_the_log_names_the_tool_and_the_call(tmp_path: Path, run: Run) -> None:
    write(tmp_path, ("a.txt", "1"))
    [version] = json.loads(run("log", "--json")[1])
    assert version["tool"] == "write_file"
    assert f"UTC  write_file (call {version['source_ref'][-8:]})\n" in run("log")[1]


def test_diff_now_shows_what_was_edited_since_the_latest_version(tmp_path: Path, run: Run) -> None:
    write(tmp_path, ("a.txt", "one\n"), ("a.txt", "two\n"))
    assert run("diff", "now") == (0, "", "")
    (tmp_path / "data/chats/default/workspace/a.txt").write_text("three\n")
    status, printed, _ = run("diff", "now")
    assert status == 0 and "-two\n+three\n" in printed and "one" not in printed


def test_a_terminal_is_asked(tmp_path: Path) -> None:
    first, _ = write(tmp_path, ("a.txt", "1"), ("a.txt", "2"))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gateway", "workspace", "checkout", first, "--data-dir", str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        os.write(ours, b"y\n")
        printed, asked = process.communicate(timeout=300)
    os.close(ours)
    os.close(theirs)
    assert asked.startswith("This changes files: 1 changed (a.txt). Continue? [y/N]: ")
    assert printed.startswith("The files are at version ")
    assert (tmp_path / "data/chats/default/workspace/a.txt").read_text() == "1"


def test_a_folder_has_the_chat_that_belongs_to_it(tmp_path: Path, run: Run) -> None:
    project = tmp_path / "project"
    (project / "build").mkdir(parents=True)
    (project / ".gitignore").write_text("build\n")
    (project / "build/out").write_text("artefact")
    (project / "main.py").write_text("1")
    write(tmp_path, ("main.py", "2"), workspace=project)
    assert run("undo", "--yes", "--workspace", str(project))[0] == 0
    assert (project / "main.py").read_text() == "1"
    assert run("undo", "--yes", "--workspace", str(project))[2].startswith("toolgate: NOTHING_TO_UNDO: ")
    assert (project / "main.py").read_text() == "1", "what was there before any call stays"
    assert (project / "build/out").read_text() == "artefact"


def test_looking_makes_no_chat_and_a_wrong_id_is_one_line(tmp_path: Path, run: Run) -> None:
    first, _ = write(tmp_path, ("a.txt", "1"), ("a.txt", "2"))
    for arguments in (["ls"], ["log"], ["cat", "a.txt"], ["undo", "--yes"]):
        assert run(*arguments, "--chat", "nope")[2].startswith("toolgate: CHAT_NOT_FOUND: there is no chat 'nope'")
    assert os.listdir(tmp_path / "data/chats") == ["default"]
    assert run("checkout", first[:4], "--yes")[2].startswith("toolgate: AMBIGUOUS_ID: ")
    assert run("checkout", "ffffffff", "--yes")[2].startswith("toolgate: MANIFEST_NOT_FOUND: ")
    assert run("checkout", "abc", "--yes")[2].startswith("toolgate: INVALID_ARGUMENTS: 'abc' is too short")


def test_a_sweep_says_what_it_removed(tmp_path: Path, run: Run) -> None:
    write(tmp_path, ("a.txt", "1"))
    dead = tmp_path / "data/chats/default/blobs/aa" / ("a" * 64)
    dead.parent.mkdir(exist_ok=True)
    dead.write_bytes(b"nobody's")
    os.utime(dead, (0, 0))
    assert run("sweep") == (0, "1 contents and 0 temporary files removed, 8 bytes\n", "")
    assert json.loads(run("sweep", "--json")[1]) == {"blobs": 0, "temporary": 0, "bytes": 0}


def test_the_doctor_says_what_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, ("a.txt", "x" * 3 * 2**20))
    with pytest.raises(SystemExit):
        main(["doctor", "--json", "--data-dir", str(tmp_path / "data")])
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert findings["kept"]["message"].startswith("1 chats; 3.0 MiB of versions; ")
    assert findings["kept"]["message"].endswith("; largest: default (3.0 MiB)")


def test_command_that_goes_back_works_as_printed_in_an_attached_folder(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()
    write(tmp_path, ("a.txt", "one"), ("a.txt", "two"), workspace=folder)
    status, printed, _ = run("undo", "--workspace", str(folder))
    assert (status, (folder / "a.txt").read_text()) == (0, "one")
    command = shlex.split(printed.partition("to go back: ")[2])
    with pytest.raises(SystemExit) as ended:
        main([*command[1:], "--yes"])
    assert (ended.value.code, (folder / "a.txt").read_text()) == (0, "two"), capsys.readouterr()
