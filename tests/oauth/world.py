"""A protected MCP server and its authorization server, on loopback, as strict or as broken as a test wants them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import mcp_types as types
import uvicorn
from eventually import TIMEOUT, eventually
from mcp.server.lowlevel.server import Server
from mcp.server.sse import SseServerTransport
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.config import OAuthSettings
from gateway.mcp_client import HttpEndpoint
from gateway.oauth.bearer import BearerToken
from gateway.oauth.flow import sign_in
from gateway.oauth.store import Login, LoginAccount, Logins

ISSUER = "/issuer"
PROTECTED = ("/mcp", "/sse", "/messages", "/else/mcp")


@dataclass
class Token:
    scope: str
    until: float


@dataclass
class Behaviour:
    """What a test may change; a fresh one for each test."""

    metadata: dict[str, Any] = field(default_factory=dict)
    protected: dict[str, Any] = field(default_factory=dict)
    challenge: dict[str, str] = field(default_factory=dict)
    where: str = "path"
    openid: bool = False
    answer: dict[str, str | None] = field(default_factory=dict)
    lifetime: float = 3600.0
    token_delay: float = 0.0
    token_status: int = 0
    token_error: dict[str, str] = field(default_factory=dict)
    token_error_status: int = 400
    grant: dict[str, Any] = field(default_factory=dict)
    registration: dict[str, Any] = field(default_factory=dict)
    also: str | None = None
    rotates: bool = True
    forgiving: bool = False
    required_scope: str | None = None
    open: bool = False
    refuse_all: bool = False
    huge: bool = False
    bare: bool = False
    access: dict[str, Token] = field(default_factory=dict)
    refresh: dict[str, str] = field(default_factory=dict)
    spent: dict[str, str] = field(default_factory=dict)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    heard: Callable[[str], None] = lambda token: None

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def expire(self) -> None:
        """Every access token is refused from now on."""
        self.access.clear()

    def secrets(self) -> list[str]:
        """Everything that must not be seen anywhere."""
        return [*self.access, *self.refresh, *self.spent, *self.codes, *self.seen]


class World:
    """Both servers on one port; the issuer is below `/issuer`."""

    def __init__(self) -> None:
        self.now = Behaviour()
        self._listening = socket.socket(proto=socket.IPPROTO_TCP)  # said, or asyncio lets each answer wait 40 ms
        self._listening.bind(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        config = uvicorn.Config(self._app(), log_level="error", timeout_graceful_shutdown=1, access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        eventually(lambda: self._server.started)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def issuer(self) -> str:
        return f"{self.base}{ISSUER}"

    def account(self, path: str = "/mcp", **oauth: Any) -> LoginAccount:
        environment = {"SECRET": "s3cret-of-the-client"}
        return LoginAccount("lab", HttpEndpoint(f"{self.base}{path}"), OAuthSettings(**oauth), environment)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._listening.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._listening]))

    def _app(self) -> ASGIApp:
        old = SseServerTransport("/messages/")
        server = _mcp_server()

        async def sse(request: Request) -> Response:
            async with old.connect_sse(request.scope, request.receive, request._send) as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())
            return Response()

        routes = [
            Route("/sse", sse),
            Mount("/messages/", app=old.handle_post_message),
            Route("/.well-known/oauth-protected-resource", self._at_root),
            Route("/.well-known/oauth-protected-resource{path:path}", self._at_path),
            Route(f"/.well-known/oauth-authorization-server{ISSUER}", self._oauth),
            Route("/.well-known/oauth-authorization-server", self._oauth),
            Route(f"{ISSUER}/.well-known/openid-configuration", self._metadata),
            Route("/elsewhere", self._protected, methods=["GET", "POST"]),
            Route("/moved", self._moved, methods=["GET", "POST"]),
            Route(f"{ISSUER}/register", self._register, methods=["POST"]),
            Route(f"{ISSUER}/authorize", self._authorize),
            Route(f"{ISSUER}/token", self._token, methods=["POST"]),
            Route(f"{ISSUER}/revoke", self._revoke, methods=["POST"]),
        ]
        app = server.streamable_http_app(custom_starlette_routes=routes)  # type: ignore[arg-type]

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            refusal = self._refusal(scope) if scope["type"] == "http" else None
            await (refusal or app)(scope, receive, send)

        return guarded

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request to the MCP server is not let through."""
        now = self.now
        if not scope["path"].startswith(PROTECTED) or now.open:
            return None
        given = dict(scope["headers"]).get(b"authorization", b"").decode()
        if given:
            now.seen.append(given.removeprefix("Bearer "))
            now.heard(now.seen[-1])
        token = now.access.get(given.removeprefix("Bearer "))
        metadata = f"{self.base}/.well-known/oauth-protected-resource{scope['path'].rstrip('/')}"
        if token is None or token.until < time.time() or now.refuse_all:
            document = {"resource_metadata": metadata, "scope": "read", **now.challenge}
            header = (
                "Basic" if now.bare else "Bearer " + ", ".join(f'{key}="{value}"' for key, value in document.items())
            )
            response = PlainTextResponse("who are you?", 401, {"www-authenticate": header})
            if now.also:
                response.headers.append("www-authenticate", now.also)
            return response
        if now.required_scope and now.required_scope not in token.scope.split():
            document = {"error": "insufficient_scope", "scope": now.required_scope}
            header = "Bearer " + ", ".join(f'{key}="{value}"' for key, value in document.items())
            return PlainTextResponse("you may not", 403, {"www-authenticate": header})
        return None

    async def _at_root(self, request: Request) -> Response:
        return await self._protected(request) if self.now.where == "root" else PlainTextResponse("not here", 404)

    async def _at_path(self, request: Request) -> Response:
        return await self._protected(request) if self.now.where == "path" else PlainTextResponse("not here", 404)

    async def _oauth(self, request: Request) -> Response:
        return PlainTextResponse("not here", 404) if self.now.openid else await self._metadata(request)

    async def _moved(self, request: Request) -> Response:
        return RedirectResponse(f"{self.base}/elsewhere", 307)

    async def _protected(self, request: Request) -> Response:
        self.now.count(request.url.path)
        path = request.path_params.get("path", "/mcp")
        document = {"resource": f"{self.base}{path}", "authorization_servers": [self.issuer], **self.now.protected}
        if self.now.huge:
            document["more"] = "x" * 70_000
        return JSONResponse(document)

    async def _metadata(self, request: Request) -> Response:
        now = self.now
        document = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            **now.metadata,
        }
        return JSONResponse({key: value for key, value in document.items() if value is not None})

    async def _register(self, request: Request) -> Response:
        document = await request.json()
        client_id = f"client-{secrets.token_hex(4)}"
        self.now.count("registrations")
        self.now.clients[client_id] = document
        return Response(json.dumps({**document, "client_id": client_id, **self.now.registration}), 201)

    async def _authorize(self, request: Request) -> Response:
        now, asked = self.now, dict(request.query_params)
        now.asked.append(asked)
        code = secrets.token_hex(16)
        now.codes[code] = asked
        answer = {"code": code, "state": asked["state"], "iss": self.issuer, **now.answer}
        pairs = {key: value for key, value in answer.items() if value is not None}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(pairs)}", 302)

    async def _token(self, request: Request) -> Response:
        now, form = self.now, {key: str(value) for key, value in (await request.form()).items()}
        now.count(form["grant_type"])
        if now.token_delay:
            await asyncio.sleep(now.token_delay)
        if now.token_status:
            return JSONResponse({"error": "temporarily_unavailable"}, now.token_status)
        now.asked.append({**form, "authorization": request.headers.get("authorization", "")})
        if now.token_error:
            return JSONResponse(
                {key: value.format(**form) for key, value in now.token_error.items()}, now.token_error_status
            )
        match form["grant_type"]:
            case "authorization_code":
                return self._for_code(form)
            case "refresh_token":
                return self._for_refresh(form["refresh_token"])
            case _:
                return self._for_client(request, form)

    def _for_code(self, form: dict[str, str]) -> Response:
        asked = self.now.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or proof != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        return self._granted(asked.get("scope", ""))

    def _for_refresh(self, token: str) -> Response:
        """With rotation a token counts once; a forgiving server lets one go back as long as nobody used the next."""
        now = self.now
        if token in now.refresh:
            scope = now.refresh[token]
            if now.rotates:
                del now.refresh[token]
                now.spent = {token: scope} if now.forgiving else {**now.spent, token: scope}
            return self._granted(scope, refresh=now.rotates)
        if token in now.spent and now.forgiving:
            return self._granted(now.spent[token])
        if token in now.spent:  # somebody has stolen it, or so it looks
            now.refresh.clear()
        return JSONResponse({"error": "invalid_grant", "error_description": f"no such token: {token}"}, 400)

    def _for_client(self, request: Request, form: dict[str, str]) -> Response:
        expected = base64.b64encode(b"robot:s3cret-of-the-client").decode()
        if request.headers.get("authorization") != f"Basic {expected}":
            return JSONResponse({"error": "invalid_client"}, 401)
        return self._granted(form.get("scope", ""), refresh=False)

    def _granted(self, scope: str, refresh: bool = True) -> Response:
        now, access = self.now, f"at-{secrets.token_hex(12)}"
        now.access[access] = Token(scope, time.time() + now.lifetime)
        document: dict[str, Any] = {"access_token": access, "token_type": "bearer", "expires_in": now.lifetime}
        if refresh:
            document["refresh_token"] = f"rt-{secrets.token_hex(12)}"
            now.refresh[document["refresh_token"]] = scope
        return Response(json.dumps({**document, "scope": scope, **now.grant}), media_type="application/json")

    async def _revoke(self, request: Request) -> Response:
        token = str((await request.form())["token"])
        self.now.count("revocations")
        self.now.access.pop(token, None)
        self.now.refresh.pop(token, None)
        return Response()


