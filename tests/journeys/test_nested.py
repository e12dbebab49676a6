"""A Toolgate behind a Toolgate: its questions reach the person under its name, if the operator trusts it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from gateway import Gateway
from gateway.serve.mcp.handlers import Handlers, McpServer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.promise("C5")]

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
INNER = """
chat: c
approval:
  rules:
    - {tool: read_file, when: {path: "a.txt"}, then: ask, why: the inner operator wants to know}
"""


@asynccontextmanager
async def nested(place: Path, era: Any, asked: list[str], **outer: Any) -> AsyncIterator[Client]:
    """A client of a gateway that has another one behind it; `asked` is what its person is asked, and agrees to."""
    (place / "inner.yaml").write_text(INNER)
    workspace = place / "inner" / "chats" / "c" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "a.txt").write_text("seen")
    serve = ["-m", "gateway", "serve", "--config", str(place / "inner.yaml"), "--data-dir", str(place / "inner")]
    server = {"command": sys.executable, "args": serve, **outer.pop("server", {})}

    async def agree(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"decision": "approve once"})

    settings = {"data_dir": str(place / "outer"), "mcpServers": {"inner": server}, **outer}
    async with Gateway.open(settings) as gateway:
        face = McpServer(
            Handlers(gateway.executor, gateway.versions, "c", relay=gateway.passthrough, caller=gateway.approval_flow)
        )
        async with Client(face.sdk, mode=era, cache=None, elicitation_callback=agree) as client:
            yield client


@ERAS
async def test_a_trusted_toolgate_asks_as_a_toolgate_does_and_its_name_stands_above(tmp_path: Path, era: Any) -> None:
    asked: list[str] = []
    async with nested(tmp_path, era, asked, server={"trusted": True}) as client:
        result = await client.call_tool("inner__read_file", {"path": "a.txt"})
        assert not result.is_error and "seen" in str(result.content), result
    [message] = asked
    first, blank, *quoted = message.splitlines()
    assert (first, blank) == ("The MCP server 'inner' asks:", "")
    assert quoted and all(line.startswith("> ") for line in quoted) and "the inner operator wants to know" in message


@ERAS
async def test_a_trusted_toolgate_asks_after_the_outer_one_has_asked(tmp_path: Path, era: Any) -> None:
    asked: list[str] = []
    rules = [{"tool": "inner:read_file", "then": "ask", "why": "the outer operator too"}]
    async with nested(tmp_path, era, asked, server={"trusted": True}, approval={"rules": rules}) as client:
        result = await client.call_tool("inner__read_file", {"path": "a.txt"})
        assert not result.is_error and "seen" in str(result.content), result
    assert "the outer operator too" in asked[0] and not asked[0].startswith("The MCP server")
    assert asked[1].startswith("The MCP server 'inner' asks:\n") and len(asked) == 2


@ERAS
async def test_a_toolgate_that_is_not_trusted_is_refused_as_an_imitation(tmp_path: Path, era: Any) -> None:
    asked: list[str] = []
    async with nested(tmp_path, era, asked, server={"requires_confirmation": False}) as client:
        result = await client.call_tool("inner__read_file", {"path": "a.txt"})
        assert result.is_error and "looks like one of Toolgate's own" in str(result.content), result
    assert asked == []
