"""A gateway served over HTTP in this process, and a person with a browser who allows or denies what a client asks."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import anyio
import httpx2
from eventually import TIMEOUT, async_eventually

from gateway import Gateway
from gateway.admin.keys import create_key
from gateway.cli.serve import _serve_http_transport
from gateway.serve.mcp.handlers import Handlers, McpServer

REDIRECT = "http://127.0.0.1:7777/callback"
# Browsers of people, closed with the gateway.
BROWSERS: list[httpx2.AsyncClient] = []
CLIENT = {"client_name": "Probe", "redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none"}


@dataclass
class Served:
    """A gateway and the URL at which it is served."""

    gateway: Gateway
    base: str
    http: httpx2.AsyncClient

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"

    async def make_key(self, name: str = "ann", role: str = "user", **options: Any) -> str:
        return (await create_key(self.gateway, name, role, **options))[1]

    async def list_tools(self, token: str, path: str = "/mcp") -> httpx2.Response:
        """The answer to a request with a token, by a client of 2026-07-28."""
        return await self.http.post(f"{self.base}{path}", json=LIST_TOOLS, headers=headers_of(token))


LIST_TOOLS = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/list",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "probe", "version": "1"},
        }
    },
}


def headers_of(token: str) -> dict[str, str]:
    credential = {"authorization": f"Bearer {token}"} if token else {}
    return {
        **credential,
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/list",
    }


@asynccontextmanager
async def serve(data_dir: Path, **settings: Any) -> AsyncIterator[Served]:
    # Held until the end: nobody else is given the port, and the gateway may bind it, too.
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    async with (
        _closing(held),
        Gateway.open({"data_dir": str(data_dir), **settings}, follow=True) as gateway,
        httpx2.AsyncClient(timeout=TIMEOUT) as http,
    ):
        handlers = Handlers(
            gateway.executor,
            gateway.versions,
            gateway.chat,
            gateway.records,
            gateway.passthrough,
            gateway.approval_flow,
            gateway.first_lists,
            gateway.builtins.end_chat,
        )
        gateway.watch_upstreams(handlers.upstreams_changed)
        stop = anyio.Event()
        serving = asyncio.create_task(
            _serve_http_transport(gateway, McpServer(handlers), "127.0.0.1", port, False, stop)
        )
        served = Served(gateway, f"http://127.0.0.1:{port}", http)
        try:
            await async_eventually(lambda: _is_up(served))
            yield served
        finally:
            while BROWSERS:
                await BROWSERS.pop().aclose()
            stop.set()
            await serving


@asynccontextmanager
async def _closing(held: socket.socket) -> AsyncIterator[None]:
    with held:
        yield


async def _is_up(served: Served) -> bool:
    try:
        return (await served.http.get(f"{served.base}/healthz")).status_code == 200
    except httpx2.ConnectError:
        return False


@dataclass
class Person:
    """A person with a key and a browser that keeps cookies."""

    key: str
    permission: str | None = None
    http: httpx2.AsyncClient = field(default_factory=lambda: httpx2.AsyncClient(timeout=TIMEOUT))
    pages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        BROWSERS.append(self.http)

    async def open(self, url: str) -> httpx2.Response:
        """Open a page of the gateway, and follow redirects within it."""
        response = await self.http.get(url)
        while response.is_redirect and _origin(str(response.next_request.url)) == _origin(url):  # type: ignore[union-attr]
            response = await self.http.send(response.next_request)  # type: ignore[arg-type]
        self.pages.append(response.text)
        return response

    async def submit(self, page: httpx2.Response, action: str, **fields: str) -> httpx2.Response:
        """Submit the form of a page, and follow redirects within the gateway."""
        url = str(page.url)
        target = httpx2.URL(url).join(unescape(re.search(r'<form method="post" action="([^"]+)"', page.text)[1]))  # type: ignore[index]
        given = {**hidden_fields(page.text), "action": action, **fields}
        response = await self.http.post(target, data=given, headers={"origin": _origin(url)})
        if response.is_redirect and _origin(response.headers["location"]) in ("", _origin(url)):
            return await self.open(str(httpx2.URL(url).join(response.headers["location"])))
        self.pages.append(response.text)
        return response

    async def agree(self, url: str, action: str = "allow") -> str:
        """Show the key where it is asked for, decide, and return where the browser is sent."""
        page = await self.open(url)
        if 'name="key"' in page.text:
            page = await self.submit(page, "key", key=self.key)
        assert page.status_code == 200, page.text
        answer = await self.submit(page, action, **({"permission": self.permission} if self.permission else {}))
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]


def hidden_fields(text: str) -> dict[str, str]:
    """The values of a form that a person has not touched."""
    found = re.findall(
        r'<input type="(?:hidden" name="([^"]+)" value="([^"]*)"|radio" name="([^"]+)" value="([^"]*)" checked)>', text
    )
    return {unescape(one or other): unescape(value or chosen) for one, value, other, chosen in found}


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""


@dataclass
class OAuthProbe:
    """A client that speaks OAuth by hand, to do what no library does."""

    served: Served
    client_id: str = ""
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))
    redirect: str = REDIRECT

    async def register(self, **metadata: Any) -> httpx2.Response:
        response = await self.served.http.post(f"{self.served.base}/register", json={**CLIENT, **metadata})
        self.client_id = response.json().get("client_id", "")
        return response

    def authorize_url(self, **changes: str | None) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        params = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect,
            "state": "of the client",
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
            "resource": self.served.url,
            **changes,
        }
        given = {name: value for name, value in params.items() if value is not None}
        return f"{self.served.base}/authorize?{urlencode(given)}"

    async def get_code(self, person: Person, **changes: str | None) -> str:
        location = await person.agree(self.authorize_url(**changes))
        params = dict(parse_qsl(urlsplit(location).query))
        assert (params["state"], params["iss"]) == ("of the client", self.served.base)
        return params["code"]

    async def exchange(self, code: str, **changes: str) -> httpx2.Response:
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self.redirect}
        return await self.token(**{**form, "code_verifier": self.verifier, **changes})

    async def refresh(self, token: str, **changes: str) -> httpx2.Response:
        return await self.token(**{"grant_type": "refresh_token", "refresh_token": token, **changes})

    async def token(self, **form: str) -> httpx2.Response:
        data = {"client_id": self.client_id, **form}
        return await self.served.http.post(f"{self.served.base}/token", data=data)

    async def get_tokens(self, person: Person, **changes: str | None) -> dict[str, Any]:
        response = await self.exchange(await self.get_code(person, **changes))
        assert response.status_code == 200, response.text
        tokens: dict[str, Any] = response.json()
        return tokens
