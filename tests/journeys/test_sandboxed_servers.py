"""Servers nobody here wrote, in the sandbox: they do their work with what they are given, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sandbox.conftest import make

from gateway import Gateway

from .servers import wild
from .test_node_clients import _absent, _node_22
from .test_wild_servers import _commit, _Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.promise("H2")]


@pytest.fixture
def pages() -> Iterator[list[str]]:
    """Two pages on the loopback: one that the server is given, one that it is not."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Page) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    yield [f"127.0.0.1:{server.server_port}" for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
async def gateway(tmp_path: Path, pages: list[str]) -> AsyncIterator[Gateway]:
    make("bwrap")  # the one that can give a server some hosts
    node = _node_22()
    if not wild.INSTALLED.exists():
        _absent("the servers are not installed: run tests/journeys/servers/wild/install")
    for name in ("files", "private"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"from {name}\n")
    for name in ("repository", "other"):
        _commit(tmp_path, tmp_path / name)
    behind = wild.behind_a_gateway(node, tmp_path / "files", tmp_path / "repository", tmp_path / "memory.jsonl")
    given: dict[str, Any] = {
        "filesystem": {"paths": [f"{tmp_path}/files:rw"]},
        "git": {"paths": [f"{tmp_path}/repository:rw"]},
        "fetch": {"network": pages[:1]},
    }
    # Told of more than it is given, the server itself would allow it.
    behind["filesystem"]["args"].append(str(tmp_path / "private"))
    behind["git"]["args"] = []
    behind["fetch"]["env"] = {
        "PATH": str(wild.THERE / "bin")
    }  # where it finds Node, it wants to install packages for it
    settings = {
        "data_dir": tmp_path / "data",
        "approval": {"mode": "never"},
        "http": {"allow_private": True},
        "mcpServers": {name: {**behind[name], "sandbox": sandbox} for name, sandbox in given.items()},
    }
    async with Gateway.open(settings) as gateway:
        yield gateway


async def text_of(gateway: Gateway, tool: str, **arguments: Any) -> str:
    outcome = await gateway.call(tool, arguments)
    return str(outcome.error or outcome.value)


async def test_the_filesystem_server_works_in_the_sandbox_with_its_paths_only(gateway: Gateway, tmp_path: Path) -> None:
    read = "filesystem__read_text_file"
    assert "from files" in await text_of(gateway, read, path=str(tmp_path / "files/a.txt"))
    written = await gateway.call("filesystem__write_file", {"path": str(tmp_path / "files/b.txt"), "content": "new"})
    assert (written.error, (tmp_path / "files/b.txt").read_text()) == (None, "new")
    assert "from private" not in await text_of(gateway, read, path=str(tmp_path / "private/a.txt"))


async def test_the_git_server_works_in_the_sandbox_with_its_repository_only(gateway: Gateway, tmp_path: Path) -> None:
    assert "the first of all" in await text_of(gateway, "git__git_log", repo_path=str(tmp_path / "repository"))
    (tmp_path / "repository/new.txt").write_text("new")
    for tool, arguments in (("add", {"files": ["new.txt"]}), ("commit", {"message": "the second"})):
        await text_of(gateway, f"git__git_{tool}", repo_path=str(tmp_path / "repository"), **arguments)
    assert "the second" in await text_of(gateway, "git__git_log", repo_path=str(tmp_path / "repository"))
    assert "the first of all" not in await text_of(gateway, "git__git_log", repo_path=str(tmp_path / "other"))


async def test_the_fetch_server_works_in_the_sandbox_with_its_hosts_only(gateway: Gateway, pages: list[str]) -> None:
    assert "from a page" in await text_of(gateway, "fetch__fetch", url=f"http://{pages[0]}/")
    assert "from a page" not in await text_of(gateway, "fetch__fetch", url=f"http://{pages[1]}/")