def _mcp_server() -> Server[Any]:
    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema={"type": "object"})])

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        text = str((params.arguments or {}).get("text"))
        return types.CallToolResult(content=[types.TextContent(text=text)])

    return Server("lab", version="1.0", on_list_tools=list_tools, on_call_tool=call_tool)


class Browser:
    """A person with a browser: opens what is shown, and goes where it is sent."""

    def __init__(self, visit: Callable[[str], Coroutine[Any, Any, None]] | None = None) -> None:
        self.shown: list[str] = []
        self.pages: list[httpx2.Response] = []
        self._visit = visit or self.open
        self._tasks: list[asyncio.Task[None]] = []

    def __call__(self, url: str) -> None:
        self.shown.append(url)
        self._tasks.append(asyncio.get_running_loop().create_task(self._visit(url)))

    async def open(self, url: str) -> None:
        async with httpx2.AsyncClient(
            follow_redirects=True, timeout=TIMEOUT, verify=False
        ) as client:  # there is no TLS
            self.pages.append(await client.get(url))

    async def closed(self) -> None:
        await asyncio.gather(*self._tasks)


async def logged_in(world: World, directory: Path, account: LoginAccount | None = None) -> tuple[Login, Logins]:
    """A login made as a person makes it, and where it is kept."""
    logins, browser = Logins(directory), Browser()
    login = await sign_in(account or world.account(), logins, browser, seconds=10)
    await browser.closed()
    return login, logins


def bearer(world: World, logins: Logins, account: LoginAccount | None = None) -> BearerToken:
    return BearerToken(account or world.account(), logins)


def aged(logins: Logins, seconds_left: float) -> Login:
    """The login that is kept, this near to its end."""
    login = logins.find("lab")
    assert login is not None
    login = replace(login, obtained_at=time.time() - 3600, expires_at=time.time() + seconds_left)
    logins.save(login)
    return login
