"""Opens links: the right wire for an endpoint, and the era its server speaks."""

from __future__ import annotations

import asyncio

from gateway import protocol
from gateway.errors import Timeout
from gateway.mcp_client.client import Link
from gateway.mcp_client.endpoints import ClientFace, Endpoint, HttpEndpoint, StdioEndpoint
from gateway.mcp_client.errors import BadAnswer, LinkLost, McpFault
from gateway.mcp_client.http_pool import Pool
from gateway.mcp_client.http_session import SessionWire
from gateway.mcp_client.http_stateless import StatelessWire
from gateway.mcp_client.negotiation import discover, meet, shake_hands
from gateway.mcp_client.sse import SseWire
from gateway.mcp_client.stdio import StdioWire
from gateway.protocol import jsonrpc

# How servers that speak only the old HTTP+SSE answer a POST.
_ONLY_SSE = (400, 404, 405)


async def open_link(endpoint: Endpoint, *, client: ClientFace, timeout: float = 30.0, era: str | None = None) -> Link:
    """A link that has met its server. `era` is the protocol version it spoke last time: it spares the
    probing, and costs little when it is wrong.

    Refused with what `faults` has, or `Timeout`; then nothing is left running.
    """
    try:
        async with asyncio.timeout(timeout):
            if isinstance(endpoint, StdioEndpoint):
                return await _open_stdio(endpoint, client, era)
            if endpoint.transport == "sse":
                return await _open_sse(endpoint, client, era)
            return await _open_http(endpoint, client, era)
    except TimeoutError:
        raise Timeout(f"{endpoint.label} did not answer within {timeout:g} seconds") from None


async def _open_stdio(endpoint: StdioEndpoint, client: ClientFace, era: str | None) -> Link:
    try:
        return await _meet_child(endpoint, client, era)
    except LinkLost:
        if era in protocol.HANDSHAKE_PROTOCOL_VERSIONS:
            raise
    # Some old servers end at the first message they do not know.
    return await _meet_child(endpoint, client, protocol.LATEST_HANDSHAKE_VERSION)


async def _meet_child(endpoint: StdioEndpoint, client: ClientFace, era: str | None) -> Link:
    link = Link(endpoint.label, client)
    link.wire = wire = StdioWire(link)
    await wire.start(endpoint)
    try:
        await meet(link, era)
    except BaseException:
        await link.close()
        raise
    return link


async def _open_http(endpoint: HttpEndpoint, client: ClientFace, era: str | None) -> Link:
    if era not in protocol.HANDSHAKE_PROTOCOL_VERSIONS and (link := await _discovered(endpoint, client)) is not None:
        return link
    try:
        return await _shaken(endpoint, client)
    except McpFault as fault:
        if (
            fault.code == jsonrpc.UNSUPPORTED_PROTOCOL_VERSION
            and (link := await _discovered(endpoint, client)) is not None
        ):
            return link
        raise
    except BadAnswer as refused:
        if endpoint.transport != "auto" or refused.details.get("status") not in _ONLY_SSE:
            raise
        try:
            return await _open_sse(endpoint, client, era)
        except BadAnswer:
            raise refused from None


async def _discovered(endpoint: HttpEndpoint, client: ClientFace) -> Link | None:
    link = Link(endpoint.label, client)
    link.wire = StatelessWire(link, Pool(endpoint))
    met = False
    try:
        met = await discover(link)
    except BadAnswer:  # whatever it is, it is no modern server
        return None
    finally:
        if not met:
            await link.close()
    return link if met else None


async def _shaken(endpoint: HttpEndpoint, client: ClientFace) -> Link:
    link = Link(endpoint.label, client)
    link.wire = SessionWire(link, Pool(endpoint))
    try:
        await shake_hands(link)
    except BaseException:
        await link.close()
        raise
    return link


async def _open_sse(endpoint: HttpEndpoint, client: ClientFace, era: str | None) -> Link:
    link = Link(endpoint.label, client)
    link.wire = wire = SseWire(link, Pool(endpoint))
    try:
        await wire.ready()
        await meet(link, era or protocol.LATEST_HANDSHAKE_VERSION)
    except BaseException:
        await link.close()
        raise
    return link
