"""Guarded HTTP requests to authorization servers, whose addresses an MCP server may choose freely."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, urlencode

from gateway.errors import Forbidden, GatewayError, Unavailable
from gateway.net.client import TOO_MANY_REDIRECTS, GuardedClient
from gateway.net.policy import (
    INSECURE_URL,
    PRIVATE_ADDRESS,
    Address,
    NetworkPolicy,
    RequestLimits,
    address_kind,
    is_loopback,
    parse_address,
)
from gateway.net.transport import INTERNET, Network, parse_url, url_origin
from gateway.text import visible

LIMITS = RequestLimits(bytes=64 * 1024, seconds=15.0, connect_seconds=8.0, redirects=0)
_FORM = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
_SAID_LIMIT = 200
# Kinds of addresses where networks of one's own are: private, of a carrier or a mesh, link-local.
_NEAR = frozenset(address_kind(ip_address(each)) for each in ("10.0.0.0", "100.64.0.0", "169.254.0.0"))


@dataclass(frozen=True)
class Client:
    """Who we are to an authorization server, and how we say it: `method` is one of RFC 7591's."""

    id: str
    secret: str | None = field(default=None, repr=False)
    method: str = "none"


@dataclass(frozen=True)
class Reply:
    """What one of them answered, whatever its status. `said` is the JSON object in it, if there is one."""

    status: int
    said: Mapping[str, Any] = field(repr=False)
    origin: str

    @property
    def error(self) -> str | None:
        """Why it refused, by OAuth's own word for it."""
        found = self.said.get("error")
        return found if isinstance(found, str) and "access_token" not in self.said else None

    def refusal(self, *secrets: str | None) -> str:
        """What it said, for people: short, on one line, and without the secrets we sent it."""
        told = " ".join(f"{self.said.get(key) or ''}" for key in ("error", "error_description")).strip()
        for secret in secrets:
            told = told.replace(secret, "…") if secret else told
        text = visible(" ".join(told.split()))[:_SAID_LIMIT]
        return f"{self.origin} answered HTTP {self.status}" + (f": {text}" if text else "")


class Reach:
    """Requests to whatever a server names, within narrow limits. No redirect is followed."""

    def __init__(self, door: GuardedClient, local: bool) -> None:
        self._door = door
        self._local = local

    async def get(self, url: str) -> Reply:
        return await self._send("GET", url, {"accept": "application/json"}, None)

    async def post_json(self, url: str, said: Mapping[str, Any]) -> Reply:
        headers = {"content-type": "application/json", "accept": "application/json"}
        return await self._send("POST", url, headers, json.dumps(said).encode())

    async def post_form(self, url: str, form: Mapping[str, str | None], client: Client) -> Reply:
        """A form, with the proof of who we are that its client has."""
        given = {name: value for name, value in form.items() if value}
        given["client_id"] = client.id  # also beside a header that says it: some servers look for it here alone
        headers = dict(_FORM)
        if client.method == "client_secret_basic" and client.secret is not None:
            pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif client.method == "client_secret_post" and client.secret is not None:
            given["client_secret"] = client.secret
        return await self._send("POST", url, headers, urlencode(given).encode())

    def check(self, url: str) -> None:
        """Refuse an address that a browser is not to be sent to."""
        parts = parse_url(url)
        host = parts.raw_host.decode("ascii")
        if parts.scheme != "https" and not (self._local and _names_this_machine(host)):
            raise _insecure(host)

    async def _send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        self.check(url)
        here = url_origin(parse_url(url))
        try:
            async with self._door.request(method, url, headers=headers, body=body, limits=LIMITS) as answer:
                content = await answer.read()
                return Reply(answer.status, _object(content), here)
        except Unavailable as error:
            if error.code != TOO_MANY_REDIRECTS:
                raise
            return Reply(307, {}, here)


@asynccontextmanager
async def reach(server: str, network: Network = INTERNET) -> AsyncIterator[Reach]:
    """The way to the authorization server of the MCP server at a URL. It leads only over https and to public
    addresses, unless the server itself is on this machine or in a private network."""
    url = parse_url(server)
    host = url.raw_host.decode("ascii")
    local = _names_this_machine(host)
    if url.scheme != "https" and not local:
        raise _insecure(host)
    private = local or await _is_private(host, url.port or (443 if url.scheme == "https" else 80), network)
    async with GuardedClient(
        _Policy(any_host=True, allow_private=private, https_only=True, local=local), network
    ) as door:
        yield Reach(door, local)


@dataclass(frozen=True)
class _Policy(NetworkPolicy):
    """As any other, and with `local` the only one that leads to this machine. None leads to what is neither public
    nor somebody's network: `0.0.0.0`, what clouds tell their machines, and the like."""

    local: bool = False

    def check_address(self, scheme: str, host: str, address: Address) -> None:
        found = address_kind(address)
        near = self.local if is_loopback(address) else self.allow_private and found in _NEAR
        if found is not None and not near:
            raise Forbidden(
                f"{host} is not reached: it leads to {address}, {found}, where a server on the internet has no "
                "business sending us",
                code=PRIVATE_ADDRESS,
                host=host,
            )
        super().check_address(scheme, host, address)


async def _is_private(host: str, port: int, network: Network) -> bool:
    """Whether all addresses of a host are in a private network. What cannot be looked up, or not soon, is not."""
    try:
        async with asyncio.timeout(LIMITS.connect_seconds):
            addresses = await network.resolve(host, port)
    except (GatewayError, TimeoutError):
        return False
    return bool(addresses) and all(address_kind(parse_address(each)) is not None for each in addresses)


def _names_this_machine(host: str) -> bool:
    """By name alone: what a name server says may change from one moment to the next."""
    bare = host.strip("[]")
    try:
        return is_loopback(ip_address(bare))
    except ValueError:
        return bare == "localhost" or bare.endswith(".localhost")


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _insecure(host: str) -> Forbidden:
    reason = f"{host} would take part in a login over plain http, where anyone on the way can listen; it must use https"
    return Forbidden(reason, code=INSECURE_URL, host=host)
