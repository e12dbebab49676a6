"""Lists for clients that show views and for others: real clients of both protocol eras, over stdio and HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from amounts import NIGHTLY
from journeys.processes import Listening, environment, on_http, serve_command
from mcp import Client, StdioServerParameters, stdio_client

from .hosts import APPS, COUNTER, EXTENSION, MIME_TYPE, STUDIO

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G4", "G5")]

ROADS = [("stdio", "auto"), ("stdio", "legacy"), ("http", "auto"), ("http", "legacy")]
VIEW_TOOLS = {"render_plan", "view_changes", "view_read_file", "view_write_file"}
COUNTERS = {"counter__count", "counter__draw_chart", "counter__plain"}
VIEWS = {
    "studio__edit": "ui://toolgate/view/code?v=",
    "studio__look": "ui://toolgate/view/code?v=",
    "studio__document": "ui://toolgate/view/document?v=",
    "studio__page": "ui://toolgate/html/studio__page?v=",
    "studio__site": "ui://toolgate/frame/studio__site?v=",
    "studio__list": "ui://toolgate/view/table?v=",
    "counter__count": "ui://counter/counter/view.html",
    "counter__draw_chart": "ui://toolgate/view/image?v=",
    "edit_file": "ui://toolgate/view/diff?v=",
    "apply_patch": "ui://toolgate/view/diff?v=",
    "workspace_diff": "ui://toolgate/view/diff?v=",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with settings and a data directory, in which the toolset is installed and the server known."""
    home = tmp_path_factory.mktemp("apps")
    (home / "toolgate.yaml").write_text(json.dumps({"mcpServers": {"counter": COUNTER}}))
    for command in (["toolset", "install", str(STUDIO)], ["tool", "list"]):
        options = ["--data-dir", str(home / "data"), "--config", str(home / "toolgate.yaml")]
        subprocess.run(
            [sys.executable, "-m", "gateway", *command, *options],
            env=environment(home),
            check=True,
            capture_output=True,
        )
    return home


@pytest.fixture(scope="module")
def listening(home: Path) -> Iterator[Listening]:
    with on_http(home, "--config", str(home / "toolgate.yaml")) as gateway:
        yield gateway


@asynccontextmanager
async def connected(request: pytest.FixtureRequest, road: str, era: str, apps: bool) -> AsyncIterator[Client]:
    transport: Any
    if road == "http":
        transport = request.getfixturevalue("listening").url
    else:
        home = request.getfixturevalue("home")
        command, *arguments = serve_command(home / "data", "--config", str(home / "toolgate.yaml"))
        transport = stdio_client(
            StdioServerParameters(command=command, args=arguments, env=environment(home), cwd=home)
        )
    async with Client(transport, mode=era, cache=None, extensions=APPS if apps else []) as client:
        yield client


@pytest.mark.parametrize(("road", "era"), ROADS)
async def test_client_that_shows_views_gets_their_tools_and_resources(
    request: pytest.FixtureRequest, road: str, era: str
) -> None:
    async with connected(request, road, era, apps=True) as client:
        tools = {tool.name: tool.meta or {} for tool in (await client.list_tools()).tools}
        assert VIEW_TOOLS | {"counter__more"} <= tools.keys()
        for name, uri in VIEWS.items():
            assert tools[name]["ui"]["resourceUri"].startswith(uri)
            assert tools[name]["ui/resourceUri"] == tools[name]["ui"]["resourceUri"]
        visibility = {name: meta.get("ui", {}).get("visibility") for name, meta in tools.items()}
        assert {name for name, seen in visibility.items() if seen == ["app"]} == VIEW_TOOLS | {"counter__more"}
        # Not said of the server that has a view: its tools are for both.
        assert {name for name, seen in visibility.items() if seen is None} == COUNTERS

        resources = {each.uri: each for each in (await client.list_resources()).resources}
        for name in VIEWS:
            listed = resources[tools[name]["ui"]["resourceUri"]]
            [read] = (await client.read_resource(listed.uri)).contents
            assert (listed.mime_type, read.mime_type, read.uri) == (MIME_TYPE, MIME_TYPE, listed.uri)
            if name != "counter__count":
                assert listed.meta == read.meta and (read.meta or {})["ui"]["prefersBorder"] is True
        frame = resources[tools["studio__site"]["ui"]["resourceUri"]].meta or {}
        assert frame["ui"]["csp"] == {"frameDomains": ["http://localhost:3123"]}

        result = await client.call_tool("counter__count", {})
        assert EXTENSION in result.structured_content["extensions"]
        assert (result.meta or {})["ui"] == {"resourceUri": "ui://counter/counter/view.html"}
        if era == "auto":
            assert client.server_capabilities.extensions == {EXTENSION: {}}


@pytest.mark.parametrize(("road", "era"), ROADS if NIGHTLY else ROADS[1:3])
async def test_client_that_shows_no_views_gets_no_tool_that_is_for_views(
    request: pytest.FixtureRequest, road: str, era: str
) -> None:
    async with connected(request, road, era, apps=False) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert "counter__plain" in tools and tools.keys().isdisjoint({*VIEW_TOOLS, "counter__more"})
        assert not [tool for tool in tools.values() if "visibility" in str(tool.meta)]
        assert not [each for each in (await client.list_resources()).resources if each.uri.startswith("ui://toolgate")]

        result = await client.call_tool("counter__count", {})
        assert (result.structured_content or {})["extensions"] is None  # the server is not told what the client lacks
        shown = await client.call_tool("studio__page", {"path": "."})
        assert [block.type for block in shown.content][-1] == "resource_link"
        assert "dev.toolgate/render" not in (shown.meta or {})
