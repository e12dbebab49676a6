"""A chat's versions: saved around calls, branched by messages, brought back, and safe from crashes and races."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway import Gateway
from gateway.calls import Call, Caller, Outcome
from gateway.tools import Access, Permission, Tool

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T2")]


def gateway(data: Path, **settings: Any) -> Any:
    return Gateway.open({"data_dir": data, "approval": {"mode": "never"}, **settings})


async def write(open_gateway: Gateway, path: str, content: str, **more: Any) -> Any:
    outcome = await open_gateway.call(
        "write_file", {"path": path, "content": content, "createDirs": True}, chat="c", **more
    )
    assert outcome.ok, outcome.error
    return outcome


def files(data: Path) -> dict[str, str]:
    root = data / "chats/c/workspace"
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


async def checkout(open_gateway: Gateway, manifest: str | None) -> None:
    async with open_gateway.versions.hold("c", "local") as held:
        await held.checkout(manifest)


async def test_a_call_that_writes_leaves_a_version_before_and_after(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway:
        first = await write(open_gateway, "a.txt", "1")
        second = await write(open_gateway, "a.txt", "2")
        assert (first.pre_manifest, second.pre_manifest) == (None, first.post_manifest)
        await checkout(open_gateway, first.post_manifest)
        assert files(tmp_path) == {"a.txt": "1"}
        await checkout(open_gateway, None)
        assert files(tmp_path) == {}
        await checkout(open_gateway, second.post_manifest)
        assert files(tmp_path) == {"a.txt": "2"}
        [record, _] = await open_gateway.records.list_calls()
        assert (record.pre_manifest_id, record.post_manifest_id) == (first.post_manifest, second.post_manifest)


async def test_a_failed_call_and_a_reading_one_leave_the_version_there_was(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway:
        first = await write(open_gateway, "a.txt", "1")
        edit = {"path": "a.txt", "edits": [{"oldText": "x", "newText": "y"}]}
        failed = await open_gateway.call("edit_file", edit, chat="c")
        assert failed.error is not None
        assert (failed.pre_manifest, failed.post_manifest) == (first.post_manifest, first.post_manifest)
        reading = await open_gateway.call("read_file", {"path": "a.txt"}, chat="c")
        assert (reading.pre_manifest, reading.post_manifest) == (first.post_manifest, first.post_manifest)


@pytest.mark.promise("T1")
async def test_a_call_that_reads_names_the_version_that_any_process_left(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway, gateway(tmp_path) as other:
        assert (await open_gateway.call("list_directory", {"path": "."}, chat="c")).pre_manifest is None
        for content in ("1", "2"):
            left = await write(other, "a.txt", content)
            reading = await open_gateway.call("read_file", {"path": "a.txt"}, chat="c")
            assert (reading.pre_manifest, reading.post_manifest) == (left.post_manifest, left.post_manifest)
        await checkout(other, None)
        assert (await open_gateway.call("list_directory", {"path": "."}, chat="c")).pre_manifest is None
        os.unlink(tmp_path / "chats/c/head")  # as a gateway left it that did not write it yet
        async with gateway(tmp_path) as third:
            assert (await third.call("list_directory", {"path": "."}, chat="c")).pre_manifest is None
            left = await write(third, "b.txt", "3")
        [record, *_] = [row for row in await other.records.list_calls() if row.tool_id == "read_file"]
        assert record.pre_manifest_id == record.post_manifest_id is not None
        assert (await other.call("list_directory", {"path": "."}, chat="c")).pre_manifest == left.post_manifest


class Slow:
    """A source whose one tool writes a file and then takes forever."""

    name = "slow"

    def __init__(self, data: Path) -> None:
        self.file = data / "chats/c/workspace/half.txt"
        self.written = asyncio.Event()

    async def list_tools(self) -> list[Tool]:
        return [Tool("slow", "", access=Access.WRITE, category="editing", permission=Permission.READ_WRITE)]

    async def call_tool(self, call: Call) -> Outcome:
        self.file.write_text("half")
        self.written.set()
        await asyncio.sleep(3600)
        return Outcome()


@pytest.mark.promise("T1", "T4")
@pytest.mark.parametrize("end", ["TIMEOUT", "CANCELLED", "SHUTTING_DOWN"])
async def test_the_record_of_a_call_cut_short_names_the_version_it_left(tmp_path: Path, end: str) -> None:
    source = Slow(tmp_path)
    settings = {"limits": {"timeout": 0.5 if end == "TIMEOUT" else 600}, "server": {"shutdown_grace": 0}}
    async with Gateway.open({"data_dir": tmp_path, **settings}, sources=[source]) as open_gateway:
        first = await write(open_gateway, "a.txt", "1")
        call = asyncio.create_task(open_gateway.call("slow", chat="c"))
        await source.written.wait()
        if end == "CANCELLED":
            call.cancel()
        elif end == "SHUTTING_DOWN":
            await open_gateway.drain()
        await asyncio.wait([call])
        [record, _] = await open_gateway.records.list_calls()
        assert (record.error_code, record.pre_manifest_id) == (end, first.post_manifest)
        manifest = await open_gateway.versions.manifests.find(str(record.post_manifest_id))
        assert (manifest.source, manifest.source_ref) == ("tool_run", record.id)


@pytest.mark.promise("T1")
async def test_a_branch_is_a_version_that_names_its_message(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway:
        first = await write(open_gateway, "a.txt", "1", message="m1")
        second = await write(open_gateway, "a.txt", "2", message="m2", parent_message="m1")
        retried = await write(open_gateway, "b.txt", "x", message="m2b", parent_message="m1")
        manifests = open_gateway.versions.manifests
        branch = await manifests.find(retried.pre_manifest)
        assert (branch.source, branch.source_ref, branch.parent_id) == ("branch", "m2b", first.post_manifest)
        async with open_gateway.versions.hold("c", "local") as held:
            await held.checkout(await held.before())
            assert await held.before() is None, "undoing goes past the beginning of a branch, which changed nothing"
        await open_gateway.call("list_directory", {"path": "."}, chat="c", message="m2")
        assert (await manifests.head("c")).manifest_id == second.post_manifest, "a known message starts no branch"


async def test_what_a_person_changed_in_between_is_a_version_of_its_own(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway:
        first = await write(open_gateway, "a.txt", "1")
        (tmp_path / "chats/c/workspace/mine.txt").write_text("by hand")
        second = await write(open_gateway, "b.txt", "2")
        assert second.pre_manifest not in (None, first.post_manifest)
        sources = [row.source for row in await open_gateway.versions.manifests.history("c")]
        assert sources == ["tool_run", "edit", "tool_run"]
        await checkout(open_gateway, second.pre_manifest)
        assert files(tmp_path) == {"a.txt": "1", "mine.txt": "by hand"}


async def test_retrying_from_an_earlier_message_branches_and_switching_back_restores(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway:
        await write(open_gateway, "a.txt", "1", message="m1")
        await write(open_gateway, "a.txt", "2", message="m2", parent_message="m1")
        await open_gateway.call("read_file", {"path": "a.txt"}, chat="c", message="m3", parent_message="m2")
        await write(open_gateway, "b.txt", "other", message="m2b", parent_message="m1")
        assert files(tmp_path) == {"a.txt": "1", "b.txt": "other"}
        # A message without files of its own has those of the nearest above it.
        seen = await open_gateway.call("read_file", {"path": "a.txt"}, chat="c", message="m3")
        assert seen.value["content"] == "2"
        assert files(tmp_path) == {"a.txt": "2"}
        head = await open_gateway.versions.manifests.head("c")
        assert head.message_id == "m3"
        missing = await open_gateway.call("read_file", {"path": "a.txt"}, chat="c", message="m0", parent_message="")
        assert missing.error is not None and missing.error.code == "FILE_NOT_FOUND"
        await open_gateway.call("list_directory", {"path": "."}, chat="c", message="m2b")
        assert files(tmp_path) == {"a.txt": "1", "b.txt": "other"}


async def test_edits_by_hand_stay_with_the_message_at_which_they_were_made(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway:
        await write(open_gateway, "a.txt", "1", message="m1")
        (tmp_path / "chats/c/workspace/a.txt").write_text("mine")
        await write(open_gateway, "b.txt", "x", message="m0b", parent_message="")
        assert files(tmp_path) == {"b.txt": "x"}
        await open_gateway.call("list_directory", {"path": "."}, chat="c", message="m1")
        assert files(tmp_path) == {"a.txt": "mine"}


async def test_a_parent_message_that_made_no_call_has_the_files_as_they_are_and_a_retry_gets_them_again(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path) as open_gateway:
        await write(open_gateway, "a.txt", "1", message="answer 1", parent_message="question 1")
        (tmp_path / "chats/c/workspace/mine.txt").write_text("by hand")
        await write(open_gateway, "a.txt", "2", message="answer 2", parent_message="question 2")
        assert files(tmp_path) == {"a.txt": "2", "mine.txt": "by hand"}
        seen = await open_gateway.call(
            "read_file", {"path": "a.txt"}, chat="c", message="answer 3", parent_message="question 3"
        )
        assert seen.value["content"] == "2"
        await write(open_gateway, "b.txt", "x", message="answer 2 again", parent_message="question 2")
        assert files(tmp_path) == {"a.txt": "1", "mine.txt": "by hand", "b.txt": "x"}
        for message in ("answer 2", "answer 3", "question 3"):
            await open_gateway.call("list_directory", {"path": "."}, chat="c", message=message)
            assert files(tmp_path) == {"a.txt": "2", "mine.txt": "by hand"}, message
        await open_gateway.call("list_directory", {"path": "."}, chat="c", message="x", parent_message="question 1")
        assert files(tmp_path) == {}, "the chat had no files when its first question was named"


async def test_an_unknown_parent_message_in_a_chat_whose_files_were_undone_brings_none_back(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway:
        await write(open_gateway, "a.txt", "1", message="m1")
        await open_gateway.call("list_directory", {"path": "."}, chat="c", message="m2", parent_message="m1")
        await checkout(open_gateway, None)
        await write(open_gateway, "b.txt", "2", message="m4", parent_message="m3")
        assert files(tmp_path) == {"b.txt": "2"}
        await open_gateway.call("list_directory", {"path": "."}, chat="c", message="m5", parent_message="m3")
        assert files(tmp_path) == {}


async def test_the_beginning_of_a_chat_has_what_a_person_put_there_before_the_first_call(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("mine")
    async with gateway(tmp_path / "data", workspace=project) as open_gateway:
        change: dict[str, Any] = {"path": "a.txt", "content": "1"}
        assert (await open_gateway.call("write_file", change, message="m1")).ok
        left = await open_gateway.call("write_file", change | {"path": "b.txt"}, message="m2", parent_message="m1")
        assert left.ok
        assert (await open_gateway.call("list_directory", message="m1b", parent_message="")).ok
        assert {path.name: path.read_text() for path in project.iterdir()} == {"a.txt": "mine"}
        assert (await open_gateway.call("list_directory", message="m2")).pre_manifest == left.post_manifest
        assert {path.name for path in project.iterdir()} == {"a.txt", "b.txt"}


async def test_parallel_writes_to_one_chat_are_all_kept(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway:
        outcomes = await asyncio.gather(*(write(open_gateway, f"f{n}.txt", str(n)) for n in range(20)))
        assert len({outcome.post_manifest for outcome in outcomes}) == 20
        assert len(files(tmp_path)) == 20
        history = await open_gateway.versions.manifests.history("c", limit=100)
        parents = [row.parent_id for row in history]
        assert parents == [row.id for row in history[1:]] + [None]


async def test_a_chat_of_somebody_else_has_no_versions_for_you(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway:
        await write(open_gateway, "a.txt", "1")
        bob = await open_gateway.call("write_file", {"path": "b", "content": ""}, chat="c", caller=Caller("bob"))
        assert bob.error is not None and bob.error.code == "CHAT_FORBIDDEN"


async def test_an_attached_folder_keeps_its_ignored_files_and_undoes_the_rest(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "build").mkdir(parents=True)
    (project / ".gitignore").write_text("build/\n")
    (project / "build/out.bin").write_text("artefact")
    (project / "main.py").write_text("print(1)\n")
    async with gateway(tmp_path / "data", workspace=project) as open_gateway:
        edit = {"path": "main.py", "edits": [{"oldText": "1", "newText": "2"}]}
        outcome = await open_gateway.call("edit_file", edit)
        assert outcome.ok and (project / "main.py").read_text() == "print(2)\n"
        async with open_gateway.versions.hold(open_gateway.chat or "", "local") as held:
            await held.checkout(outcome.pre_manifest)
        assert (project / "main.py").read_text() == "print(1)\n"
        assert (project / "build/out.bin").read_text() == "artefact"
        assert not [path for path in project.rglob("*") if path.name in ("blobs", "index", "lock")]


WRITER = """
import asyncio, sys
from gateway import Gateway
async def main(data, name, count):
    async with Gateway.open({"data_dir": data}) as gateway:
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(count):
            outcome = await gateway.call("write_file", {"path": f"{name}-{n}.txt", "content": name}, chat="c")
            print(outcome.post_manifest if outcome.ok else outcome.error, flush=True)
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def writer(data: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(data), name, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()


def manifests(data: Path) -> dict[str, dict[str, str]]:
    with sqlite3.connect(data / "toolgate.db") as db:
        rows = db.execute("SELECT id, files FROM workspace_manifests").fetchall()
    db.close()
    return {manifest: json.loads(listed) for manifest, listed in rows}


def test_two_processes_writing_to_one_chat_keep_every_version_they_were_told_of(tmp_path: Path) -> None:
    writers = [writer(tmp_path, name, 12) for name in ("ann", "bob")]
    for process in writers:
        begin(process)
    reports = [line for process in writers for line in process.communicate(timeout=300)[0].split()]
    kept = manifests(tmp_path)
    assert len(reports) == 24 and set(reports) <= set(kept)
    assert len(files(tmp_path)) == 24
    assert max(len(listed) for listed in kept.values()) == 24


@pytest.mark.slow
def test_a_process_killed_while_it_writes_loses_no_version_it_told_of(tmp_path: Path) -> None:
    reports: list[str] = []
    for round_ in range(8):
        process = writer(tmp_path, f"r{round_}", 1000)
        begin(process)
        assert process.stdout is not None
        reports += [process.stdout.readline().strip() for _ in range(5)]
        process.kill()
        reports += [line for line in process.communicate()[0].splitlines() if len(line) == 36]
    asyncio.run(check_after_kills(tmp_path, reports))


async def check_after_kills(data: Path, reports: list[str]) -> None:
    async with gateway(data) as open_gateway:
        await write(open_gateway, "after.txt", "still works")
        kept = manifests(data)
        assert set(reports) <= set(kept)
        for manifest in reports[::7]:
            await checkout(open_gateway, manifest)
            assert set(files(data)) == set(kept[manifest])
        assert not (data / "chats/c/running").exists()


async def test_what_a_killed_tool_left_is_kept_as_an_interrupted_version(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway:
        first = await write(open_gateway, "a.txt", "1")
    (tmp_path / "chats/c/running").write_text("call-7")
    (tmp_path / "chats/c/workspace/half.txt").write_text("half")
    async with gateway(tmp_path) as open_gateway:
        await write(open_gateway, "b.txt", "2")
        history = await open_gateway.versions.manifests.history("c")
        assert [(row.source, row.source_ref) for row in history[1:]] == [
            ("interrupted", "call-7"),
            ("tool_run", history[2].source_ref),
        ]
        assert history[2].id == first.post_manifest


async def test_a_restore_that_was_cut_short_is_finished_by_the_next_holder(tmp_path: Path) -> None:
    async with gateway(tmp_path) as open_gateway:
        first = await write(open_gateway, "a.txt", "1")
        await write(open_gateway, "b.txt", "2")
        await open_gateway.versions.manifests.record_pending_restore("c", first.post_manifest)
    os.unlink(tmp_path / "chats/c/workspace/a.txt")  # the state in the middle of it
    async with gateway(tmp_path) as open_gateway:
        async with open_gateway.versions.hold("c", "local") as held:
            assert held.head.manifest_id == first.post_manifest
        assert files(tmp_path) == {"a.txt": "1"}
        sources = [row.source for row in await open_gateway.versions.manifests.history("c")]
        assert sources == ["interrupted", "tool_run", "tool_run"]
