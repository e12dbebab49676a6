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
