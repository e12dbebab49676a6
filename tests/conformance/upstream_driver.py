"""The gateway as the client the suite examines: what a person and their client do with the suite's server behind it.

Everything reaches that server through the gateway: an SDK client of the scenario's protocol version speaks to the
gateway, and the person logs in with `admin.upstreams.log_in`, as `toolgate upstream login` does.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp_types as types
from eventually import async_eventually
from mcp import Client, MCPError
from mcp.client.context import ClientRequestContext
from oauth.world import Browser

from gateway.admin.upstreams import log_in
from gateway.errors import GatewayError
from gateway.gateway import Gateway
from gateway.serve.mcp.handlers import Handlers, McpServer

from .suite import MODERN

SERVER = "suite"
PREFIX = f"{SERVER}__"
# The document that the suite's authorization server takes for a client's; nobody fetches it.
METADATA = "https://conformance-test.local/client-metadata.json"
# Logins a person is asked for before they give up.
LOGINS = 3


@dataclass(frozen=True)
class Job:
    """One scenario: its name, the protocol version, the URL of the suite's server, and what the suite lets us know."""

    scenario: str
    version: str
    url: str
    context: Mapping[str, Any]

    @property
    def variable(self) -> str:
        """The variable that has the client's secret: scenarios run at once, and each has its own."""
        return re.sub(r"\W", "_", self.scenario)

    @property
    def server(self) -> dict[str, Any]:
        """The entry of `mcpServers`."""
        entry: dict[str, Any] = {"url": self.url, "pinning": "off"}
        return {**entry, "oauth": self._oauth} if self.scenario.startswith("auth/") else entry

    @property
    def _oauth(self) -> dict[str, Any]:
        if "client_id" not in self.context:
            return {"client_metadata_url": METADATA}
        client = {"client_id": self.context["client_id"], "client_secret": f"${{{self.variable}}}"}
        unattended = self.scenario.startswith("auth/client-credentials")
        return {**client, "grant": "client_credentials"} if unattended else client


async def drive(job: Job, home: Path) -> None:
    """Do what the scenario wants of a client; raises where a client would report an error."""
    settings = {"data_dir": str(home), "approval": {"mode": "never"}, "mcpServers": {SERVER: job.server}}
    if "client_secret" in job.context:
        os.environ[job.variable] = job.context["client_secret"]
    if job.scenario.startswith("auth/"):
        await _use_with_login(settings, job)
        return
    async with _connected(settings, job.version) as client:
        await _ACTIONS.get(job.scenario, _call_each)(client, job.context)


async def _use_with_login(settings: Mapping[str, Any], job: Job) -> None:
    """Log in as often as the gateway says to, and call the first tool."""
    scopes: list[str] = []
    for _ in range(LOGINS):
        refusal = await _log_in(settings, scopes) if "grant" not in job.server["oauth"] else None
        if refusal is None:
            async with _connected(settings, job.version) as client:
                tool, *_ = await _tools(client)
                result = await client.call_tool(tool.name, {})
            if not result.is_error:
                return
            refusal = (result.meta or {})["dev.toolgate/error"]
        if "login" not in refusal["details"]:
            break
        scopes = refusal["details"].get("scope", "").split()
    raise RuntimeError(f"{refusal}")


async def _log_in(settings: Mapping[str, Any], scopes: Sequence[str]) -> dict[str, Any] | None:
    """Log in with a browser; returns the error of a server that still does not answer."""
    async with Gateway.open(settings, connect="none") as gateway:
        browser = Browser()
        result = await log_in(gateway, SERVER, browser, scopes=scopes)
        await browser.closed()
    return result.probe.to_dict() if isinstance(result.probe, GatewayError) else None


async def _call_each(client: Client, _: Mapping[str, Any]) -> None:
    """Call every tool with the least it takes, and read and get the first of the rest."""
    for tool in await _tools(client):
        await client.call_tool(tool.name, _least(tool.input_schema))
    for resource in (await client.list_resources()).resources[:1]:
        await client.read_resource(resource.uri)
    for prompt in (await client.list_prompts()).prompts[:1]:
        await client.get_prompt(prompt.name)


async def _add_numbers(client: Client, _: Mapping[str, Any]) -> None:
    await _call(client, "add_numbers", {"a": 5, "b": 3})


async def _list(client: Client, _: Mapping[str, Any]) -> None:
    await _tools(client)


async def _echo_schema(client: Client, _: Mapping[str, Any]) -> None:
    tools = {tool.name: tool for tool in await _tools(client)}
    await _call(client, "json_schema_echo", {"schema": tools[f"{PREFIX}json_schema_2020_12_tool"].input_schema})


async def _replay_calls(client: Client, context: Mapping[str, Any]) -> None:
    offered = {tool.name for tool in await _tools(client)}
    for call in context["toolCalls"]:
        if (name := f"{PREFIX}{call['name']}") in offered:
            with suppress(MCPError):
                await client.call_tool(name, call.get("arguments") or {})


async def _resume_calls(client: Client, _: Mapping[str, Any]) -> None:
    for name in ("echo_state", "unrelated", "no_state", "no_result_type"):
        await _call(client, f"test_mrtr_{name}", {})


_ACTIONS = {
    "initialize": _list,
    "tools_call": _add_numbers,
    "request-metadata": _add_numbers,
    "json-schema-ref-no-deref": _list,
    "json-schema-2020-12-preservation": _echo_schema,
    "http-custom-headers": _replay_calls,
    "sep-2322-client-request-state": _resume_calls,
}


async def _tools(client: Client) -> list[types.Tool]:
    """The tools of the suite's server."""
    return [tool for tool in (await client.list_tools()).tools if tool.name.startswith(PREFIX)]


async def _call(client: Client, name: str, arguments: dict[str, Any]) -> None:
    async def is_listed() -> bool:
        return f"{PREFIX}{name}" in {tool.name for tool in await _tools(client)}

    await async_eventually(is_listed)  # a server that is slow to answer is listed later
    result = await client.call_tool(f"{PREFIX}{name}", arguments)
    assert not result.is_error, result


def _least(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The least arguments a schema allows."""
    empty: dict[Any, Any] = {"integer": 0, "number": 0, "boolean": False, "object": {}, "array": [], "null": None}
    properties = schema.get("properties", {})
    return {name: empty.get(properties.get(name, {}).get("type"), "x") for name in schema.get("required", ())}


async def _accept(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    """A person who confirms, and leaves every other field as it is filled in."""
    assert isinstance(params, types.ElicitRequestFormParams)
    fields = params.requested_schema.get("properties", {})
    content = {name: field.get("default", True) for name, field in fields.items()}
    return types.ElicitResult(action="accept", content=content)


async def _sample(context: ClientRequestContext, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(text=""), model="none")


@asynccontextmanager
async def _connected(settings: Mapping[str, Any], version: str) -> AsyncIterator[Client]:
    """An SDK client of the version, which can be asked everything, connected to a gateway."""
    async with Gateway.open(settings) as gateway:
        flow = gateway.approval_flow
        server = McpServer(
            Handlers(gateway.executor, gateway.versions, gateway.chat, gateway.records, gateway.passthrough, flow)
        )
        mode = "auto" if version == MODERN else "legacy"
        async with Client(server.sdk, mode=mode, elicitation_callback=_accept, sampling_callback=_sample) as client:
            yield client
