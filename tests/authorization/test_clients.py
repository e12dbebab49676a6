"""Clients that nobody here wrote log in by themselves: the SDKs in both eras, the public conformance suite, and the MCP
Inspector in a real browser."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.abc
import httpx2
import pytest
from eventually import TIMEOUT
from journeys.test_node_clients import INSPECTOR, _node, _node_22
from mcp import Client
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from .served import REDIRECT, OAuthProbe, Person, Served, serve

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G7")]

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NODE = Path(__file__).parent.parent / "journeys/node"


@asynccontextmanager
async def start_node(home: Path, *command: str | Path, **variables: str) -> AsyncIterator[anyio.abc.Process]:
    """A Node program with a home of its own; it is ended on leaving."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
    process = await anyio.open_process([str(part) for part in command], env=environment, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.aclose()


async def read_until(process: anyio.abc.Process, text: str) -> str:
    """The output of a program so far, once it has this text."""
    assert process.stdout is not None
    output = ""
    while text not in output:
        output += (await process.stdout.receive()).decode()
    return output


async def read_rest(process: anyio.abc.Process) -> str:
    """The output of a program until its end, which must be a success."""
    assert process.stdout is not None
    output = b"".join([chunk async for chunk in process.stdout]).decode()
    assert await process.wait() == 0, output
    return output


class Memory(TokenStorage):
    """The tokens of one client."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def python_login(served: Served, person: Person, storage: Memory) -> OAuthClientProvider:
    """The login of the Python SDK, with the person in place of its browser."""
    answers: list[str] = []

    async def redirect(url: str) -> None:
        answers.append(await person.agree(url))

    async def callback() -> AuthorizationCodeResult:
        query = {name: value for name, [value] in parse_qs(urlsplit(answers[-1]).query).items()}
        return AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss"))

    metadata = OAuthClientMetadata(client_name="Python", redirect_uris=[REDIRECT])  # type: ignore[list-item]
    return OAuthClientProvider(served.url, metadata, storage, redirect, callback)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_python_sdk_logs_in_calls_a_tool_and_refreshes(mode: Any, tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        person, storage, used = Person(await served.make_key()), Memory(), set[str]()
        for round_number in range(2):  # the second time with the stored tokens
            login = python_login(served, person, storage)
            async with httpx2.AsyncClient(auth=login, timeout=TIMEOUT) as http:
                transport = streamable_http_client(served.url, http_client=http)
                async with Client(transport, mode=mode) as client:
                    for number in range(2):
                        path = f"{round_number}-{number}.txt"
                        result = await client.call_tool("write_file", {"path": path, "content": "hi"})
                        assert not result.is_error, result
                        assert storage.tokens is not None
                        used.add(storage.tokens.access_token)
                        login.context.token_expiry_time = 1.0  # the next request refreshes first
        assert len(used) >= 3
        assert len(person.pages) == 3, "asked once: the page for the key, the one for consent, and the redirect"
        [record, *_] = await served.gateway.records.list_calls()
        assert record.principal == "ann"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "era"),
    [("oauth_sdk.mjs", "2025-11-25"), ("oauth_client.mjs", "2025-11-25"), ("oauth_client.mjs", "2026-07-28")],
)
async def test_typescript_sdk_logs_in_and_calls_a_tool(script: str, era: str, tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        person = Person(await served.make_key())
        target = json.dumps({"url": served.url, "era": era})
        async with start_node(tmp_path, _node(), NODE / script, target) as process:
            assert process.stdin is not None
            shown = await read_until(process, "\n")
            await process.stdin.send(f"{await person.agree(shown.strip())}\n".encode())
            result = json.loads(await read_rest(process))
        assert (result["era"], result["written"]["structuredContent"]["path"]) == (era, "ts.txt")
        [record, *_] = await served.gateway.records.list_calls()
        assert record.principal == "ann"


@pytest.mark.slow
async def test_conformance_suite_passes_the_authorization_server(tmp_path: Path) -> None:
    async with serve(tmp_path / "data") as served:
        person, probe = Person(await served.make_key()), OAuthProbe(served)
        await probe.register()
        suite = NODE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
        options = ["--url", served.base, "--client-id", probe.client_id, "--resource", served.url]
        saved = tmp_path / "results"
        command: tuple[str | Path, ...] = (
            _node_22(),
            suite,
            "authorization",
            *options,
            "--port",
            free_port(),
            "--output-dir",
            saved,
        )
        async with start_node(tmp_path, *command) as process:
            shown = await read_until(process, "Waiting up to")
            [url] = [line for line in shown.splitlines() if line.startswith(f"{served.base}/authorize?")]
            await person.http.get(await person.agree(url))
            await read_rest(process)
        checks = [check for path in saved.rglob("checks.json") for check in json.loads(path.read_text())]
        assert {check["id"]: check["status"] for check in checks} == {
            "authorization-server-metadata": "SUCCESS",
            "authorization-server-metadata-cimd": "SUCCESS",
            "authorization-code-grant": "SUCCESS",
        }


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
async def test_inspector_connects_in_a_real_browser_after_a_person_agreed(tmp_path: Path) -> None:
    async with serve(tmp_path / "data") as served:
        key = await served.make_key()
        ports = ("CLIENT_PORT", "SERVER_PORT", "MCP_SANDBOX_PORT", "MCP_APP_ORIGIN_PORT")
        variables = {name: free_port() for name in ports}
        variables |= {"MCP_AUTO_OPEN_ENABLED": "false", "DANGEROUSLY_OMIT_AUTH": "true"}
        options = ("--web", "--transport", "http", "--server-url", served.url)
        async with start_node(tmp_path, _node_22(), INSPECTOR, *options, **variables) as inspector:
            await read_until(inspector, "up and running")
            target = {
                "browser": BROWSER,
                "profile": str(tmp_path / "browser"),
                "inspector": f"http://127.0.0.1:{variables['CLIENT_PORT']}/",
                "key": key,
                "pictures": str(tmp_path / "pictures"),
            }
            driver = (_node_22(), NODE / "inspector_oauth.mjs", json.dumps(target))
            async with start_node(tmp_path, *driver) as process:
                seen = json.loads(await read_rest(process))
        for text in ("MCP Inspector", "ann, role user", "Anybody can choose this name"):
            assert text in seen["consent"]
        assert not seen["overflow"], "the page is wider than a phone of 360 px"
        assert "Connected" in seen["connected"]
        assert (tmp_path / "pictures/connected.png").stat().st_size > 10_000
