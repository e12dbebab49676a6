"""A toolset in a person's own folder, with a real client of each era: what it would change is asked about first."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio.to_thread
import pytest
from eventually import eventually
from sources.development.environments import with_ruff
from sources.toolset.writing import require_sandbox

from gateway import Gateway

from .clients import call, refusal
from .processes import environment
from .test_approval import Person, choose, decline, settled, visiting
from .wire import ERAS

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.promise("C5")]

SHIPPED = Path(__file__).parents[2] / "toolsets"
HOOK = "#!/bin/sh\nexit 0\n"
PLANTED = ("toolgate.yaml", ".vscode/settings.json", ".git/hooks/pre-commit")


def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / ".git/hooks").mkdir(parents=True)
    (folder / ".git/hooks/pre-commit").write_text(HOOK)
    (folder / ".git/hooks/pre-commit").chmod(0o755)
    (folder / "notes.txt").write_text("mine\n")
    return folder


@pytest.mark.parametrize("era", ERAS)
async def test_git_asks_before_it_changes_protected_files_of_a_persons_folder(tmp_path: Path, era: str) -> None:
    await require_sandbox()
    folder = tmp_path / "project"
    folder.mkdir()
    settings, tasks = folder / ".vscode/settings.json", folder / "sub/.envrc"

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=N", "-c", "user.email=n@host")
        subprocess.run(["git", *who, "-C", folder, *arguments], check=True, capture_output=True)

    def commit(content: str) -> None:
        for path in (settings, folder / "a.txt"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)
        git("add", ".")
        git("commit", "-qm", content)

    git("init", "-q", "-b", "main")
    commit("mine")
    git("checkout", "-qb", "other")
    tasks.parent.mkdir()
    tasks.write_text("planted")
    commit("planted")
    git("checkout", "-q", "main")
    settled(tmp_path, {"workspace": str(folder), "categories": {"development": {"enabled": True}}})
    person = Person()
    async with visiting(tmp_path, era, person, tmp_path / "data") as visit:

        async def declined(tool: str, **arguments: Any) -> None:
            visit.will(decline)
            assert (await refusal(visit.client, tool, arguments))["code"] == "DECLINED"
            [question] = person.questions
            assert f"{tool} touches '.vscode/settings.json'" in question.message

        await declined("git_checkout", revision="other")
        await declined("git_checkout", create="third", revision="other")
        await declined("git_checkout", revision="other", paths=[".vscode", "sub"])
        assert settings.read_text() == "mine" and not tasks.exists()
        visit.will()
        result = await call(visit.client, "git_checkout", {"revision": "other", "paths": ["a.txt"]})
        assert not result.is_error and (folder / "a.txt").read_text() == "planted"
        settings.write_text("newer")
        await declined("git_stash", action="push")
        await declined("git_checkout", paths=["."])
        assert settings.read_text() == "newer"
        git("stash", "push", "-q")
        await declined("git_stash", action="pop")
        visit.will(choose("approve once"))
        result = await call(visit.client, "git_checkout", {"revision": "other"})
        assert not result.is_error and tasks.read_text() == "planted"


@pytest.mark.parametrize("era", ERAS)
async def test_git_asks_before_it_changes_a_repository_inside_a_protected_folder(tmp_path: Path, era: str) -> None:
    await require_sandbox()
    folder = tmp_path / "project"
    hooks = folder / ".claude/hooks.json"
    hooks.parent.mkdir(parents=True)

    def commit(content: str) -> None:
        hooks.write_text(content)
        for arguments in (("init", "-q"), ("add", "."), ("commit", "-qm", content)):
            who = ("-c", "user.name=N", "-c", "user.email=n@host")
            subprocess.run(["git", *who, "-C", hooks.parent, *arguments], check=True, capture_output=True)

    commit("first")
    commit("second")
    settled(tmp_path, {"workspace": str(folder), "categories": {"development": {"enabled": True}}})
    async with visiting(tmp_path, era, Person(), tmp_path / "data") as visit:
        for tool, more in (("git_checkout", {"revision": "HEAD~1"}), ("git_stash", {"action": "push"})):
            visit.will(decline)
            assert (await refusal(visit.client, tool, {"repository": ".claude", **more}))["code"] == "DECLINED"
            [question] = visit.person.questions
            assert f"{tool} touches '.claude/hooks.json'" in question.message
            hooks.write_text("third")


@pytest.mark.parametrize("era", ERAS)
async def test_app_builder_write_file_asks_before_it_changes_a_persons_folder(tmp_path: Path, era: str) -> None:
    await require_sandbox()
    folder = project(tmp_path)
    settled(tmp_path, {"workspace": str(folder), "toolsets": [str(SHIPPED / "app-builder")]})
    person = Person()
    async with visiting(tmp_path, era, person, tmp_path / "data") as visit:

        async def write(path: str, content: str, *replies: Any) -> str:
            visit.will(*replies)
            arguments = {"path": path, "content": content}
            if replies[-1] is decline:
                return str((await refusal(visit.client, "app-builder__write_file", arguments))["code"])
            result = await call(visit.client, "app-builder__write_file", arguments)
            assert not result.is_error, result.content
            return "OK"

        for path in PLANTED:
            assert await write(path, "planted", decline) == "DECLINED"
            [question] = person.questions
            assert f"app-builder:write_file touches '{path}'" in question.message
        assert (folder / PLANTED[2]).read_text() == HOOK
        assert not (folder / PLANTED[0]).exists() and not (folder / ".vscode").exists()
        assert await write(PLANTED[2], "agreed", choose("approve once")) == "OK"
        assert (folder / PLANTED[2]).read_text() == "agreed"
        assert stat.S_IMODE((folder / PLANTED[2]).stat().st_mode) == 0o755

        assert await write("notes.txt", "theirs\n", decline) == "DECLINED"
        [question] = person.questions
        assert "Why: app-builder:write_file changes files of your folder: 1 changed (notes.txt)" in question.message
        assert "  | -mine\n  | +theirs" in question.message
        assert (folder / "notes.txt").read_text() == "mine\n"
        assert await write("notes.txt", "theirs\n", choose("approve once")) == "OK"
        assert (folder / "notes.txt").read_text() == "theirs\n"
        visit.will()
        result = await call(visit.client, "app-builder__write_file", {"path": "new.txt", "content": "x"})
        assert not result.is_error and person.questions == []
        calls = await visit.toolgate("call", "list")
        assert {each["status"] for each in calls} == {"success", "error"}  # none waits any more
        log = await visit.toolgate("workspace", "log", "--workspace", str(folder))
        made = [each["source_ref"] for each in log if each["source"] == "tool_run"]
        assert set(made) <= {each["id"] for each in calls if each["tool_id"] == "app-builder:write_file"}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("path", [".vscode/settings.json", "tools/hooks/pre-push"])
async def test_consent_for_a_chat_covers_no_protected_file(tmp_path: Path, era: str, path: str) -> None:
    await require_sandbox()
    folder = tmp_path / "project"
    settings, notes = folder / path, folder / "notes.txt"
    settings.parent.mkdir(parents=True)

    def commit(content: str) -> None:
        settings.write_text(content)
        notes.write_text(content)
        hooks = ("config", "core.hooksPath", "tools/hooks")
        for arguments in (("init", "-q", "-b", "main"), hooks, ("add", "."), ("commit", "-qm", content)):
            who = ("-c", "user.name=N", "-c", "user.email=n@host")
            subprocess.run(["git", *who, "-C", folder, *arguments], check=True, capture_output=True)

    categories = {name: {"enabled": True} for name in ("development", "administration")}
    settled(tmp_path, {"workspace": str(folder), "categories": categories})
    async with visiting(tmp_path, era, Person(), tmp_path / "data") as visit:

        async def agreed(tool: str, **arguments: Any) -> Any:
            visit.will(choose("approve for this chat"))
            result = await call(visit.client, tool, arguments)
            assert not result.is_error and len(visit.person.questions) == 1, result.content
            return result.structured_content

        async def declined(tool: str, **arguments: Any) -> None:
            visit.will(decline)
            assert (await refusal(visit.client, tool, arguments))["code"] == "DECLINED"
            [question] = visit.person.questions
            assert f"touches '{path}'" in question.message
            assert settings.read_text() == notes.read_text() == "second"

        commit("first")
        first = (await call(visit.client, "workspace_diff", {"to": "now"})).structured_content["to"]
        commit("second")
        await agreed("workspace_restore", manifest=first, paths=["notes.txt"])
        notes.write_text("second")
        await declined("workspace_restore", manifest=first, paths=[path.partition("/")[0]])
        await declined("workspace_restore", manifest=first)
        await declined("workspace_branch", manifest=first)
        visit.will(choose("approve once"), choose("approve once"))
        for revision in ("HEAD~1", "main"):
            assert not (await call(visit.client, "git_checkout", {"revision": revision})).is_error
        await declined("git_checkout", revision="HEAD~1")

        await agreed("toolgate__write_workspace_file", path="notes.txt", content="first")
        visit.will()
        arguments = {"path": path, "content": "planted"}
        assert (await refusal(visit.client, "toolgate__write_workspace_file", arguments))["code"] == "PROTECTED_FILE"
        restored = await agreed("toolgate__restore_workspace", manifest=first)
        assert (restored["result"]["files_left_out"], settings.read_text()) == (1, "second")


@pytest.mark.parametrize("era", ERAS)
async def test_a_switch_to_another_message_changes_no_protected_file_and_needs_the_level_to_write(
    tmp_path: Path, era: str
) -> None:
    folder = project(tmp_path)
    hook = folder / "tools/hooks/pre-push"
    for directory in (hook.parent, folder / ".git"):
        directory.mkdir(parents=True, exist_ok=True)
    (folder / ".git/config").write_text("[core]\n\thooksPath = tools/hooks\n")
    protected = (folder / ".envrc", hook)
    for file in protected:
        file.write_text("mine\n")

    async def read(client: Any, message: str, parent: str | None) -> Any:
        meta = {"dev.toolgate/message": message} | ({"dev.toolgate/parent_message": parent} if parent else {})
        return await client.call_tool("read_file", {"path": "notes.txt"}, meta=meta)

    for permission, content in (("read-only", "newer\n"), ("read-write", "mine\n")):
        settled(tmp_path, {"workspace": str(folder), "profiles": {"own": {"permission": permission}}, "profile": "own"})
        async with visiting(tmp_path, era, Person(), tmp_path / f"data-{permission}") as visit:
            assert not (await read(visit.client, "m1", None)).is_error
            (folder / "notes.txt").write_text("newer\n")
            for file in protected:
                file.write_text("newer\n")
            assert not (await read(visit.client, "m2", "m1")).is_error
            same = await read(visit.client, "m4", "m2")
            assert not same.is_error
            switched = await read(visit.client, "m3", "m1")
            assert switched.is_error is (permission == "read-only")
            assert (folder / "notes.txt").read_text() == content
            assert [file.read_text() for file in protected] == ["newer\n"] * 2
        for file in (folder / "notes.txt", *protected):
            file.write_text("mine\n")


@pytest.mark.parametrize("era", ERAS)
async def test_undo_restores_an_ignored_file_that_a_program_or_git_changed(tmp_path: Path, era: str) -> None:
    await require_sandbox()
    folder = project(tmp_path)
    (folder / ".gitignore").write_text(".env\n.venv\nlocal.py\n")
    (folder / ".env").write_text("mine\n")
    (folder / "local.py").write_text("x = [1,\n2]\n")
    await anyio.to_thread.run_sync(with_ruff, folder)
    settled(tmp_path, {"workspace": str(folder), "categories": {"development": {"enabled": True}}})
    async with visiting(tmp_path, era, Person(), tmp_path / "data") as visit:
        for tool, arguments in (
            ("run_code", {"language": "bash", "code": "echo theirs > .env; echo theirs > notes.txt"}),
            ("run_command", {"command": "rm .env"}),
        ):
            visit.will(choose("approve once"))
            result = await call(visit.client, tool, arguments)
            assert not result.is_error, result.content
            assert "'.env' is ignored by .gitignore, so no version has it; a copy is kept" in str(result.content)
            undone = await visit.toolgate("workspace", "undo", "--workspace", str(folder))
            assert (undone["restored"]["paths"], (folder / ".env").read_text()) == ([".env"], "mine\n")
            assert undone["undone"].startswith(f"{tool} of call ") and (folder / "notes.txt").read_text() == "mine\n"
        visit.will()
        result = await call(visit.client, "format_code", {})
        assert (folder / "local.py").read_text() == "x = [1, 2]\n" and "'local.py' is ignored" in str(result.content)
        await visit.toolgate("workspace", "undo", "--workspace", str(folder))
        assert (folder / "local.py").read_text() == "x = [1,\n2]\n"


SLOW = dedent(
    '''
    import time
    from covalt_toolset import get_context, tool

    @tool
    def change() -> None:
        """Change files and never end."""
        workspace = get_context().workspace
        (workspace / "notes.txt").write_text("theirs")
        (workspace / ".envrc").write_text("planted")
        try:
            (workspace / ".git/hooks/pre-commit").write_text("planted")
        except OSError:
            pass
        (workspace / "ready").write_text("")
        time.sleep(600)
    '''
)


@pytest.mark.parametrize("sandbox", ["bwrap", pytest.param("landlock", marks=pytest.mark.slow)])
async def test_changes_of_a_toolset_call_in_a_killed_gateway_are_undone_at_the_next_start(
    tmp_path: Path, sandbox: str
) -> None:
    await require_sandbox()
    folder = project(tmp_path)
    (tmp_path / "slow/tools").mkdir(parents=True)
    (tmp_path / "slow/tools/code.py").write_text(SLOW)
    (tmp_path / "slow/toolset.yaml").write_text(
        'id: slow\nname: Slow\nversion: 1.0.0\ntools: [{id: change, entrypoint: "code:change"}]\n'
    )
    settings = {"data_dir": str(tmp_path / "data"), "workspace": str(folder), "toolsets": [str(tmp_path / "slow")]}
    script = dedent(
        f"""
        import asyncio, json, sys
        from gateway import Gateway
        from gateway.sandbox.landlock import Landlock
        from gateway.sources.toolsets import assembly
        if {sandbox!r} == "landlock":
            async def chosen(_): return Landlock()
            assembly.choose = chosen
        async def main():
            async with Gateway.open(json.loads({json.dumps(settings)!r})) as gateway:
                await gateway.call("slow:change")
        asyncio.run(main())
        """
    )
    await anyio.to_thread.run_sync(_killed, script, tmp_path, folder / "ready")
    assert (folder / "notes.txt").read_text() == "theirs"
    async with Gateway.open({**settings, "toolsets": []}) as gateway:
        assert (folder / "notes.txt").read_text() == "mine\n"
        assert (folder / ".git/hooks/pre-commit").read_text() == HOOK
        assert not (folder / ".envrc").exists() and not (folder / "ready").exists()
        history = await gateway.call("workspace_history", {})
        assert history.value["versions"][0]["source"] == "interrupted"


def _killed(script: str, directory: Path, ready: Path) -> None:
    """Run a program until a file is there, and kill it."""
    gateway = subprocess.Popen([sys.executable, "-c", script], env=environment(directory), start_new_session=True)
    try:
        eventually(ready.exists)
    finally:
        os.kill(gateway.pid, signal.SIGKILL)
        gateway.wait()
