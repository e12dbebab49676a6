"""Calls of the web tools, as the executor makes them."""

from __future__ import annotations

import ssl
from typing import Any, cast

import anyio
import orjson
from eventually import TIMEOUT

from gateway.calls import Call, Outcome
from gateway.config.settings import WebSettings
from gateway.net.transport import Network
from gateway.sources.builtin.source import BuiltinSource
from gateway.sources.builtin.web.context import WebTools
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions

ANYWHERE = WebSettings(allowed_hosts=["*"])


def web(
    settings: WebSettings = ANYWHERE, network: Network | None = None, tls: ssl.SSLContext | None = None
) -> BuiltinSource:
    """The web tools without a chat's files: nothing can be downloaded."""
    files = cast("Workspaces", None), cast("Versions", None)
    return BuiltinSource([WebTools(settings, *files, network=network, tls=tls)])


async def call(source: BuiltinSource, name: str, **arguments: Any) -> Outcome:
    """The outcome, which fits what the tool promises; refusals are raised."""
    tool = next(tool for tool in await source.list_tools() if tool.id == name)
    tool.check_arguments(arguments)
    with anyio.fail_after(TIMEOUT):
        outcome = await source.call_tool(Call(name=name, tool=tool, arguments=arguments))
    tool.check_output(outcome.value)
    orjson.dumps([outcome.to_dict(), outcome.content])
    return outcome


async def fetch(source: BuiltinSource, url: str, **arguments: Any) -> dict[str, Any]:
    value: dict[str, Any] = (await call(source, "web_fetch", url=url, **arguments)).value
    return value
