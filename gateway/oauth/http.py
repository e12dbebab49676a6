"""Guarded HTTP requests to authorization servers, whose addresses an MCP server may choose freely."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import field
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
from gateway.value import Value

LIMITS = RequestLimits(bytes=64 * 1024, seconds=15.0, connect_seconds=8.0, redirects=0)
_FORM = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
_MESSAGE_LIMIT = 200
# Kinds of addresses of local networks: private, carrier-grade NAT or mesh, link-local.
_LOCAL_KINDS = frozenset(address_kind(ip_address(example)) for example in ("10.0.0.0", "100.64.0.0", "169.254.0.0"))


class OAuthClient(Value):
    """The client at an authorization server. `method` is an authentication method of RFC 7591."""

    id: str
    secret: str | None = field(default=None, repr=False)
    method: str = "none"


class OAuthResponse(Value):
    """A response of any status. `content` is its JSON object, empty if it has none."""

    status: int
    content: Mapping[str, Any] = field(repr=False)
    origin: str

    @property
    def error(self) -> str | None:
        """The OAuth error code."""
        error = self.content.get("error")
        return error if isinstance(error, str) and "access_token" not in self.content else None

    def describe(self, *secrets: str | None) -> str:
        """Return status and error for people: short, on one line, and without the secrets that were sent."""
        message = " ".join(f"{self.content.get(key) or ''}" for key in ("error", "error_description")).strip()
        for secret in secrets:
            message = message.replace(secret, "…") if secret else message
        text = visible(" ".join(message.split()))[:_MESSAGE_LIMIT]
        return f"{self.origin} answered HTTP {self.status}" + (f": {text}" if text else "")


class OAuthHttp:
    """Requests to addresses that a server names, within narrow limits. Redirects are not followed."""

    def __init__(self, client: GuardedClient, local: bool) -> None:
        self._client = client
        self._local = local

    async def get(self, url: str) -> OAuthResponse:
        return await self._send("GET", url, {"accept": "application/json"}, None)

    async def post_json(self, url: str, content: Mapping[str, Any]) -> OAuthResponse:
        headers = {"content-type": "application/json", "accept": "application/json"}
        return await self._send("POST", url, headers, json.dumps(content).encode())

    async def post_form(self, url: str, form: Mapping[str, str | None], client: OAuthClient) -> OAuthResponse:
        """Send a form, authenticated as the client."""
        fields = {name: value for name, value in form.items() if value}
        fields["client_id"] = client.id  # besides the header: some servers look for it only in the body
        headers = dict(_FORM)
        if client.method == "client_secret_basic" and client.secret is not None:
            pair = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif client.method == "client_secret_post" and client.secret is not None:
            fields["client_secret"] = client.secret
        return await self._send("POST", url, headers, urlencode(fields).encode())

    def check(self, url: str) -> None:
        """Raise `Forbidden` for an address to which a browser must not be sent."""
        parts = parse_url(url)
        host = parts.raw_host.decode("ascii")
        if parts.scheme != "https" and not (self._local and _is_loopback_name(host)):
            raise _insecure(host)

    async def _send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> OAuthResponse:
        self.check(url)
        request_origin = url_origin(parse_url(url))
        try:
            async with self._client.request(method, url, headers=headers, body=body, limits=LIMITS) as answer:
                content = await answer.read()
                return OAuthResponse(answer.status, _parse_object(content), request_origin)
        except Unavailable as error:
            if error.code != TOO_MANY_REDIRECTS:
                raise
            return OAuthResponse(307, {}, request_origin)


@asynccontextmanager
async def open_http(server: str, network: Network = INTERNET) -> AsyncIterator[OAuthHttp]:
    """Open a client for the authorization server of the MCP server at a URL. It uses only https and public addresses,
    unless the MCP server itself is on this machine or in a private network."""
    url = parse_url(server)
    host = url.raw_host.decode("ascii")
    local = _is_loopback_name(host)
    if url.scheme != "https" and not local:
        raise _insecure(host)
    private = local or await _is_private(host, url.port or (443 if url.scheme == "https" else 80), network)
    async with GuardedClient(
        _LoginPolicy(any_host=True, allow_private=private, https_only=True, local=local), network
    ) as client:
        yield OAuthHttp(client, local)


class _LoginPolicy(NetworkPolicy):
    """Allows this machine only with `local`, and never an address that is neither public nor of a local network, such
    as `0.0.0.0` or the metadata service of a cloud."""

    local: bool = False

    def check_address(self, scheme: str, host: str, address: Address) -> None:
        special = address_kind(address)
        is_allowed = self.local if is_loopback(address) else self.allow_private and special in _LOCAL_KINDS
        if special is not None and not is_allowed:
            raise Forbidden(
                f"{host} is refused: it resolves to {address}, {special}, which a server on the internet must not "
                "refer to",
                code=PRIVATE_ADDRESS,
                host=host,
            )
        super().check_address(scheme, host, address)


async def _is_private(host: str, port: int, network: Network) -> bool:
    """Return whether all addresses of a host are in a private network; false when it cannot be resolved in time."""
    try:
        async with asyncio.timeout(LIMITS.connect_seconds):
            addresses = await network.resolve(host, port)
    except (GatewayError, TimeoutError):
        return False
    return bool(addresses) and all(address_kind(parse_address(address)) is not None for address in addresses)


def _is_loopback_name(host: str) -> bool:
    """Return whether the name itself means this machine. The answer of a name server may change at any moment."""
    bare = host.strip("[]")
    try:
        return is_loopback(ip_address(bare))
    except ValueError:
        return bare == "localhost" or bare.endswith(".localhost")


def _parse_object(content: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _insecure(host: str) -> Forbidden:
    reason = f"{host} would take part in a login over plain http, which others can read; it must use https"
    return Forbidden(reason, code=INSECURE_URL, host=host)
