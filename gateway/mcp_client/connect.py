"""Opens a client: chooses the transport of an endpoint and negotiates the protocol version with its server.

Negotiation follows the rules of 2026-07-28: `server/discover` for a modern server, `initialize` for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway import protocol
from gateway.mcp_client.client import McpClient
from gateway.mcp_client.endpoints import ClientIdentity, Endpoint, HttpEndpoint, StdioEndpoint
from gateway.mcp_client.http_pool import HttpPool
from gateway.mcp_client.messages import ConnectionLost, ConnectTimeout, InvalidResponse
from gateway.mcp_client.sse import SseTransport
from gateway.mcp_client.stdio import StdioTransport
from gateway.mcp_client.streamable_http import SessionTransport, StatelessTransport
from gateway.protocol import jsonrpc
from gateway.protocol.jsonrpc import RpcError

# The time for an answer to `server/discover` before `initialize` is sent as well: old servers that ignore unknown
# methods are not waited for, and a modern one that starts slowly still answers first. The longer time is for a server
# that was modern last time.
PROBE_SECONDS = 1.5
PROBE_MODERN_SECONDS = 10.0

# The status with which servers that know only the old HTTP+SSE answer a POST.
_SSE_ONLY_STATUS = (400, 404, 405)

# Is told what is done while a connection is opened.
Step = Callable[[str], None]


def ignore_step(_: str) -> None:
    """Report nothing."""


async def open_client(
    endpoint: Endpoint,
    *,
    identity: ClientIdentity,
    timeout: float = 30.0,
    version: str | None = None,
    step: Step = ignore_step,
) -> McpClient:
    """Connect to a server and negotiate. `version` is the protocol version of the last time: it saves the probing, and
    costs little when it is wrong. `step` is told what is done.

    Raises an error of `mcp_client.messages` or `RpcError`; then nothing is left running.
    """
    started: list[StdioTransport] = []
    try:
        async with asyncio.timeout(timeout):
            if isinstance(endpoint, StdioEndpoint):
                step(f"starting {endpoint.label}, and waiting for its answer")
                return await _open_stdio(endpoint, identity, version, started)
            step(f"connecting to {endpoint.label}")
            if endpoint.transport == "sse":
                return await _open_sse(endpoint, identity, version)
            return await _open_http(endpoint, identity, version)
    except TimeoutError:
        message = f"{endpoint.label} did not answer within {timeout:g} seconds"
        if stray := [line for transport in started for line in transport.stray_lines]:
            message += f"; it wrote {stray[0]!r} to stdout, which is no MCP message, so it may not be an MCP server"
        raise ConnectTimeout(message, started[-1].stderr if started else "") from None


async def _open_stdio(
    endpoint: StdioEndpoint, identity: ClientIdentity, version: str | None, started: list[StdioTransport]
) -> McpClient:
    try:
        return await _start_stdio(endpoint, identity, version, started)
    except ConnectionLost as lost:
        if version in protocol.HANDSHAKE_PROTOCOL_VERSIONS or lost.unread:
            raise
    # Some old servers end at the first message they do not know.
    return await _start_stdio(endpoint, identity, protocol.LATEST_HANDSHAKE_VERSION, started)


async def _start_stdio(
    endpoint: StdioEndpoint, identity: ClientIdentity, version: str | None, started: list[StdioTransport]
) -> McpClient:
    client = McpClient(endpoint.label, identity)
    client.transport = transport = StdioTransport(client)
    await transport.start(endpoint)
    started.append(transport)
    try:
        await _negotiate(client, version)
    except BaseException as error:
        if isinstance(error, ConnectionLost):
            error.unread = not transport.was_read
        await client.close()
        raise
    transport.negotiated()
    return client


async def _open_http(endpoint: HttpEndpoint, identity: ClientIdentity, version: str | None) -> McpClient:
    if version not in protocol.HANDSHAKE_PROTOCOL_VERSIONS:
        client = await _open_stateless(endpoint, identity)
        if client is not None:
            return client
    try:
        return await _open_session(endpoint, identity)
    except RpcError as error:
        if error.code != jsonrpc.UNSUPPORTED_PROTOCOL_VERSION:
            raise
        client = await _open_stateless(endpoint, identity)
        if client is None:
            raise
        return client
    except InvalidResponse as error:
        if endpoint.transport != "auto" or error.details.get("status") not in _SSE_ONLY_STATUS:
            raise
        try:
            return await _open_sse(endpoint, identity, version)
        except InvalidResponse:
            raise error from None


async def _open_stateless(endpoint: HttpEndpoint, identity: ClientIdentity) -> McpClient | None:
    client = McpClient(endpoint.label, identity)
    client.transport = StatelessTransport(client, HttpPool(endpoint))
    is_modern = False
    try:
        is_modern = await _discover(client)
    except InvalidResponse:  # no modern server
        return None
    finally:
        if not is_modern:
            await client.close()
    return client if is_modern else None


async def _open_session(endpoint: HttpEndpoint, identity: ClientIdentity) -> McpClient:
    client = McpClient(endpoint.label, identity)
    client.transport = SessionTransport(client, HttpPool(endpoint))
    try:
        await _initialize(client)
    except BaseException:
        await client.close()
        raise
    return client


async def _open_sse(endpoint: HttpEndpoint, identity: ClientIdentity, version: str | None) -> McpClient:
    client = McpClient(endpoint.label, identity)
    client.transport = transport = SseTransport(client, HttpPool(endpoint))
    try:
        await transport.wait_until_ready()
        await _negotiate(client, version or protocol.LATEST_HANDSHAKE_VERSION)
    except BaseException:
        await client.close()
        raise
    return client


async def _discover(client: McpClient, version: str = protocol.LATEST_MODERN_VERSION) -> bool:
    """Negotiate with a modern server. False when it is none; `RpcError` when it supports only versions unknown to
    us."""
    client.set_version(version)
    try:
        result = await client.request("server/discover", {})
    except RpcError as error:
        supported = _list_supported(error)
        mutual = [known for known in protocol.MODERN_PROTOCOL_VERSIONS if known in supported and known != version]
        if mutual:
            return await _discover(client, mutual[-1])
        if supported and not any(known in supported for known in protocol.HANDSHAKE_PROTOCOL_VERSIONS):
            raise
        return False
    listed = result.get("supportedVersions")
    mutual = [known for known in protocol.MODERN_PROTOCOL_VERSIONS if isinstance(listed, list) and known in listed]
    if not mutual:
        return False
    client.set_version(mutual[-1])
    meta = result.get("_meta")
    _set_server(client, result, meta.get(protocol.SERVER_INFO_META_KEY) if isinstance(meta, dict) else None)
    return True


async def _initialize(client: McpClient) -> None:
    """Negotiate with a server of the handshake versions, which chooses the version."""
    client.set_version(protocol.LATEST_HANDSHAKE_VERSION)
    params = {
        "protocolVersion": protocol.LATEST_HANDSHAKE_VERSION,
        "capabilities": dict(client.identity.capabilities),
        "clientInfo": client.identity.info,
    }
    result = await client.request("initialize", params)
    version = result.get("protocolVersion")
    if version not in protocol.HANDSHAKE_PROTOCOL_VERSIONS:
        raise InvalidResponse(f"{client.label} chose the protocol version {version!r:.40}, which is not supported")
    client.set_version(version)
    _set_server(client, result, result.get("serverInfo"))
    await client.notify("notifications/initialized")


async def _negotiate(client: McpClient, version: str | None) -> None:
    """Negotiate over a transport where requests are read in order and the first one decides the version."""
    if version in protocol.HANDSHAKE_PROTOCOL_VERSIONS:
        try:
            return await _initialize(client)
        except RpcError as error:
            if error.code != jsonrpc.UNSUPPORTED_PROTOCOL_VERSION:
                raise
    probe = asyncio.ensure_future(_discover(client))
    try:
        seconds = PROBE_MODERN_SECONDS if version in protocol.MODERN_PROTOCOL_VERSIONS else PROBE_SECONDS
        await asyncio.wait([probe], timeout=seconds)
        if probe.done():
            if not probe.result():
                await _initialize(client)
            return None
        await _initialize_beside(client, probe)
    finally:
        _discard(probe)


async def _initialize_beside(client: McpClient, probe: asyncio.Future[bool]) -> None:
    """Send `initialize` while `server/discover` waits: a modern server answers the probe and refuses the handshake, an
    old one does the reverse."""
    handshake = asyncio.ensure_future(_initialize(client))
    try:
        both: list[asyncio.Future[Any]] = [probe, handshake]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if probe.done() and probe.result():
            return
        try:
            await handshake
        except RpcError as error:
            if error.code != jsonrpc.UNSUPPORTED_PROTOCOL_VERSION or not await probe:
                raise
    finally:
        _discard(handshake)


def _discard(task: asyncio.Future[Any]) -> None:
    """Cancel a task; an exception of it is not logged."""
    task.cancel()
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _set_server(client: McpClient, result: dict[str, Any], info: Any) -> None:
    capabilities, instructions = result.get("capabilities"), result.get("instructions")
    client.server_info = info if isinstance(info, dict) else None
    client.capabilities = capabilities if isinstance(capabilities, dict) else {}
    client.instructions = instructions if isinstance(instructions, str) else None


def _list_supported(error: RpcError) -> list[str]:
    """Return the versions that a server lists when it refuses ours."""
    match error.code, error.data:
        case jsonrpc.UNSUPPORTED_PROTOCOL_VERSION, {"supported": [*versions]}:
            return [version for version in versions if isinstance(version, str)]
        case _:
            return []
