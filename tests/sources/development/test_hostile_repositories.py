"""Repositories that want programs run: none of them is, also where no sandbox would stop them.

Each plant is first seen to work, by plain git; then the tools do the same without a sandbox around them, so that only
what they tell git stands between the plant and the machine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .tool_client import ToolClient, open_client

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C4")]

Call = tuple[str, dict[str, Any]]


class Plant:
    """A repository with something in it that leaves a mark when it is run."""

    def __init__(self, folder: Path, mark: Path) -> None:
        self.folder = folder
        self.mark = mark
        self.program = folder.parent / "planted.sh"
        self.program.write_text(f'#!/bin/sh\ntouch {mark}\ncat "$@" 2>/dev/null\nexit 0\n')
        self.program.chmod(0o755)

    def git(self, *arguments: str, check: bool = True, given: str | None = None) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder.parent), "GIT_CONFIG_NOSYSTEM": "1"}
        who = ("-c", "user.name=a", "-c", "user.email=b")
        subprocess.run(
            ["git", *who, *arguments],
            cwd=self.folder,
            env=env,
            check=check,
            capture_output=True,
            input=given,
            text=True,
        )

    def set(self, key: str, value: str | None = None) -> None:
        self.git("config", key, value or str(self.program))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def hook(self, name: str) -> None:
        place = self.folder / ".git" / "hooks" / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(self.program.read_bytes())
        place.chmod(0o755)


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    folder = tmp_path / "ws"
    folder.mkdir()
    made = Plant(folder, tmp_path / "mark")
    made.git("init", "--quiet", "--initial-branch", "main")
    made.write("a.txt", "1\n")
    made.git("add", ".")
    made.git("commit", "--quiet", "-m", "first")
    made.write("a.txt", "2\n")
    return made


def hooks(plant: Plant) -> None:
    for name in ("pre-commit", "post-commit", "commit-msg", "prepare-commit-msg", "post-checkout", "post-index-change"):
        plant.hook(name)


def hooks_elsewhere(plant: Plant) -> None:
    hooks(plant)
    (plant.folder / ".git/hooks").rename(plant.folder / "mine")
    plant.set("core.hooksPath", "mine")


def fsmonitor(plant: Plant) -> None:
    plant.set("core.fsmonitor")


def filters(plant: Plant) -> None:
    plant.write(".gitattributes", "* filter=x\n")
    for step in ("clean", "smudge"):
        plant.set(f"filter.x.{step}")
    plant.set("filter.x.required", "true")


def process_filter(plant: Plant) -> None:
    plant.write(".gitattributes", "*.txt filter=long.name=x\n")
    plant.set("filter.long.name=x.process")


def textconv(plant: Plant) -> None:
    plant.write(".gitattributes", "* diff=x\n")
    plant.set("diff.x.textconv")


def external_diff(plant: Plant) -> None:
    plant.set("diff.external")


def driver_diff(plant: Plant) -> None:
    plant.write(".gitattributes", "* diff=x\n")
    plant.set("diff.x.command")


def signing(plant: Plant) -> None:
    plant.set("commit.gpgSign", "true")
    plant.set("gpg.program")


def signing_by_ssh(plant: Plant) -> None:
    plant.set("commit.gpgSign", "true")
    plant.set("gpg.format", "ssh")
    plant.set("user.signingKey", "key::x")
    plant.set("gpg.ssh.program")


def included(plant: Plant) -> None:
    plant.write("more", f"[core]\n\tfsmonitor = {plant.program}\n")
    plant.set("include.path", "../more")


def per_worktree(plant: Plant) -> None:
    plant.set("extensions.worktreeConfig", "true")
    plant.git("config", "--worktree", "core.fsmonitor", str(plant.program))


def editor(plant: Plant) -> None:
    plant.set("core.editor")
    plant.set("commit.verbose", "true")


COMMIT: Call = ("git_commit", {"message": "x", "all": True, "author": {"name": "a", "email": "b"}})
STATUS: Call = ("git_status", {})
DIFF: Call = ("git_diff", {})
ADD: Call = ("git_add", {"paths": ["."]})
SHOW: Call = ("git_show", {})
LOG: Call = ("git_log", {})
STASH: Call = ("git_stash", {"action": "push"})
BACK: Call = ("git_checkout", {"paths": ["a.txt"]})
AWAY: Call = ("git_checkout", {"create": "other"})

PLANTS: list[tuple[Callable[[Plant], None], list[str], list[Call]]] = [
    (hooks, ["commit", "-am", "x"], [COMMIT, AWAY, BACK, ADD, STASH]),
    (hooks_elsewhere, ["commit", "-am", "x"], [COMMIT, AWAY, BACK, ADD, STASH]),
    (fsmonitor, ["status"], [STATUS, DIFF, ADD, COMMIT, STASH]),
    (filters, ["add", "."], [STATUS, DIFF, ADD, BACK, STASH]),
    (process_filter, ["add", "."], [STATUS, DIFF, ADD, BACK, STASH]),
    (textconv, ["diff"], [DIFF, SHOW, LOG, COMMIT]),
    (external_diff, ["diff"], [DIFF, SHOW, LOG, COMMIT, STASH]),
    (driver_diff, ["diff"], [DIFF, SHOW, LOG, COMMIT]),
    (signing, ["commit", "-am", "x"], [COMMIT]),
    (signing_by_ssh, ["commit", "-am", "x"], [COMMIT]),
    (included, ["status"], [STATUS, ADD, COMMIT]),
    (per_worktree, ["status"], [STATUS, ADD, COMMIT]),
    (editor, ["commit", "-a"], [COMMIT]),
]


# Another spelling of what another plant does already; tried with the whole.
VARIANTS = {hooks_elsewhere, process_filter, textconv, driver_diff, signing_by_ssh, included, per_worktree, editor}


@pytest.mark.parametrize(
    ("sow", "control", "calls"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each[0] in VARIANTS), id=each[0].__name__) for each in PLANTS],
)
async def test_no_program_of_a_repository_is_run(
    plant: Plant, tmp_path: Path, sow: Callable[[Plant], None], control: list[str], calls: list[Call]
) -> None:
    sow(plant)
    plant.git(*control, check=False)
    assert plant.mark.exists(), "the plant works"
    plant.mark.unlink()
    plant.git("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=", "reset", "--quiet", check=False)
    plant.mark.unlink(missing_ok=True)
    async with open_client(tmp_path, "unconfined") as at:
        for name, arguments in calls:
            plant.write("a.txt", f"{name}\n")
            await at.value(name, **arguments)
            assert not plant.mark.exists(), name


async def test_a_merge_driver_is_not_run_and_the_merge_is_made_all_the_same(plant: Plant, tmp_path: Path) -> None:
    plant.write("a.txt", "1\n" * 9)
    plant.git("commit", "--quiet", "-am", "longer")
    plant.write("a.txt", "stashed\n" + "1\n" * 8)
    plant.git("stash")
    plant.write("a.txt", "1\n" * 8 + "committed\n")
    plant.git("commit", "--quiet", "-am", "other end")
    plant.write(".git/info/attributes", "* merge=x\n")
    plant.set("merge.x.driver", f"{plant.program} %A")
    plant.git("stash", "apply", check=False)
    assert plant.mark.exists(), "the plant works"
    plant.mark.unlink()
    plant.git("checkout", "--quiet", "--", ".")
    async with open_client(tmp_path, "unconfined") as at:
        await at.value("git_stash", action="pop")
        assert (at.folder / "a.txt").read_text() == "stashed\n" + "1\n" * 7 + "committed\n"
        assert not plant.mark.exists()


@pytest.mark.slow
async def test_the_settings_of_a_submodule_are_not_asked(plant: Plant, tmp_path: Path) -> None:
    (plant.folder / "inner").mkdir()
    inner = Plant(plant.folder / "inner", plant.mark)
    inner.git("init", "--quiet")
    inner.write("a.txt", "1\n")
    inner.git("add", ".")
    inner.git("commit", "--quiet", "-m", "x")
    plant.git("add", "inner")
    plant.git("commit", "--quiet", "-m", "with a submodule")
    filters(inner)
    inner.write("a.txt", "2\n")
    plant.git("status")
    assert plant.mark.exists(), "the plant works"
    plant.mark.unlink()
    async with open_client(tmp_path, "unconfined") as at:
        for name, arguments in (STATUS, DIFF, LOG, SHOW, ADD, COMMIT, STASH):
            inner.write("a.txt", f"{name}\n")
            await at.call(name, **arguments)
            assert not plant.mark.exists(), name


async def test_settings_that_a_branch_brings_are_overridden_after_a_checkout(plant: Plant, tmp_path: Path) -> None:
    plant.git("branch", "other")
    plant.write(".git/more", f'[filter "x"]\n\tclean = {plant.program}\n')
    plant.write(".git/info/attributes", "* filter=x\n")
    plant.set("includeIf.onbranch:other.path", "more")
    async with open_client(tmp_path, "unconfined") as at:
        await at.value("git_checkout", revision="other")
        assert not plant.mark.exists()
    plant.git("status")
    assert plant.mark.exists(), "the plant works"


async def test_an_alias_or_a_pager_changes_nothing(plant: Plant, tmp_path: Path) -> None:
    for key in ("alias.status", "alias.log", "core.pager", "pager.log", "pager.status", "interactive.diffFilter"):
        plant.set(key, f"!{plant.program}" if key.startswith("alias") else None)
    async with open_client(tmp_path, "unconfined") as at:
        assert (await at.value("git_status"))["files"] == [{"path": "a.txt", "unstaged": "modified"}]
        assert len((await at.value("git_log"))["commits"]) == 1
        assert not plant.mark.exists()


async def test_settings_that_change_the_output_do_not_confuse_us(plant: Plant, tmp_path: Path) -> None:
    for key, value in {
        "diff.noprefix": "true",
        "diff.mnemonicPrefix": "true",
        "color.ui": "always",
        "core.quotePath": "true",
        "status.relativePaths": "true",
        "status.showUntrackedFiles": "no",
        "log.showSignature": "true",
        "log.date": "raw",
        "format.pretty": "oneline",
        "column.ui": "always",
        "diff.renames": "false",
        "i18n.logOutputEncoding": "utf-16",
        "core.abbrev": "40",
    }.items():
        plant.set(key, value)
    plant.write("ü.txt", "new\n")
    async with open_client(tmp_path, "unconfined") as at:
        found = await at.value("git_status")
        assert [each["path"] for each in found["files"]] == ["a.txt", "ü.txt"]
        assert "--- a/a.txt\n+++ b/a.txt\n" in (await at.value("git_diff"))["diff"]
        assert (await at.value("git_log"))["commits"][0]["subject"] == "first"
        assert len((await at.value("git_branch"))["branches"]) == 1


async def test_filters_that_were_not_run_are_told(plant: Plant, tmp_path: Path) -> None:
    filters(plant)
    async with open_client(tmp_path) as at:
        assert (await at.value("git_add", paths=["."]))["filtersNotRun"] == ["x"]


async def test_a_work_tree_elsewhere_leads_nowhere(plant: Plant, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("hidden\n")
    plant.set("core.worktree", str(tmp_path / "outside"))
    plant.git("add", "--all", "--dry-run")
    async with open_client(tmp_path) as at:
        outcome = await at.call("git_add", paths=["."])
        assert "secret" not in str(outcome.to_dict())
    linked = tmp_path / "ws" / "sub"
    linked.mkdir()
    (linked / ".git").write_text(f"gitdir: {tmp_path / 'outside' / '.git'}\n")
    async with open_client(tmp_path) as at:
        assert not (await at.call("git_status", repository="sub")).ok


@pytest.fixture
async def online(tmp_path: Path, plant: Plant) -> Any:
    async with open_client(tmp_path, sandbox={"network": True}) as at:
        yield at


async def test_a_push_names_where_it_goes_and_goes_nowhere_else(online: ToolClient, plant: Plant) -> None:
    assert (await online.refusal("git_push")).code == "UNKNOWN_REMOTE"
    plant.git("remote", "add", "origin", "https://user:secret@example.org/x.git")
    reason = await online.reason("git_push", force=True)
    assert reason == "git_push sends branch 'main' to https://…@example.org/x.git, replacing the remote branch"
    plant.set("url.https://evil.example/.insteadOf", "https://user:secret@example.org/")
    error = await online.refusal("git_push")
    assert (error.code, "insteadof" in error.message) == ("INVALID_URL", True)
    plant.git("config", "--unset", "url.https://evil.example/.insteadOf")
    for url in ("ext::sh -c true", "git@example.org:x.git", "/somewhere", "file:///x", "-oProxy=x"):
        plant.set("remote.origin.url", url)
        assert (await online.refusal("git_push")).code == "INVALID_URL"
