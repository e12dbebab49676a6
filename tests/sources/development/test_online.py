"""install_package and git_push: the tools that need the network, through the sandbox's one door."""

from __future__ import annotations

import base64
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from gateway.net.policy import NetworkPolicy
from gateway.secrets import KNOWN
from gateway.sources.builtin.code.install_package import PackageIndex, indexes

from .servers import packages, repositories
from .test_git import AUTHOR
from .tool_client import ToolClient, open_client, opened

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C4"), pytest.mark.slow]

MANAGERS = [name for name, program in (("pip", "python3"), ("npm", "npm")) if shutil.which(program)]


@asynccontextmanager
async def connected(
    place: Path, monkeypatch: pytest.MonkeyPatch, *hosts: str, timeout: float = 60
) -> AsyncIterator[ToolClient]:
    """A client whose programs may reach these, though they are on this machine."""
    policy = NetworkPolicy(hosts, allow_private=True, hosts_setting="sandbox.allowed_hosts")
    monkeypatch.setattr("gateway.sources.builtin.code.tools.network_of", lambda _: policy)
    async with open_client(place, sandbox={"network": True, "timeout": timeout}) as at:
        yield at


def plant_programs(folder: Path, *names: str) -> None:
    """Programs of the workspace that leave the file `ran`."""
    for name in names:
        program = folder / "node_modules/.bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n: > /workspace/ran\n")
        program.chmod(0o755)


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


@pytest.mark.parametrize("login", ["", "someone:s3cret-of-the-index"])
async def test_a_private_index_of_the_settings_is_used_and_nothing_else_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    monkeypatch.setenv("INDEX_LOGIN", f"{login}@" if login else "")
    with packages(tmp_path / "index", login) as port:
        index = f"http://${{INDEX_LOGIN}}127.0.0.1:{port}/simple"
        sandbox = {"network": True, "allowed_hosts": ["example.org"], "package_index": index}
        async with open_client(tmp_path, sandbox=sandbox) as at:
            plant_programs(at.folder, "rm", "mkdir")  # they would see the login
            outcome = await at.call("install_package", packages=["tiny"])
            assert outcome.ok, outcome.error
            assert not (at.folder / "ran").exists()
            assert outcome.value["installed"] == [{"name": "tiny", "version": "1.2"}]
            code = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/simple')"
            ran = await at.value("run_code", language="python", code=code)
            assert "403" in ran["stderr"]


async def test_a_wrong_login_of_an_index_fails_and_stays_with_us(tmp_path: Path) -> None:
    with packages(tmp_path / "index", "someone:right-password") as port:
        index = f"http://someone:wrong-password@127.0.0.1:{port}/simple"
        async with open_client(tmp_path, sandbox={"network": True, "package_index": index}) as at:
            error = await at.refusal("install_package", packages=["tiny"])
    assert (error.code, "wrong-password" in KNOWN.mask(error.message)) == ("INSTALL_FAILED", False)


def test_a_registry_of_the_settings_and_its_login_reach_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPM_PASSWORD", "s3cret-of-npm")
    index = PackageIndex.parse("https://someone:${NPM_PASSWORD}@npm.example:8443/team/")
    assert (index.host, index.port) == ("npm.example", 8443)
    login = base64.b64encode(b"someone:s3cret-of-npm").decode()
    assert index.environment("npm") == {
        "npm_config_registry": "https://npm.example:8443/team/",
        "NPM_LOGIN": f"//npm.example:8443/team/:_auth={login}",
    }


async def test_an_index_that_is_not_allowed_is_named_with_the_setting_that_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with packages(tmp_path / "index") as port:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{port}/simple")
        monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{port}/npm")
        async with connected(tmp_path, monkeypatch, "example.org") as at:
            for manager in MANAGERS:
                error = await at.refusal("install_package", packages=["tiny"], manager=manager)
                assert (error.code, error.details) == ("INSTALL_FAILED", {"refused_hosts": ["127.0.0.1"]})
                fix = f"127.0.0.1 is not among the allowed hosts; add 127.0.0.1:{port} to sandbox.allowed_hosts to"
                assert error.message.startswith(f"{manager} could not install tiny: {fix} allow it\n")
                assert list(at.folder.iterdir()) == []


async def test_what_a_failed_call_made_does_not_stay_also_when_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{port}/simple")
        monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{port}/npm")
        async with connected(tmp_path, monkeypatch, f"127.0.0.1:{port}", timeout=3) as at:
            for manager in MANAGERS:
                error = await at.refusal("install_package", packages=["tiny"], manager=manager)
                assert error.message == f"{manager} could not install tiny: it exceeded its limit of timeout"
                assert list(at.folder.iterdir()) == []
            with anyio.move_on_after(2) as scope:
                await at.call("install_package", packages=["tiny"])
            assert scope.cancelled_caught
            assert list(at.folder.iterdir()) == []


async def test_an_environment_that_was_there_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with packages(tmp_path / "index") as port:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{port}/simple")
        async with connected(tmp_path, monkeypatch, f"127.0.0.1:{port}") as at:
            await at.value("install_package", packages=["tiny"])
            before = {path: path.lstat().st_mtime_ns for path in at.folder.rglob("*")}
            await at.refusal("install_package", packages=["no-such-package"])
            assert {path: path.lstat().st_mtime_ns for path in at.folder.rglob("*")} == before


@pytest.mark.parametrize("attached", [True, False])
async def test_what_is_installed_is_in_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attached: bool
) -> None:
    with packages(tmp_path / "index") as port:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{port}/simple")
        policy = NetworkPolicy((f"127.0.0.1:{port}",), allow_private=True)
        monkeypatch.setattr("gateway.sources.builtin.code.tools.network_of", lambda _: policy)
        (tmp_path / "mine").mkdir()
        where = {"workspace": tmp_path / "mine"} if attached else {}
        async with opened(tmp_path, sandbox={"network": True}, chat="c", **where) as gateway:
            script = {
                "path": "thing/package.json",
                "content": '{"name": "thing", "version": "1.0.0"}',
                "createDirs": True,
            }
            assert (await gateway.call("write_file", script, confirmed=True)).ok
            for arguments in ({"packages": ["tiny"]}, {"packages": ["./thing"], "manager": "npm"}):
                if arguments.get("manager", "pip") not in MANAGERS:
                    continue
                outcome = await gateway.call("install_package", arguments, confirmed=True)
                assert outcome.ok, outcome.error
                with gateway.versions.root("c") as root:
                    assert root.find((outcome.value["environment"], ".gitignore")) is not None
                assert outcome.post_manifest is not None
                files = set((await gateway.versions.tree("c", outcome.post_manifest)).files)
                assert files - {"package.json", "package-lock.json"} == {"thing/package.json"}


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


async def test_a_push_that_wants_a_login_runs_no_program_of_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with packages(tmp_path / "host", "someone:password") as port:
        async with connected(tmp_path, monkeypatch, f"127.0.0.1:{port}") as at:
            await at.bash(f"git init -q -b main .; git remote add origin http://127.0.0.1:{port}/x.git; echo 1 > a.txt")
            await at.value("git_add", paths=["."])
            await at.value("git_commit", message="one", author=AUTHOR)
            plant_programs(at.folder, "false", "true", "cat", "git")
            assert (await at.refusal("git_push")).code == "GIT_FAILED"
            assert not (at.folder / "ran").exists()


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
