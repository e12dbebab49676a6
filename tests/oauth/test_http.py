"""Where a server's word may lead us: never from the internet into the networks behind us."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import httpcore2
import pytest
from eventually import TIMEOUT

from gateway.errors import Forbidden, GatewayError, Unavailable
from gateway.oauth import http as oauth_http
from gateway.oauth.http import OAuthClient, OAuthResponse, open_http

pytestmark = pytest.mark.anyio

NAMES = {
    "mcp.example": ["93.184.216.34"],
    "inner.example": ["10.0.0.7"],
    "auth.example": ["93.184.216.35"],
    "mixed.example": ["93.184.216.36", "192.168.1.1"],
    "here.example": ["127.0.0.1"],
    "clouds.example": ["169.254.169.254"],
    "localhost": ["127.0.0.1"],
}


class Names:
    """A network in which names have addresses, and nobody answers."""

    def __init__(self, names: Mapping[str, Sequence[str]] = NAMES) -> None:
        self._names = names
        self.reached: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        return self._names.get(host, [host])

    async def connect(self, address: str, port: int, timeout: float | None) -> httpcore2.AsyncNetworkStream:
        self.reached.append(address)
        raise httpcore2.ConnectError("nobody is there")


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("https://mcp.example/mcp", "https://auth.example/.well-known/x"),
        ("https://inner.example/mcp", "https://inner.example/x"),
        ("https://inner.example/mcp", "https://auth.example/x"),
        ("http://127.0.0.1:3000/mcp", "http://localhost:4000/x"),
        ("http://localhost:3000/mcp", "https://auth.example/x"),
        ("http://localhost:3000/mcp", "https://inner.example/x"),
    ],
)
async def test_it_leads_to_where_a_server_may_send_us(server: str, url: str) -> None:
    network = Names()
    async with open_http(server, network) as http:
        with pytest.raises(Unavailable):
            await http.get(url)
    assert network.reached


@pytest.mark.parametrize(
    ("server", "url", "code"),
    [
        ("https://mcp.example/mcp", "http://auth.example/x", "INSECURE_URL"),
        ("https://mcp.example/mcp", "http://127.0.0.1/x", "INSECURE_URL"),
        ("https://mcp.example/mcp", "https://127.0.0.1/x", "PRIVATE_ADDRESS"),
        ("https://mcp.example/mcp", "https://inner.example/x", "PRIVATE_ADDRESS"),
        ("https://mcp.example/mcp", "https://mixed.example/x", "PRIVATE_ADDRESS"),
        ("https://mcp.example/mcp", "https://here.example/x", "PRIVATE_ADDRESS"),
        ("https://mcp.example/mcp", "https://clouds.example/x", "PRIVATE_ADDRESS"),
        ("https://mcp.example/mcp", "https://[::ffff:10.0.0.1]/x", "PRIVATE_ADDRESS"),
        ("https://inner.example/mcp", "https://here.example/x", "PRIVATE_ADDRESS"),
        ("https://inner.example/mcp", "http://inner.example/x", "INSECURE_URL"),
        ("https://here.example/mcp", "http://localhost/x", "INSECURE_URL"),
        ("https://here.example/mcp", "https://localhost/x", "PRIVATE_ADDRESS"),
        ("http://localhost/mcp", "http://auth.example/x", "INSECURE_URL"),
        ("http://mcp.example/mcp", "https://auth.example/x", "INSECURE_URL"),
        ("https://inner.example/mcp", "https://0.0.0.0/x", "PRIVATE_ADDRESS"),
        ("https://inner.example/mcp", "https://[::]/x", "PRIVATE_ADDRESS"),
        ("https://inner.example/mcp", "https://clouds.example/x", "PRIVATE_ADDRESS"),
        ("https://inner.example/mcp", "https://[64:ff9b::a9fe:a9fe]/x", "PRIVATE_ADDRESS"),
        ("http://localhost/mcp", "https://0.0.0.0/x", "PRIVATE_ADDRESS"),
        ("http://localhost/mcp", "https://clouds.example/x", "PRIVATE_ADDRESS"),
        ("https://mcp.example/mcp", "ftp://auth.example/x", "INVALID_URL"),
        ("https://mcp.example/mcp", "https://user:word@auth.example/x", "INVALID_URL"),
    ],
)
async def test_it_leads_nowhere_else(server: str, url: str, code: str) -> None:
    network = Names()
    with pytest.raises(GatewayError) as refused:
        async with open_http(server, network) as http:
            await http.get(url)
    assert refused.value.code == code
    assert isinstance(refused.value, Forbidden) or code == "INVALID_URL"
    assert network.reached == []


async def test_a_name_server_that_does_not_answer_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Names):
        async def resolve(self, host: str, port: int) -> Sequence[str]:
            if host == "mcp.example":
                await asyncio.Event().wait()
            return await super().resolve(host, port)

    monkeypatch.setattr(oauth_http, "LIMITS", replace(oauth_http.LIMITS, connect_seconds=0.5))
    async with asyncio.timeout(TIMEOUT), open_http("https://mcp.example/mcp", Silent()) as http:
        with pytest.raises(Forbidden):
            await http.get("https://inner.example/x")


def test_what_we_say_and_hear_is_in_no_repr() -> None:
    shown = repr(
        [OAuthClient("us", "s3cret", "client_secret_post"), OAuthResponse(200, {"access_token": "t0ken"}, "https://x")]
    )
    assert "s3cret" not in shown
    assert "t0ken" not in shown
