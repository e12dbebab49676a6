"""Servers that speak both protocol eras, behind a gateway: each client is served in its own era, as without one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from eventually import async_eventually
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client

from .clients import every_tool, text
from .processes import PATIENCE, environment, on_http, serve_command
from .servers import labs, wild
from .test_node_clients import _absent
from .wire import ERAS, HANDSHAKE, MODERN

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.promise("G2", "G3", "H9")]

ASKING = Path(__file__).parent / "servers/asking.py"
LIBRARIES = ["mcp", "fastmcp"]
TRANSPORTS = ["stdio", "http"]
SERVERS = [f"{library}-{transport}" for library in LIBRARIES for transport in TRANSPORTS]
LISTED = {"added", "era", "greet", "grow", "think"}


def python(library: str) -> str:
    if library == "mcp":
        return sys.executable
    found = wild.THERE / "bin/python"
    if not wild.INSTALLED.exists():
        _absent("FastMCP is not installed: run tests/journeys/servers/wild/install")
    return str(found)


def started(library: str) -> dict[str, Any]:
    return {"command": python(library), "args": [str(ASKING), library, "stdio"]}


@contextmanager
def reached(library: str) -> Iterator[dict[str, Any]]:
    process = subprocess.Popen([python(library), str(ASKING), library, "http"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield {"url": f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"}
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@asynccontextmanager
async def connected(target: dict[str, Any], era: str) -> AsyncIterator[Client]:
    """A client that answers every question."""

    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ann"})

    async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        thought = types.TextContent(type="text", text=f"deeply {params.max_tokens}")
        return types.CreateMessageResult(role="assistant", content=thought, model="m")

    transport: Any = target.get("url") or stdio_client(StdioServerParameters(**target))
    async with Client(
        transport,
        mode="auto" if era == MODERN else "legacy",
        read_timeout_seconds=PATIENCE,
        cache=None,
        elicitation_callback=elicit,
        sampling_callback=sample,
    ) as client:
        assert client.protocol_version == era
        yield client


@contextmanager
def gateway(directory: Path, **servers: dict[str, Any]) -> Iterator[dict[str, Any]]:
    directory.mkdir(exist_ok=True)
    file = directory / "toolgate.yaml"
    file.write_text(json.dumps({"mcpServers": servers, "approval": {"mode": "never"}}))
    with on_http(directory, "--config", str(file)) as running:
        yield {"url": running.url}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, dict[str, Any]]]:
    with reached("mcp") as sdk, reached("fastmcp") as fastmcp:
        yield {
            "mcp-stdio": started("mcp"),
            "mcp-http": sdk,
            "fastmcp-stdio": started("fastmcp"),
            "fastmcp-http": fastmcp,
        }


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory, servers: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    with gateway(tmp_path_factory.mktemp("gateway"), **servers) as running:
        yield running


@pytest.mark.parametrize("server", SERVERS)
async def test_server_with_both_eras_asks_a_handshake_client_through_the_gateway(
    through: dict[str, Any], server: str
) -> None:
    async with connected(through, HANDSHAKE) as client:
        assert text(await client.call_tool(f"{server}__greet", {})) == "accept Ann"
        assert text(await client.call_tool(f"{server}__think", {})) == "m deeply 7"
        assert text(await client.call_tool(f"{server}__era", {})) == HANDSHAKE


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("server", SERVERS)
async def test_server_with_both_eras_answers_as_it_does_without_a_gateway(
    through: dict[str, Any], servers: dict[str, dict[str, Any]], server: str, era: str
) -> None:
    async with connected(servers[server], era) as itself, connected(through, era) as client:
        for tool in ("greet", "think", "era"):
            assert await answer(client, f"{server}__{tool}") == await answer(itself, tool)


async def answer(client: Client, tool: str) -> Any:
    try:
        result = await client.call_tool(tool, {})
    except MCPError as error:
        return error.code, error.message
    return result.is_error, result.content, result.structured_content


async def test_clients_of_both_eras_are_served_at_once(through: dict[str, Any]) -> None:
    async with connected(through, MODERN) as modern, connected(through, HANDSHAKE) as handshake:
        for server in SERVERS:
            assert text(await modern.call_tool(f"{server}__era", {})) == MODERN
            assert text(await handshake.call_tool(f"{server}__greet", {})) == "accept Ann"
            assert text(await modern.call_tool(f"{server}__era", {})) == MODERN


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_era_of_the_settings_is_spoken_to_the_server(
    tmp_path: Path, servers: dict[str, dict[str, Any]], transport: str, era: str
) -> None:
    server = servers[f"mcp-{transport}"]
    with gateway(
        tmp_path / "gateway",
        modern={**server, "protocol": "modern"},
        handshake={**server, "protocol": "handshake"},
    ) as running:
        async with connected(running, era) as client:
            assert text(await client.call_tool("modern__era", {})) == MODERN
            assert text(await client.call_tool("handshake__era", {})) == HANDSHAKE
            # Better than direct for a modern client, whom this server could not ask.
            assert text(await client.call_tool("handshake__greet", {})) == "accept Ann"


async def test_server_without_the_era_of_the_settings_is_refused_with_the_fix(tmp_path: Path) -> None:
    for era, other in (("modern", "handshake"), ("handshake", "modern")):
        log = tmp_path / era / "stderr.log"
        with gateway(tmp_path / era, lab={**labs.on_stdio(era), "protocol": other}) as running:
            async with connected(running, MODERN) as client:
                await async_eventually(partial(_mentions, log, "set protocol to auto"))
                assert not [tool for tool in await every_tool(client) if tool.name.startswith("lab__")]


@pytest.mark.parametrize("era", ERAS)
async def test_one_client_has_one_process_of_a_server_and_sees_the_tools_it_adds(tmp_path: Path, era: str) -> None:
    directory = tmp_path / "home"
    directory.mkdir()
    file = directory / "toolgate.yaml"
    starts = tmp_path / "starts"
    server = {**started("mcp"), "env": {"ASKING_FILE": str(starts)}}
    file.write_text(json.dumps({"mcpServers": {"asking": server}, "approval": {"mode": "never"}}))
    options = ["--config", str(file), "--data-dir", str(directory / "data")]
    listing = [sys.executable, "-m", "gateway", "tool", "list", *options]
    await anyio.run_process(listing, env=environment(directory))
    starts.unlink()

    command, *arguments = serve_command(directory / "data", "--config", str(file))
    target = {"command": command, "args": arguments, "env": environment(directory), "cwd": directory}
    async with connected(target, era) as client:
        assert text(await client.call_tool("asking__era", {})) == era
        assert text(await client.call_tool("asking__grow", {})) == "grown"

        async def sees_added() -> bool:
            return "asking__added" in {tool.name for tool in await every_tool(client)}

        await async_eventually(sees_added)
        assert text(await client.call_tool("asking__added", {})) == "added"
        assert starts.read_text() == "started\n"
    await async_eventually(lambda: not labs.running(str(starts)))


def _mentions(log: Path, words: str) -> bool:
    return words in log.read_text()
