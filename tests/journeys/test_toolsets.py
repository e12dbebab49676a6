"""Toolsets as their users have them: named in the settings, called by a real client, shown, and edited meanwhile."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from eventually import TIMEOUT, async_eventually
from mcp import Client
from sources.toolset.writing import require_sandbox, write_toolset

from .clients import call, every_tool, over_http, over_stdio, refusal, value
from .processes import on_http
from .servers.marks import Marks
from .wire import HANDSHAKE, MODERN

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

SHIPPED = Path(__file__).parents[2] / "toolsets"
PAGE = (
    "<!doctype html><html><head><title>T</title></head><body><script>show(window.__TOOL_DATA__)</script></body></html>"
)
MANIFEST = """
id: lab
name: Lab
version: 1.0.0
tools:
  - id: {tool}
    entrypoint: code:{tool}
    renderer: {{type: html, artifact: artifacts/page.html, data: $return}}
"""
CODE = """
from covalt_toolset import tool

@tool
def {tool}(text: str) -> dict:
    '''Say it.'''
    return {{"said": text}}
"""


def edit(folder: Path, tool: str) -> None:
    (folder / "artifacts").mkdir(parents=True, exist_ok=True)
    (folder / "artifacts/page.html").write_text(PAGE)
    write_toolset(folder, MANIFEST.format(tool=tool), code=CODE.format(tool=tool))


@pytest.fixture(params=[MODERN, pytest.param(HANDSHAKE, marks=pytest.mark.slow)])
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["stdio", pytest.param("http", marks=pytest.mark.slow)])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def connected(tmp_path: Path, transport: str, era: str, hear: Any) -> AsyncIterator[Client]:
    await require_sandbox()
    edit(tmp_path / "lab", "say")
    settings = tmp_path / "toolgate.yaml"
    settings.write_text(f"toolsets: [./lab, {SHIPPED / 'app-builder'}]\napproval: {{mode: never}}\n")
    options = ("--config", str(settings), *of_the_readme())
    if transport == "stdio":
        async with over_stdio(tmp_path, era, *options, hear=hear) as client:
            yield client
    else:
        with on_http(tmp_path, *options) as listening:
            async with over_http(listening.url, era, hear) as client:
                yield client


def of_the_readme() -> list[str]:
    """The options of `serve` in the entry for Claude Desktop that the toolset's README shows."""
    [entry] = re.findall(r"```json\n(.*?)```", (SHIPPED / "app-builder/README.md").read_text(), re.DOTALL)
    server = json.loads(entry)["mcpServers"]["toolgate"]
    assert (server["command"], server["args"][0]) == ("toolgate", "serve")
    return list(server["args"][1:])


@pytest.mark.promise("T9", "T5")
async def test_toolset_from_installation_to_a_rendered_page(tmp_path: Path, transport: str, era: str) -> None:
    notifications = []

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            notifications.append(message)

    async def offers(*names: str) -> bool:
        return set(names) <= {tool.name for tool in await every_tool(client)}

    async with connected(tmp_path, transport, era, hear) as client:
        shipped = [f"app-builder__{tool}" for tool in ("write_file", "read_file", "run_command")]
        await async_eventually(lambda: offers("lab__say", *shipped))
        wrote = await call(client, "app-builder__write_file", {"path": "a.py", "content": "print(6 * 7)\n"})
        assert not wrote.is_error, wrote.content
        ran = await call(client, "app-builder__run_command", {"command": "python3 a.py"})
        assert ran.structured_content == {"command": "python3 a.py", "output": "42\n", "exit_code": 0}

        result = await call(client, "lab__say", {"text": "</script><b>"})
        [link] = [block for block in result.content if isinstance(block, types.ResourceLink)]
        plan = json.loads(await read(client, link.uri))
        assert plan["renderer"] == "html"
        assert plan["config"] == {"artifact": "artifacts/page.html", "data": {"said": "</script><b>"}}
        assert plan["input"] == {"text": "</script><b>"}
        page = await read(client, f"{link.uri}/view")
        assert "window.__TOOL_DATA__" in page
        assert "</script><b>" not in page

        async with listening(client, era):
            before = len(notifications)
            edit(tmp_path / "lab", "shout")
            await async_eventually(lambda: len(notifications) > before)
        await async_eventually(lambda: offers("lab__shout"))
        assert not await offers("lab__say")
        assert not (await call(client, "lab__shout", {"text": "x"})).is_error


@pytest.mark.promise("T6")
async def test_tools_of_a_toolset_server_are_listed_only_with_consent(tmp_path: Path, era: str) -> None:
    marks, changed = Marks(tmp_path), anyio.Event()
    marks.write(tools=False)
    settings = tmp_path / "toolgate.yaml"
    settings.write_text("toolsets: [./marks]\n")

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    async def toolgate(*arguments: str) -> str:
        options = ("--config", str(settings), "--data-dir", str(tmp_path / "data"))
        return (await anyio.to_thread.run_sync(lambda: marks.toolgate(*arguments, *options))).stdout

    async def offers() -> bool:
        return "marker__who" in {tool.name for tool in await every_tool(client)}

    async with over_stdio(tmp_path, era, "--config", str(settings), hear=hear) as client:
        assert not await offers()
        await async_eventually(lambda: "toolgate toolset allow marks" in (tmp_path / "stderr.log").read_text())
        assert (await refusal(client, "marker__who", {}))["code"] == "UNKNOWN_TOOL"
        assert marks.starts == 0
        async with listening(client, era):
            await toolgate("toolset", "allow", "marks", "--yes")
            with anyio.fail_after(TIMEOUT):
                await changed.wait()
        await async_eventually(offers)
        assert "pid" in await value(client, "marker__who", {})
        await toolgate("toolset", "disallow", "marks")

        async def is_gone() -> bool:
            return not await offers()

        await async_eventually(is_gone)
    calls = json.loads(await toolgate("call", "list", "--json"))
    assert [each["tool_id"] for each in calls] == ["marker:who", "marker__who"]
    assert [each["status"] for each in calls] == ["success", "error"]


@asynccontextmanager
async def listening(client: Client, era: str) -> AsyncIterator[None]:
    if era != MODERN:
        yield
        return
    async with client.listen(tools_list_changed=True):
        yield


async def read(client: Client, uri: str) -> str:
    [content] = (await client.read_resource(str(uri))).contents
    assert isinstance(content, types.TextResourceContents)
    return content.text
