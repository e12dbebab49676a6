"""Where git would go from a person's folder: no program leads it elsewhere, and a worktree of theirs can be read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import anyio
import pytest
from eventually import TIMEOUT, async_eventually

from .test_git import AUTHOR
from .tool_client import ToolClient, open_client

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C4")]


def git(folder: Path, *arguments: str) -> str:
    """git as the person runs it whose folder this is."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=a", "-c", "user.email=b", "-c", "safe.directory=*")
    ran = subprocess.run(["git", *who, *arguments], cwd=folder, env=env, check=True, capture_output=True, text=True)
    return ran.stdout


def repository(folder: Path, text: str = "1\n") -> Path:
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "a.txt").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", f"first of {folder.name}")
    return folder


def evil(folder: Path) -> Path:
    """A directory whose settings run a program that leaves a mark; where the mark will be."""
    mark, program = folder.parent / "mark", folder.parent / "planted.sh"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    subprocess.run(["cp", "-r", folder / ".git", folder / "evil"], check=True)
    with (folder / "evil/config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = {program}\n")
    return mark


PLANTED = "printf ../evil > .git/commondir; echo planted"


@pytest.mark.parametrize("way", ["bash", "python", "command"])
async def test_settings_from_elsewhere_do_not_outlast_the_program_that_named_them(
    client: ToolClient, tmp_path: Path, way: str
) -> None:
    client.folder.rmdir()
    mark = evil(repository(client.folder))
    (client.folder / ".git/commondir").write_text("../evil")
    git(client.folder, "status")
    assert mark.exists(), "the plant works"
    mark.unlink()
    (client.folder / ".git/commondir").unlink()
    if way == "command":
        outcome = await client.call("run_command", command=PLANTED)
    else:
        code = PLANTED if way == "bash" else f"import os; os.system({PLANTED!r})"
        outcome = await client.call("run_code", language=way, code=code)
    assert outcome.error is not None and outcome.error.code == "PROTECTED_FILE"
    assert outcome.error.details["renamed"] == {".git/commondir": ".git/commondir.toolgate-removed-1"}
    assert not (client.folder / ".git/commondir").exists()
    git(client.folder, "status")
    assert not mark.exists()


async def test_they_do_not_when_the_program_is_cancelled_either(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        at.folder.rmdir()
        repository(at.folder)
        async with anyio.create_task_group() as tasks:
            code = "printf ../evil > .git/commondir; mkdir -p .git/hooks; touch begun; sleep 600"
            tasks.start_soon(lambda: at.call("run_code", language="bash", code=code))
            await async_eventually((at.folder / "begun").exists)
            tasks.cancel_scope.cancel()
        assert not (at.folder / ".git/commondir").exists()


async def test_what_git_itself_makes_of_a_folder_stays(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        await at.bash("git init -q -b main .; echo 1 > a.txt; git add .")
        assert (at.folder / ".git/hooks").is_dir() or not Path("/usr/share/git-core/templates/hooks").is_dir()
        await at.bash("echo 2 > a.txt; git add . && git -c user.name=a -c user.email=b commit -qm one")
        assert git(at.folder, "log", "--format=%s") == "one\n"


async def test_worktrees_and_submodules_of_a_repository_are_not_led_elsewhere(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        at.folder.rmdir()
        repository(at.folder)
        git(at.folder, "worktree", "add", "--quiet", str(tmp_path / "linked"))
        (at.folder / ".git/modules/x").mkdir(parents=True)
        before = (at.folder / ".git/worktrees/linked/commondir").read_text()
        code = (
            "echo x > .git/worktrees/linked/commondir; mkdir .git/modules/x/hooks; mv .git/modules .git/m; touch worked"
        )
        await at.value("run_code", language="bash", code=code)
        assert (at.folder / "worked").exists()
        assert (at.folder / ".git/worktrees/linked/commondir").read_text() == before
        assert list((at.folder / ".git/modules").rglob("*")) == [at.folder / ".git/modules/x"]


def worktree(tmp_path: Path) -> Path:
    """A worktree, in the place of the workspace, of a repository beside it."""
    main = repository(tmp_path / "main")
    git(main, "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "ws"))
    return main


async def test_a_worktree_of_a_persons_own_is_read(client: ToolClient, tmp_path: Path) -> None:
    client.folder.rmdir()
    main = worktree(tmp_path)
    (client.folder / "sub").mkdir()
    (client.folder / "a.txt").write_text("2\n")
    for where in (".", "sub"):
        found = await client.value("git_status", repository=where)
        assert (found["branch"], [each["path"] for each in found["files"]]) == ("side", ["a.txt"])
    assert (await client.value("git_log"))["commits"][0]["subject"] == "first of main"
    assert "-1\n+2\n" in (await client.value("git_diff"))["diff"]
    before = {path: path.stat().st_mtime_ns for path in (main / ".git").rglob("*")}
    for name, arguments in (
        ("git_add", {"paths": ["a.txt"]}),
        ("git_commit", {"message": "x", "all": True, "author": AUTHOR}),
        ("git_branch", {"create": "other"}),
    ):
        error = await client.refusal(name, **arguments)
        assert (error.code, str(main / ".git") in error.message) == ("PERMISSION_DENIED", True)
    assert {path: path.stat().st_mtime_ns for path in (main / ".git").rglob("*")} == before


async def test_a_program_does_not_make_a_worktree_of_another_repository(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        at.folder.rmdir()
        worktree(tmp_path)
        before = (at.folder / ".git").read_text()
        code = "echo gitdir: elsewhere > .git; rm .git; mv .git x; touch worked"
        await at.value("run_code", language="bash", code=code)
        assert (at.folder / "worked").exists()
        assert (at.folder / ".git").read_text() == before


@pytest.mark.parametrize("led", ["{private}/.git", "{private}/.git/worktrees/own", "{ws}/fake/.git/worktrees/x"])
async def test_a_repository_that_knows_nothing_of_the_folder_is_not_read(tmp_path: Path, led: str) -> None:
    private = repository(tmp_path / "private", "hidden\n")
    git(private, "worktree", "add", "--quiet", str(tmp_path / "own"))
    async with open_client(tmp_path) as at:
        fake = at.folder / "fake/.git/worktrees/x"
        fake.mkdir(parents=True)
        (fake / "gitdir").write_text(str(at.folder / ".git"))
        (fake / "commondir").write_text(str(private / ".git"))
        (fake / "HEAD").write_text("ref: refs/heads/main\n")
        path = led.format(private=private, ws=at.folder)
        (at.folder / ".git").write_text(f"gitdir: {path}\n")
        for tool in ("git_log", "git_status", "git_show"):
            error = await at.refusal(tool)
            assert "first of private" not in error.message and "hidden" not in error.message
            assert error.code in ("NOT_A_REPOSITORY", "GIT_FAILED")
        if "private" in led:
            assert f"refers to {path}, which is not visible in the sandbox" in error.message


async def test_a_pipe_in_the_place_of_a_link_is_not_waited_for(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        fake = at.folder / "fake/.git/worktrees/x"
        fake.mkdir(parents=True)
        os.mkfifo(fake / "gitdir")
        (at.folder / ".git").write_text(f"gitdir: {fake}\n")
        with anyio.fail_after(TIMEOUT / 2):
            assert not (await at.call("git_status")).ok
