"""A start over stdio: answered without importing the SDK, which takes over where it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import mcp_types as types
import pytest
from mcp.shared import inbound
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import version as sdk_versions

from gateway import protocol
from gateway.protocol import jsonrpc

from .servers import (
    ABLE,
    ENVELOPE,
    HANDSHAKE,
    INITIALIZED,
    Servers,
    call,
    initialize,
    open_servers,
    request,
    serve_on_pipes,
)

pytestmark = pytest.mark.promise("G3", "H6")

VERSIONS = [*sdk_versions.HANDSHAKE_PROTOCOL_VERSIONS, "1999-01-01", "2026-07-28"]

PROBE = """
import sys
sys.argv = ["toolgate", "serve", "--data-dir", sys.argv[1]]
import atexit, runpy
atexit.register(lambda: sys.stderr.write("LOADED " + " ".join(sorted(sys.modules)) + "\\n"))
runpy.run_module("gateway", run_name="__main__")
"""


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path) as opened:
        yield opened


def loaded_modules(tmp_path: Path, *messages: dict[str, Any]) -> tuple[list[dict[str, Any]], set[str]]:
    """Run `toolgate serve` over stdio; return its answers and the modules it has loaded at its end."""
    lines = "".join(json.dumps(message) + "\n" for message in messages)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path / "data")], input=lines, capture_output=True, text=True, timeout=300
    )
    [loaded] = [line for line in done.stderr.splitlines() if line.startswith("LOADED ")]
    return [json.loads(line) for line in done.stdout.splitlines()], set(loaded.split()[1:])


def test_stdio_start_of_either_era_loads_no_module_of_the_sdk(tmp_path: Path) -> None:
    write = {"path": "a.txt", "content": "x"}
    for opening in (
        [
            initialize(ABLE),
            INITIALIZED,
            request("ping", number=1, envelope={}),
            request("tools/list", number=2, envelope={}),
            call("write_file", write, 3, envelope={}),
        ],
        [request("server/discover", number="hello"), request("tools/list", number=2), call("write_file", write, 3)],
    ):
        answers, modules = loaded_modules(tmp_path, *opening)
        assert {"hello", 2, 3} <= {answer["id"] for answer in answers}
        assert all("result" in answer for answer in answers)
        unused = {"mcp", "mcp_types", "starlette", "uvicorn", "yaml", "tomllib"}
        assert {name for name in modules if name.split(".")[0] in unused} == set()


def test_constants_are_those_of_the_sdk() -> None:
    assert protocol.HANDSHAKE_PROTOCOL_VERSIONS == sdk_versions.HANDSHAKE_PROTOCOL_VERSIONS
    assert protocol.MODERN_PROTOCOL_VERSIONS == sdk_versions.MODERN_PROTOCOL_VERSIONS
    assert protocol.LATEST_HANDSHAKE_VERSION == sdk_versions.LATEST_HANDSHAKE_VERSION
    assert set(get_args(types.LoggingLevel)) == protocol.LOG_LEVELS
    for key in ("PROTOCOL_VERSION", "CLIENT_INFO", "CLIENT_CAPABILITIES", "LOG_LEVEL", "SERVER_INFO"):
        assert getattr(protocol, f"{key}_META_KEY") == getattr(types, f"{key}_META_KEY")
    assert protocol.SUBSCRIPTION_ID_META_KEY == SUBSCRIPTION_ID_META_KEY
    for name in ("MCP_PROTOCOL_VERSION_HEADER", "MCP_METHOD_HEADER", "MCP_NAME_HEADER", "X_MCP_HEADER_KEY"):
        assert getattr(protocol, name) == getattr(inbound, name)
    assert inbound.NAME_BEARING_METHODS == protocol.NAME_BEARING_METHODS
    for code in (
        *("PARSE_ERROR", "INVALID_REQUEST", "METHOD_NOT_FOUND", "INVALID_PARAMS", "INTERNAL_ERROR"),
        *("UNSUPPORTED_PROTOCOL_VERSION", "CONNECTION_CLOSED"),
    ):
        assert getattr(jsonrpc, code) == getattr(types, code)


@pytest.mark.parametrize(("version", "minimum"), [(a, b) for a in [*VERSIONS, "zzz"] for b in VERSIONS[:4]])
def test_versions_compare_as_in_the_sdk(version: str, minimum: str) -> None:
    assert protocol.is_version_at_least(version, minimum) == sdk_versions.is_version_at_least(version, minimum)


@pytest.mark.anyio
@pytest.mark.parametrize("version", VERSIONS)
async def test_handshake_is_answered_as_the_sdk_answers_it(servers: Servers, version: str) -> None:
    answers = []
    for fast in (True, False):
        async with serve_on_pipes(servers.gateway, fast=fast) as pipes:
            answers.append(await pipes.ask(initialize(ABLE, version)))
    assert answers[0] == answers[1]


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["server/discover", "ping"])
async def test_modern_opening_is_answered_as_the_sdk_answers_it(servers: Servers, method: str) -> None:
    answers = []
    for fast in (True, False):
        async with serve_on_pipes(servers.gateway, fast=fast) as pipes:
            answers.append(await pipes.ask(request(method)))
    assert answers[0] == answers[1]


@pytest.mark.anyio
@pytest.mark.parametrize("envelope", [ENVELOPE, {}], ids=["modern", "handshake"])
async def test_sdk_takes_over_a_connection_that_began_without_it(servers: Servers, envelope: dict[str, Any]) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        if not envelope:
            assert (await pipes.ask(initialize(ABLE)))["result"]["protocolVersion"] == HANDSHAKE
            pipes.send(INITIALIZED)
        assert "result" in await pipes.ask(request("tools/list", number=2, envelope=envelope))
        listed = await pipes.ask(request("resources/templates/list", number=3, envelope=envelope))
        assert listed["id"] == 3 and listed["result"]["resourceTemplates"]
        unknown = await pipes.ask(request("no/such", number=4, envelope=envelope))
        assert (unknown["id"], unknown["error"]["code"]) == (4, jsonrpc.METHOD_NOT_FOUND)
        assert (await pipes.ask(call("stall__echo", {}, 5, envelope=envelope)))["id"] == 5


@pytest.mark.anyio
async def test_changed_tools_are_announced_once_with_and_without_the_sdk(servers: Servers) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        await pipes.ask(initialize(ABLE))
        pipes.send(INITIALIZED)
        await pipes.ask(request("ping", number=1, envelope={}))
        servers.source.more.append(f"new{len(servers.source.more)}")
        await servers.gateway.refresh()
        assert (await pipes.line())["method"] == "notifications/tools/list_changed"
        await pipes.ask(request("prompts/list", number=2, envelope={}))
        servers.source.more.append(f"new{len(servers.source.more)}")
        await servers.gateway.refresh()
        assert (await pipes.line())["method"] == "notifications/tools/list_changed"
        assert (await pipes.ask(request("ping", number=3, envelope={})))["id"] == 3


@pytest.mark.anyio
async def test_request_before_initialized_is_answered_by_the_sdk_of_the_same_session(servers: Servers) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        await pipes.ask(initialize(ABLE))
        assert "result" in await pipes.ask(request("prompts/list", number=1, envelope={}))
        pipes.send(INITIALIZED)
        assert "result" in await pipes.ask(request("logging/setLevel", {"level": "error"}, 2, envelope={}))
        servers.source.more.append(f"new{len(servers.source.more)}")
        await servers.gateway.refresh()
        assert (await pipes.line())["method"] == "notifications/tools/list_changed"
        assert (await pipes.ask(request("ping", number=3, envelope={})))["id"] == 3
