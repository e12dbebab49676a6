"""Opens a client: chooses the transport of an endpoint and negotiates the protocol version with its server."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway import protocol
from gateway.errors import Timeout
from gateway.mcp_client.client import Link
from gateway.mcp_client.endpoints import ClientFace, Endpoint, HttpEndpoint, StdioEndpoint
from gateway.mcp_client.errors import BadAnswer, LinkLost, McpFault
from gateway.mcp_client.http_pool import Pool
from gateway.mcp_client.sse import SseWire
from gateway.mcp_client.stdio import StdioWire
from gateway.mcp_client.streamable_http import SessionWire, StatelessWire
from gateway.protocol import jsonrpc

PROBE_SECONDS = 1.5
# After so long without an answer to `server/discover` the handshake is offered besides: old servers that ignore what
# they do not know are not waited for, and a modern one that starts slowly still answers first. The longer one is for
# a server that was modern last time.
PROBE_KNOWN_SECONDS = 10.0


async def discover(link: Link, version: str = protocol.LATEST_MODERN_VERSION) -> bool:
    """Meet a modern server. False when it says that it is none, whichever way; `McpFault` when it
    speaks only versions that we do not."""
    link.speak(version)
    try:
        found = await link.request("server/discover", {})
    except McpFault as fault:
        named = _named(fault)
        mutual = [known for known in protocol.MODERN_PROTOCOL_VERSIONS if known in named and known != version]
        if mutual:
            return await discover(link, mutual[-1])
        if named and not any(known in named for known in protocol.HANDSHAKE_PROTOCOL_VERSIONS):
            raise
        return False
    supported = found.get("supportedVersions")
    mutual = [
        known for known in protocol.MODERN_PROTOCOL_VERSIONS if isinstance(supported, list) and known in supported
    ]
    if not mutual:
        return False
    link.speak(mutual[-1])
    meta = found.get("_meta")
    _introduce(link, found, meta.get(protocol.SERVER_INFO_META_KEY) if isinstance(meta, dict) else None)
    return True


async def shake_hands(link: Link) -> None:
    """Meet a server of the handshake eras; it chooses the version."""
    link.speak(protocol.LATEST_HANDSHAKE_VERSION)
    offer = {
        "protocolVersion": protocol.LATEST_HANDSHAKE_VERSION,
        "capabilities": dict(link.face.capabilities),
        "clientInfo": link.face.info,
    }
    found = await link.request("initialize", offer)
    version = found.get("protocolVersion")
    if version not in protocol.HANDSHAKE_PROTOCOL_VERSIONS:
        raise BadAnswer(f"{link.label} chose the protocol version {version!r:.40}, which we do not speak")
    link.speak(version)
    _introduce(link, found, found.get("serverInfo"))
    await link.tell("notifications/initialized")


async def meet(link: Link, era: str | None) -> None:
    """Meet a server on a wire where requests are read in order, and the first decides the era."""
    if era in protocol.HANDSHAKE_PROTOCOL_VERSIONS:
        try:
            return await shake_hands(link)
        except McpFault as fault:
            if fault.code != jsonrpc.UNSUPPORTED_PROTOCOL_VERSION:
                raise
    probe = asyncio.ensure_future(discover(link))
    try:
        seconds = PROBE_KNOWN_SECONDS if era in protocol.MODERN_PROTOCOL_VERSIONS else PROBE_SECONDS
        await asyncio.wait([probe], timeout=seconds)
        if probe.done():
            if not probe.result():
                await shake_hands(link)
            return None
        await _either(link, probe)
    finally:
        _drop(probe)


async def _either(link: Link, probe: asyncio.Future[bool]) -> None:
    """Both were offered: a modern server answers the first and refuses the second, an old one the reverse."""
    shaking = asyncio.ensure_future(shake_hands(link))
    try:
        both: list[asyncio.Future[Any]] = [probe, shaking]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if probe.done() and probe.result():
            return
        try:
            await shaking
        except McpFault as fault:
            if fault.code != jsonrpc.UNSUPPORTED_PROTOCOL_VERSION or not await probe:
                raise
    finally:
        _drop(shaking)


def _drop(task: asyncio.Future[Any]) -> None:
    task.cancel()
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _introduce(link: Link, found: dict[str, Any], info: Any) -> None:
    capabilities, instructions = found.get("capabilities"), found.get("instructions")
    link.server_info = info if isinstance(info, dict) else None
    link.capabilities = capabilities if isinstance(capabilities, dict) else {}
    link.instructions = instructions if isinstance(instructions, str) else None


def _named(fault: McpFault) -> list[str]:
    """The versions a server names when it refuses ours."""
    match fault.code, fault.data:
        case jsonrpc.UNSUPPORTED_PROTOCOL_VERSION, {"supported": [*named]}:
            return [version for version in named if isinstance(version, str)]
        case _:
            return []


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
