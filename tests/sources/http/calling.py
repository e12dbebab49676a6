"""HTTP tools called without a gateway around them, on a network that leads to a test's own server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from net.sites import Lab

from gateway.bundles import load
from gateway.bundles.http_tool import HttpTool
from gateway.calls import Call, Outcome
from gateway.config import HttpSettings
from gateway.mcp_client.http_pool import HttpPool
from gateway.net.transport import INTERNET, Network
from gateway.sources.http import CompiledTool, HttpRunner
from gateway.tools import Tool, hide_nothing

OPEN = HttpSettings(allowed_hosts=["*"], allow_private=True)
ANYWHERE = HttpSettings(allowed_hosts=["*"])
SECRETS = ("HOST", "TOKEN", "SECRET", "CLIENT_SECRET")


@asynccontextmanager
async def running(settings: HttpSettings = OPEN, network: Network = INTERNET) -> AsyncIterator[HttpRunner]:
    runner = HttpRunner(settings, cast("Any", None), cast("Any", None), network)  # these tools use no files
    try:
        yield runner
    finally:
        await runner.close()


def compile_tool(tool: Mapping[str, Any], http: Mapping[str, Any] | None = None) -> CompiledTool:
    manifest: dict[str, Any] = {"id": "demo", "name": "Demo", "version": "1.0.0", "secrets": SECRETS}
    manifest |= {"http": http} if http else {}
    toolset = load(json.dumps({**manifest, "tools": [{"id": "t", "type": "http", **tool}]}))
    (spec,) = toolset.tools
    assert isinstance(spec, HttpTool)
    return CompiledTool.of(spec, toolset.http, frozenset(toolset.secrets))


async def send(
    runner: HttpRunner, tool: CompiledTool, environment: Mapping[str, str] | None = None, **arguments: Any
) -> Outcome:
    call = Call(name="demo:t", arguments=arguments, tool=Tool(id="demo:t", description=""))
    return await runner.run(tool, call, environment or {}, hide_nothing)


def lead_to(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every connection of a pool go to the lab's server, and note the address it was meant for."""
    dial = HttpPool._dial

    async def connect(pool: HttpPool, address: str) -> Any:
        lab.connected.append(address)
        origin = pool.target.origin
        object.__setattr__(origin, "port", lab.port)
        return await dial(pool, "127.0.0.1")

    monkeypatch.setattr(HttpPool, "_dial", connect)
