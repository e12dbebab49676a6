"""The administration tools, `toolgate__*`: off by default, for administrators, and asking before they change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from gateway import Gateway
from gateway.admin.switches import change_category
from gateway.config import Settings, ToolSettings

from .clients import call, every_tool, refusal, value
from .processes import PATIENCE, Listening, environment, on_http
from .wire import ERAS, MODERN

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T7")]

ON = {"categories": {"administration": {"enabled": True}}}
ROLES = {"roles": {"operator": {"admin": True}, "agent": {}}}
Keys = dict[str, str]


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """A gateway without keys, whose only user is its owner."""
    directory = tmp_path_factory.mktemp("owned")
    with on_http(directory, "--config", write_settings(directory, ON)) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Listening, Keys]]:
    """A gateway with a key for each role."""
    directory = tmp_path_factory.mktemp("shared")
    config = write_settings(directory, ON | ROLES)
    keys = {role: create_key(directory, config, role) for role in ROLES["roles"]}
    with on_http(directory, "--config", config) as gateway:
        yield gateway, keys


def write_settings(directory: Path, settings: dict[str, Any]) -> str:
    file = directory / "toolgate.yaml"
    file.write_text(json.dumps(settings))  # JSON is YAML
    return str(file)


@asynccontextmanager
async def connect(gateway: Listening, era: str, answer: str | None = None, key: str = "") -> AsyncIterator[Client]:
    """A client whose person answers every question with `answer`; without one it cannot be asked."""

    async def asked(_: Any, params: Any) -> ElicitResult:
        questions = params.model_dump(by_alias=True, mode="json")["requestedSchema"]["properties"]
        content = {name: field["default"] for name, field in questions.items() if "default" in field}
        return ElicitResult(action="accept", content={**content, "decision": answer})

    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
        transport = streamable_http_client(gateway.url, http_client=http)
        options: dict[str, Any] = {"elicitation_callback": asked} if answer else {}
        mode: Any = "auto" if era == MODERN else "legacy"
        async with Client(transport, mode=mode, cache=None, read_timeout_seconds=PATIENCE, **options) as client:
            yield client


async def list_admin_tools(client: Client) -> set[str]:
    return {tool.name for tool in await every_tool(client) if tool.name.startswith("toolgate__")}


def create_key(directory: Path, config: str, role: str) -> str:
    command = [sys.executable, "-m", "gateway", "key", "create", f"some-{role}", "--role", role, "--json"]
    command += ["--data-dir", str(directory / "data"), "--config", config]
    done = subprocess.run(command, env=environment(directory), cwd=directory, capture_output=True, check=True)
    key: str = json.loads(done.stdout)["key"]
    return key


async def test_admin_tools_are_off_even_when_all_categories_are_turned_on(tmp_path: Path) -> None:
    categories = Settings(tools=ToolSettings(enable=True)).effective_categories()
    assert {name for name, category in categories.items() if not category.enabled} == {"administration"}
    async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
        assert gateway.catalog.get("toolgate__list_toolsets") is None
        await change_category(gateway, "administration", {"enabled": True})
        assert gateway.catalog.get("toolgate__list_toolsets") is not None


@pytest.mark.parametrize("era", ERAS)
async def test_local_owner_administers_after_consent(owned: Listening, era: str) -> None:
    async with connect(owned, era, "approve once") as client:
        assert "toolgate__change_category" in await list_admin_tools(client)
        listed = (await value(client, "toolgate__list_categories", {}))["result"]
        assert {"administration", "web"} <= {category["id"] for category in listed}
        changed = await value(client, "toolgate__change_category", {"name": "editing", "enabled": False})
        assert changed["result"]["enabled"] is False
        assert "write_file" not in {tool.name for tool in await every_tool(client)}
        records = (await value(client, "toolgate__list_calls", {"limit": 1}))["result"]
        assert records[0]["tool_id"] == "toolgate:change_category"
        assert (await value(client, "toolgate__check_health", {}))["result"]
        await value(client, "toolgate__change_category", {"name": "editing", "enabled": True})
        missing = await refusal(client, "toolgate__enable_toolset", {"toolsetId": "none", "enabled": True})
        assert missing["code"] == "UNKNOWN_TOOLSET"
    disable = {"name": "read_file", "enabled": False}
    async with connect(owned, era) as client:  # which cannot ask a person
        assert (await refusal(client, "toolgate__enable_tool", disable))["code"] == "CONFIRMATION_REQUIRED"
        assert "read_file" in {tool.name for tool in await every_tool(client)}
    async with connect(owned, era, "deny") as client:
        assert (await call(client, "toolgate__enable_tool", disable)).is_error
        assert "read_file" in {tool.name for tool in await every_tool(client)}


@pytest.mark.parametrize("era", ERAS)
async def test_only_a_role_with_admin_sees_admin_tools(shared: tuple[Listening, Keys], era: str) -> None:
    gateway, keys = shared
    async with connect(gateway, era, "approve once", keys["operator"]) as client:
        assert "toolgate__list_toolsets" in await list_admin_tools(client)
        assert (await value(client, "toolgate__list_toolsets", {}))["result"] == []
    async with connect(gateway, era, "approve once", keys["agent"]) as client:
        assert not await list_admin_tools(client)
        assert (await refusal(client, "toolgate__list_toolsets", {}))["code"] == "UNKNOWN_TOOL"
        assert "read_file" in {tool.name for tool in await every_tool(client)}
