"""A server made with the MCP SDK, which guards itself with the SDK's own authorization server."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from gateway import Gateway
from gateway.config import OAuthSettings
from gateway.mcp_client import HttpEndpoint
from gateway.oauth.flow import sign_in, sign_out
from gateway.oauth.store import LoginAccount, Logins

from .world import Browser

pytestmark = pytest.mark.anyio

SCOPE = "user"


class Provider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Agrees to everybody, for a few seconds."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.refreshed = 0

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client: OAuthClientInformationFull) -> None:
        assert client.client_id is not None
        self.clients[client.client_id] = client

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        assert client.client_id is not None
        code = AuthorizationCode(
            code=secrets.token_hex(),
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    async def load_authorization_code(self, client: Any, code: str) -> AuthorizationCode | None:
        return self.codes.get(code)

    async def exchange_authorization_code(self, client: Any, code: AuthorizationCode) -> OAuthToken:
        del self.codes[code.code]
        return self._granted(client.client_id, code.scopes)

    async def load_refresh_token(self, client: Any, token: str) -> RefreshToken | None:
        return self.refresh.get(token)

    async def exchange_refresh_token(self, client: Any, token: RefreshToken, scopes: list[str]) -> OAuthToken:
        del self.refresh[token.token]
        self.refreshed += 1
        return self._granted(client.client_id, scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)

    def _granted(self, client_id: str, scopes: list[str]) -> OAuthToken:
        access, refresh = secrets.token_hex(), secrets.token_hex()
        self.access[access] = AccessToken(
            token=access, client_id=client_id, scopes=scopes, expires_at=int(time.time() + 60)
        )
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes)
        return OAuthToken(access_token=access, expires_in=60, refresh_token=refresh, scope=" ".join(scopes))


@pytest.fixture
def guarded() -> Iterator[tuple[str, Provider]]:
    """Where such a server is, and what it knows."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # who comes early waits
        base, provider = f"http://127.0.0.1:{listening.getsockname()[1]}", Provider()
        settings: dict[str, Any] = {"issuer_url": base, "resource_server_url": f"{base}/mcp"}
        made = MCPServer(
            "guarded",
            auth=AuthSettings(
                **settings,
                required_scopes=[SCOPE],
                validate_token_resource=False,
                client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=[SCOPE]),
                revocation_options=RevocationOptions(enabled=True),
            ),
            auth_server_provider=provider,
        )
        made.add_tool(lambda: "hello", name="hello")
        server = uvicorn.Server(uvicorn.Config(made.streamable_http_app(), log_config=None))
        running = threading.Thread(target=server.run, args=([listening],), daemon=True)
        running.start()
        yield base, provider
        server.should_exit = True
        running.join(5)


async def test_it_is_signed_in_to_called_renewed_and_left(guarded: tuple[str, Provider], tmp_path: Path) -> None:
    base, provider = guarded
    account = LoginAccount("lab", HttpEndpoint(f"{base}/mcp"), OAuthSettings(), {})
    logins, browser = Logins(tmp_path), Browser()
    await sign_in(account, logins, browser, seconds=10)
    await browser.closed()

    servers = {"lab": {"url": f"{base}/mcp"}}
    async with Gateway.open({"data_dir": str(tmp_path), "mcpServers": servers}) as gateway:
        assert (await gateway.call("lab__hello")).content == [{"type": "text", "text": "hello"}]
        provider.access.clear()  # as if they had all run out
        assert (await gateway.call("lab__hello")).ok
    assert provider.refreshed == 1

    assert await sign_out(account, "lab", logins)
    assert (provider.access, provider.refresh) == ({}, {})
    assert logins.find("lab") is None
