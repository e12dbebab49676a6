"""workspace_history, workspace_diff, workspace_restore and workspace_branch, through a whole gateway."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import Gateway
from gateway.admin.workspaces import open_workspace
from gateway.calls import Call, Outcome
from gateway.errors import Conflict

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T2")]


class Chat:
    """Calls into one chat of a gateway, and its files."""

    def __init__(self, gateway: Gateway, folder: Path, chat: str | None) -> None:
        self.gateway = gateway
        self.folder = folder
        self.chat = chat

    async def call(
        self, name: str, /, confirmed: bool = True, message: str = "", after: str = "", **more: Any
    ) -> Outcome:
        """A call with its arguments; a trailing underscore is not part of their names."""
        arguments = {key.removesuffix("_"): value for key, value in more.items()}
        return await self.gateway.call(
            name,
            arguments,
            chat=self.chat,
            confirmed=confirmed,
            message=message or None,
            parent_message=after or None,
        )

    async def value(self, name: str, /, **more: Any) -> Any:
        outcome = await self.call(name, **more)
        assert outcome.ok, outcome.error
        return outcome.value

    async def write(self, path: str, content: str, **more: Any) -> str:
        """The version there is afterwards."""
        outcome = await self.call("write_file", path=path, content=content, createDirs=True, **more)
        assert outcome.post_manifest, outcome.error
        return outcome.post_manifest

    async def refusal(self, name: str, /, **more: Any) -> str:
        outcome = await self.call(name, **more)
        assert outcome.error is not None, outcome.value
        return outcome.error.code

    def files(self) -> dict[str, str]:
        found = (path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(self.folder)): path.read_text() for path in found}


@asynccontextmanager
async def opened(place: Path, **settings: Any) -> AsyncIterator[Chat]:
    async with Gateway.open({"data_dir": place / "data", **settings}) as gateway:
        attached = settings.get("workspace")
        yield Chat(gateway, attached or place / "data/chats/c/workspace", None if attached else "c")


async def test_history_shows_each_version_with_what_it_changed(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        assert (await chat.call("workspace_history")).value == {"versions": [], "more": False}
        first = await chat.write("a.txt", "1\n")
        second = await chat.write("a.txt", "2\n", message="m1")
        (chat.folder / "mine").write_text("by hand")
        third = await chat.write("b.txt", "3\n")
        outcome = await chat.call("workspace_history")
        newest, edit, middle, oldest = outcome.value["versions"]
        assert [each["id"] for each in (newest, middle, oldest)] == [third, second, first]
        assert (newest["source"], newest["head"], newest["parent"]) == ("tool_run", True, edit["id"])
        assert newest["changes"] == {"added": {"count": 1, "paths": ["b.txt"]}}
        assert (edit["source"], edit["changes"]) == ("edit", {"added": {"count": 1, "paths": ["mine"]}})
        assert middle["changes"] == {"changed": {"count": 1, "paths": ["a.txt"]}}
        assert "parent" not in oldest and "head" not in oldest
        assert newest["message"] == "m1", "the latest of a message's versions is that message's"
        [call, *_] = await chat.gateway.records.list_calls(tool="write_file")
        assert newest["sourceRef"] == call.id
        assert outcome.content is not None
        assert outcome.content[0]["text"].splitlines()[0].endswith("current]")
        assert len(outcome.content[0]["text"].splitlines()) == 4


async def test_history_is_read_in_pages(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        made = [await chat.write("a", str(number)) for number in range(5)]
        page = await chat.value("workspace_history", limit=2)
        assert ([each["id"] for each in page["versions"]], page["more"]) == (made[:2:-1], True)
        rest = await chat.value("workspace_history", limit=3, before=made[3][:18])
        assert ([each["id"] for each in rest["versions"]], rest["more"]) == (made[2::-1], False)


async def test_a_diff_shows_what_the_latest_version_changed_or_any_two(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        first = await chat.write("a.txt", "one\ntwo\n")
        await chat.write("b.txt", "new\n")
        third = await chat.write("a.txt", "one\n2\n")
        latest = await chat.value("workspace_diff")
        assert latest["files"] == [{"path": "a.txt", "status": "changed"}]
        assert (
            latest["diff"] == "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
        )
        assert (latest["to"], latest["truncated"]) == (third, False)
        whole = await chat.value("workspace_diff", from_=first[:18])
        assert [each["path"] for each in whole["files"]] == ["a.txt", "b.txt"]
        some = await chat.value("workspace_diff", from_=first, to=third, paths=["b*"])
        assert some["files"] == [{"path": "b.txt", "status": "added"}]
        beginning = await chat.value("workspace_diff", to=first)
        assert "from" not in beginning and beginning["files"] == [{"path": "a.txt", "status": "added"}]
        back = await chat.value("workspace_diff", from_=third, to=first)
        assert {"path": "b.txt", "status": "deleted"} in back["files"]


async def test_a_diff_to_now_shows_edits_by_hand(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        version = await chat.write("a.txt", "1\n")
        assert (await chat.value("workspace_diff", to="now"))["files"] == []
        (chat.folder / "a.txt").write_text("mine\n")
        now = await chat.value("workspace_diff", to="now")
        assert (now["from"], now["files"]) == (version, [{"path": "a.txt", "status": "changed"}])
        assert "+mine\n" in now["diff"]


async def test_a_version_comes_back_byte_for_byte(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        await chat.write("keep.txt", "1")
        (chat.folder / "run.sh").write_bytes(b"#!/bin/sh\r\n\xff\x00")
        (chat.folder / "run.sh").chmod(0o755)
        (chat.folder / "link").symlink_to("run.sh")
        (chat.folder / "empty").mkdir()
        version = await chat.write("keep.txt", "2")
        (chat.folder / "run.sh").write_text("other")
        (chat.folder / "run.sh").chmod(0o644)
        (chat.folder / "link").unlink()
        (chat.folder / "empty").rmdir()
        left = await chat.write("later.txt", "x")
        outcome = await chat.call("workspace_restore", manifest=version)
        assert outcome.value == {
            "manifest": version,
            "previous": left,
            "changes": {
                "added": {"count": 2, "paths": ["empty/", "link"]},
                "changed": {"count": 1, "paths": ["run.sh"]},
                "deleted": {"count": 1, "paths": ["later.txt"]},
            },
        }
        assert (outcome.pre_manifest, outcome.post_manifest) == (left, version)
        assert (chat.folder / "run.sh").read_bytes() == b"#!/bin/sh\r\n\xff\x00"
        assert os.access(chat.folder / "run.sh", os.X_OK)
        assert os.readlink(chat.folder / "link") == "run.sh"
        assert (chat.folder / "empty").is_dir()
        [record] = await chat.gateway.records.list_calls(tool="workspace_restore")
        assert (record.pre_manifest_id, record.post_manifest_id) == (left, version)


@pytest.mark.promise("C5")
async def test_a_restore_asks_first_and_says_what_will_change(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        version = await chat.write("a.txt", "1")
        await chat.write("a.txt", "2")
        await chat.write("b.txt", "x")
        asked = await chat.call("workspace_restore", manifest=version, confirmed=False)
        assert asked.error is not None and asked.error.code == "CONFIRMATION_REQUIRED"
        reason = f"workspace_restore restores version {version[:18]}: 1 changed (a.txt), 1 deleted (b.txt)"
        assert asked.error.details["reason"] == reason
        assert chat.files() == {"a.txt": "2", "b.txt": "x"}
        asked = await chat.call("workspace_restore", manifest=version, paths=["a.txt"], confirmed=False)
        assert asked.error is not None and asked.error.details["reason"].endswith(": 1 changed (a.txt)")
        assert await chat.refusal("workspace_branch", manifest=version, confirmed=False) == "CONFIRMATION_REQUIRED"
        await chat.value("workspace_restore", manifest=version)
        again = await chat.value("workspace_restore", manifest=version, confirmed=False)
        assert again == {"manifest": version, "previous": version, "changes": {}}, "nothing changes, nobody is asked"


async def test_a_change_made_since_nobody_was_asked_is_not_overwritten(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        version = await chat.write("a.txt", "1")
        entry = chat.gateway.catalog.find("workspace_restore")
        call = Call(name=entry.name, tool=entry.tool, arguments={"manifest": version}, chat="c")
        assert callable(entry.tool.requires_confirmation)
        assert await entry.tool.requires_confirmation(call) is None
        (chat.folder / "a.txt").write_text("mine")
        with pytest.raises(Conflict, match="changed by someone else"):
            await entry.source.call_tool(call)
        assert chat.files() == {"a.txt": "mine"}


async def test_only_some_paths_are_brought_back_on_top_of_the_rest(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        await chat.write("src/a.py", "1")
        await chat.write("src/b.py", "1")
        version = await chat.write("notes", "1")
        for path in ("src/a.py", "src/b.py", "notes", "src/new.py"):
            head = await chat.write(path, "2")
        back = await chat.value("workspace_restore", manifest=version, paths=["src/a.py", "src/new*"])
        assert chat.files() == {"src/a.py": "1", "src/b.py": "2", "notes": "2"}
        newest = (await chat.value("workspace_history", limit=1))["versions"][0]
        assert (newest["id"], newest["parent"], newest["source"]) == (back["manifest"], head, "edit")
        [record] = await chat.gateway.records.list_calls(tool="workspace_restore")
        assert newest["sourceRef"] == record.id
        await chat.value("workspace_restore", manifest=back["previous"])
        assert chat.files() == dict.fromkeys(("src/a.py", "src/b.py", "notes", "src/new.py"), "2")
        assert await chat.refusal("workspace_restore", manifest=version, paths=["nowhere"]) == "FILE_NOT_FOUND"
        assert await chat.refusal("workspace_restore", manifest=version, paths=["../out"]) == "INVALID_PATH"


async def test_an_edit_by_hand_before_a_restore_stays_a_version(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        first = await chat.write("a.txt", "1")
        await chat.write("a.txt", "2")
        (chat.folder / "a.txt").write_text("mine")
        back = await chat.value("workspace_restore", manifest=first)
        assert chat.files() == {"a.txt": "1"}
        await chat.value("workspace_restore", manifest=back["previous"])
        assert chat.files() == {"a.txt": "mine"}


async def test_changes_after_a_branch_go_on_from_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        first = await chat.write("a.txt", "1")
        second = await chat.write("a.txt", "2")
        assert (await chat.value("workspace_branch", manifest=first))["previous"] == second
        third = await chat.write("b.txt", "3")
        rows = {each["id"]: each for each in (await chat.value("workspace_history"))["versions"]}
        branch = rows[rows[third]["parent"]]
        assert (branch["source"], branch["tool"], branch["parent"]) == ("branch", "workspace_branch", first)
        assert rows[second]["parent"] == first
        assert chat.files() == {"a.txt": "1", "b.txt": "3"}


async def test_a_branch_starts_from_a_message(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        await chat.write("a.txt", "1", message="m1")
        await chat.write("a.txt", "2", message="m2", after="m1")
        outcome = await chat.gateway.call("workspace_branch", {"message": "m1"}, chat="c", confirmed=True)
        assert outcome.ok and chat.files() == {"a.txt": "1"}
        assert (await chat.gateway.versions.manifests.head("c")).message_id == "m1"
        unknown = await chat.gateway.call("workspace_branch", {"message": "m9"}, chat="c", confirmed=True)
        assert unknown.error is not None and unknown.error.code == "MESSAGE_NOT_FOUND"
        for arguments in ({}, {"message": "m1", "manifest": "01a1e364"}):
            both = await chat.gateway.call("workspace_branch", arguments, chat="c", confirmed=True)
            assert both.error is not None and both.error.code == "INVALID_ARGUMENTS"


async def test_a_call_that_names_its_message_takes_the_files_along(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        first = await chat.write("a.txt", "1", message="m1")
        await chat.write("a.txt", "2", message="m2", after="m1")
        assert (await chat.call("workspace_branch", manifest=first, message="m3", after="m2")).ok
        await chat.write("b.txt", "x", message="m3")
        assert chat.files() == {"a.txt": "1", "b.txt": "x"}
        branch = await chat.gateway.call(
            "workspace_branch", {"message": "m2"}, chat="c", confirmed=True, message="m4", parent_message="m3"
        )
        assert branch.ok and chat.files() == {"a.txt": "2"}
        await chat.write("c.txt", "y", message="m4")
        assert chat.files() == {"a.txt": "2", "c.txt": "y"}
        await chat.call("workspace_history", message="m3")
        assert chat.files() == {"a.txt": "1", "b.txt": "x"}, (
            "reading stands at the message it names, as every call does"
        )


async def test_a_wrong_id_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with opened(tmp_path) as chat:
        mine = await chat.write("a.txt", "1")
        await chat.write("a.txt", "2")
        other = await chat.gateway.call("write_file", {"path": "x", "content": ""}, chat="other")
        for name in ("workspace_restore", "workspace_branch"):
            assert await chat.refusal(name, manifest=other.post_manifest) == "MANIFEST_NOT_FOUND"
            assert await chat.refusal(name, manifest="ffff") == "MANIFEST_NOT_FOUND"
            assert await chat.refusal(name, manifest=mine[:4]) == "AMBIGUOUS_ID"
            assert await chat.refusal(name, manifest=mine[:3]) == "INVALID_ARGUMENTS"
        assert await chat.refusal("workspace_diff", from_=other.post_manifest) == "MANIFEST_NOT_FOUND"
        assert await chat.refusal("workspace_history", before=other.post_manifest) == "MANIFEST_NOT_FOUND"
        assert (await chat.value("workspace_diff", to=mine.upper()))["to"] == mine


async def test_in_a_folder_of_ones_own_only_what_is_in_a_version_is_touched(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "build").mkdir(parents=True)
    (project / ".gitignore").write_text("build/\n*.log\n")
    (project / "build/out").write_text("artefact")
    (project / "main.py").write_text("1")
    async with opened(tmp_path, workspace=project) as chat:
        first = await chat.call("write_file", path="main.py", content="2")
        await chat.write("more/new.py", "3")
        (project / "more/run.log").write_text("ignored")
        before = first.pre_manifest
        await chat.value("workspace_restore", manifest=before)
        assert chat.files() == {
            ".gitignore": "build/\n*.log\n",
            "build/out": "artefact",
            "main.py": "1",
            "more/run.log": "ignored",
        }


async def test_a_restore_that_is_refused_leaves_the_chat_as_it_was(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    async with opened(tmp_path, workspace=project) as chat:
        version = await chat.write("out", "a file once")
        assert (await chat.call("delete_file", path="out")).ok
        head = await chat.write(".gitignore", "out\n")
        (project / "out").write_text("ignored now")
        assert await chat.refusal("workspace_restore", manifest=version) == "UNVERSIONED_FILE"
        assert chat.files() == {".gitignore": "out\n", "out": "ignored now"}
        assert await chat.write(".gitignore", "out\n# more\n") != head, "the next call is not held up by it"


async def test_the_first_message_has_the_files_the_chat_had_then(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.txt").write_text("precious")
    async with opened(tmp_path, workspace=project) as chat:
        await chat.call("list_directory", path=".", message="m1")
        await chat.write("a.txt", "1", message="m2", after="m1")
        await chat.call("list_directory", path=".", message="m2b", after="m1")
        assert chat.files() == {"mine.txt": "precious"}
        await chat.call("list_directory", path=".", message="m2")
        assert chat.files() == {"mine.txt": "precious", "a.txt": "1"}


async def test_undo_of_a_patch_brings_back_its_ignored_file_and_removes_its_new_one(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / ".gitignore").write_text("*.local\n")
    (folder / "a.local").write_text("mine\n")
    async with opened(tmp_path, workspace=folder) as chat:
        changed = "--- a/a.local\n+++ b/a.local\n@@ -1 +1 @@\n-mine\n+theirs\n"
        added = "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+new\n"
        assert (await chat.call("apply_patch", patch=f"{changed}{added}")).ok
        assert chat.files() == {".gitignore": "*.local\n", "a.local": "theirs\n", "new.txt": "new\n"}
        undone = await (await open_workspace(chat.gateway)).undo()
        assert undone.restored is not None and undone.restored.paths == ("a.local",)
        assert chat.files() == {".gitignore": "*.local\n", "a.local": "mine\n"}
