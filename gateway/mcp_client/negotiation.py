"""Which protocol a server speaks: asked once when a link opens, by the rules of 2026-07-28."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway import protocol
from gateway.mcp_client.client import Link
from gateway.mcp_client.errors import BadAnswer, McpFault
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
