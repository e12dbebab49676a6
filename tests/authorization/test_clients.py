"""Clients that nobody here wrote log in by themselves: the Python SDK in both eras, and the TypeScript SDK."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest
from eventually import TIMEOUT
from mcp import Client
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from .served import REDIRECT, Person, Served, serve

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G7")]

NODE = Path(__file__).parent.parent / "journeys/node"


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
        command = ["node", str(NODE / script), json.dumps({"url": served.url, "era": era})]
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        async with await anyio.open_process(command, env=environment, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            shown = (await process.stdout.receive()).decode()
            await process.stdin.send(f"{await person.agree(shown.strip())}\n".encode())
            output = b"".join([chunk async for chunk in process.stdout])
            errors = b"".join([chunk async for chunk in process.stderr])
            assert await process.wait() == 0, errors.decode()
        result = json.loads(output)
        assert (result["era"], result["written"]["structuredContent"]["path"]) == (era, "ts.txt")
        [record, *_] = await served.gateway.records.list_calls()
        assert record.principal == "ann"
