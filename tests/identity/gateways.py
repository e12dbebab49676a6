"""Gateways that need a key, served as users have them and by the SDK's application alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve.servers import (
    HANDSHAKE,
    INITIALIZED,
    MODERN,
    Answer,
    Client,
    ConnectionApp,
    RecordingSource,
    initialize,
    request,
)
from starlette.types import ASGIApp

from gateway import Gateway
from gateway.admin import keys
from gateway.cli.serve import build_http_app
from gateway.identity.authentication import Identity
from gateway.serve.http.app import PATH, HttpApp
from gateway.serve.mcp.handlers import Handlers, McpServer

ERAS = [MODERN, HANDSHAKE]
ROADS = ["fast", "sdk"]


@dataclass
class Person:
    """A client with a credential, of one protocol era, at one URL."""

    app: ASGIApp
    headers: Mapping[str, str]
    era: str
    url: str = PATH
    session: dict[str, str] = field(default_factory=dict)

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, **headers: str) -> Answer:
        client = Client(self.app)
        if self.era == HANDSHAKE:
            await self.open()
            client.session = dict(self.session)
            message = request(method, params, envelope={})
        else:
            message = request(method, params)
        uri = (params or {}).get("uri") if method == "resources/read" else None
        named = {"mcp-name": uri} if uri and self.era == MODERN else {}
        return await client.ask(message, {**named, **self.headers, **headers}, url=self.url)

    async def open(self) -> None:
        if self.session:
            return
        client = Client(self.app)
        plain = {"mcp-protocol-version": None, "mcp-method": None, **self.headers}
        answer = await client.ask(initialize(), plain, url=self.url)
        assert answer.status == 200, answer
        client.session = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}
        assert (await client.ask(INITIALIZED, self.headers, url=self.url)).status == 202
        self.session = client.session

    async def result(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        message = (await self.ask(method, params)).message
        assert "result" in message, message
        return message["result"]

    async def tools(self) -> list[str]:
        return [tool["name"] for tool in (await self.result("tools/list"))["tools"]]

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, **meta: str) -> Any:
        params: dict[str, Any] = {"name": name, "arguments": dict(arguments or {})}
        if meta:
            params["_meta"] = {f"dev.toolgate/{key}": value for key, value in meta.items()}
        return await self.result("tools/call", params)

    async def value(self, name: str, arguments: Mapping[str, Any] | None = None, **meta: str) -> Any:
        """Return the value of a call, or the code of its error."""
        result = await self.call(name, arguments, **meta)
        if result.get("isError"):
            return result["_meta"]["dev.toolgate/error"]["code"]
        return json.loads(result["content"][0]["text"])


@dataclass
class Guarded:
    """One gateway over HTTP. `apps` are its two roads: `fast` with the fast path, `sdk` without."""

    gateway: Gateway
    source: RecordingSource
    identity: Identity
    web: HttpApp
    apps: Mapping[str, ASGIApp]

    async def key(self, name: str, role: str = "user", **options: Any) -> str:
        _, secret = await keys.create_key(self.gateway, name, role, **options)
        return secret

    async def person(
        self, name: str, role: str = "user", road: str = "fast", era: str = MODERN, url: str = PATH, **options: Any
    ) -> Person:
        return self.holder(await self.key(name, role, **options), road, era, url)

    def holder(self, credential: str | None, road: str = "fast", era: str = MODERN, url: str = PATH) -> Person:
        headers = {} if credential is None else {"authorization": f"Bearer {credential}"}
        return Person(self.apps[road], headers, era, url)


@asynccontextmanager
async def guarded(directory: Path, *, anonymous: bool = True, **settings: Any) -> AsyncIterator[Guarded]:
    source = RecordingSource()
    chosen = {"data_dir": str(directory / "data"), "approval": {"mode": "never"}, **settings}
    async with Gateway.open(chosen, sources=[source]) as gateway:
        handlers = Handlers(
            gateway.executor,
            gateway.versions,
            plans=gateway.records,
            relay=gateway.passthrough,
            caller=gateway.approval_flow,
        )
        server, identity = McpServer(handlers), gateway.make_identity(anonymous)
        web = build_http_app(gateway, server, identity, "http://127.0.0.1:80")
        async with server.sdk.session_manager.run():
            apps: dict[str, ASGIApp] = {"fast": ConnectionApp(web.app, web.fast_path), "sdk": web.app}
            yield Guarded(gateway, source, identity, web, apps)
