"""install_package and git_push: the tools that need the network, through the sandbox's one door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.net.policy import Policy
from gateway.sources.development.packages import indexes

from .desks import Desk, desk
from .servers import packages, repositories
from .test_git import AUTHOR

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C4"), pytest.mark.slow]


@asynccontextmanager
async def connected(place: Path, monkeypatch: pytest.MonkeyPatch, *hosts: str) -> AsyncIterator[Desk]:
    """A desk whose programs may reach these, though they are on this machine."""
    policy = Policy(hosts, allow_private=True)
    monkeypatch.setattr("gateway.sources.development.workbench.network_of", lambda _: policy)
    async with desk(place, sandbox={"network": True}) as at:
        yield at


async def test_a_package_is_installed_and_what_runs_afterwards_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with packages(tmp_path / "index") as port:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{port}/simple")
        async with connected(tmp_path, monkeypatch, f"127.0.0.1:{port}") as at:
            reason = await at.reason("install_package", packages=["tiny>=1"])
            assert reason == "install_package downloads tiny>=1 with pip into .venv of the workspace"
            code = "import tiny; print(tiny.ANSWER)"
            assert "No module named 'tiny'" in (await at.value("run_code", language="python", code=code))["stderr"]
            value = await at.value("install_package", packages=["tiny>=1"])
            assert value["installed"] == [{"name": "tiny", "version": "1.2"}]
            assert value["environment"] == ".venv"
            assert [path.name for path in at.folder.iterdir()] == [".venv"]
            assert (await at.value("run_code", language="python", code=code))["stdout"] == "42\n"
            again = await at.value("install_package", packages=["tiny"])
            assert again["installed"] == []
            error = await at.refusal("install_package", packages=["no-such-package"])
            assert (error.code, "no-such-package" in error.message) == ("INSTALL_FAILED", True)


async def test_an_index_that_is_not_allowed_is_not_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with packages(tmp_path / "index") as port:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{port}/simple")
        async with connected(tmp_path, monkeypatch, "example.org") as at:
            assert (await at.refusal("install_package", packages=["tiny"])).code == "INSTALL_FAILED"


async def test_options_are_no_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(tmp_path, monkeypatch, "example.org") as at:
        for name in ("--index-url=http://evil.example", "-e.", "", " ", "a\nb"):
            assert (await at.refusal("install_package", packages=[name])).code == "INVALID_PACKAGE"


def test_a_secret_in_the_address_of_an_index_stays_with_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://mirror.example/simple")
    monkeypatch.setenv("UV_INDEX", "https://user:secret@private.example/simple")
    assert indexes() == {"UV_DEFAULT_INDEX": "https://mirror.example/simple"}


async def test_a_branch_is_pushed_to_where_the_person_agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with repositories(tmp_path / "host") as port:
        async with connected(tmp_path, monkeypatch, f"127.0.0.1:{port}") as at:
            url = f"http://127.0.0.1:{port}/x.git"
            await at.bash(f"git init -q -b main .; echo 1 > a.txt; git remote add origin {url}")
            at.git("config", "http.proxy", "http://evil.example")
            (at.folder / ".git/hooks/pre-push").write_text("#!/bin/sh\nexit 1")
            (at.folder / ".git/hooks/pre-push").chmod(0o755)
            await at.value("git_add", paths=["."])
            commit = (await at.value("git_commit", message="one", author=AUTHOR))["commit"]["hash"]
            assert await at.reason("git_push") == f"git_push sends branch 'main' to {url}"
            pushed = await at.value("git_push")
            assert (pushed["branch"], pushed["commit"], pushed["url"]) == ("main", commit, url)
            assert (tmp_path / "host/x.git/refs/heads/main").read_text().strip() == commit
            await at.value("git_commit", message="another one", amend=True, author=AUTHOR)
            error = await at.refusal("git_push")
            assert (error.code, "rejected" in error.message) == ("GIT_FAILED", True)


async def test_code_reaches_what_the_operator_allows_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with packages(tmp_path / "index") as port:
        async with connected(tmp_path, monkeypatch, f"127.0.0.1:{port}") as at:
            look = "import urllib.request as r; print(r.urlopen('http://{}/simple/tiny/').status)"
            code = look.format(f"127.0.0.1:{port}")
            assert (await at.value("run_code", language="python", code=code))["stdout"] == "200\n"
            code = look.format("127.0.0.2")
            assert "403" in (await at.value("run_code", language="python", code=code))["stderr"]
