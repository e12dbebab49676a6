"""What a client can be asked on behalf of a server, and asking it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.calls import Ask, Peer
from gateway.errors import ToolFailed
from gateway.mcp_client import McpFault
from gateway.sources.upstreams.labels import STATE_PREFIX, label_question, refuse_question
from gateway.sources.upstreams.requests import Request

# By what a server may ask: what a client says that can be asked it.
CAPABILITIES = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

METHOD_NOT_FOUND = -32601


def askable(peer: Peer) -> dict[str, Any]:
    """Those of the client's capabilities that are about being asked, as far as it can be asked at all."""
    if not peer.capabilities or (not peer.modern and peer.ask is None):
        return {}
    return {key: value for key, value in peer.capabilities.items() if key in CAPABILITIES.values()}


def shown(peer: Peer) -> dict[str, Any]:
    """The client's capabilities as a server is told them: without those it cannot make good."""
    if not peer.capabilities:
        return {}
    others = {key: value for key, value in peer.capabilities.items() if key not in CAPABILITIES.values()}
    return {**others, **askable(peer)}


def able(peer: Peer, method: str, params: Mapping[str, Any]) -> bool:
    """Whether the client said that it can be asked this; `elicitation` alone means forms, `sampling` no tools."""
    said = askable(peer).get(CAPABILITIES.get(method, ""))
    if not isinstance(said, Mapping):
        return False
    if method == "elicitation/create":
        return "url" in said if params.get("mode") == "url" else "form" in said or "url" not in said
    return method != "sampling/createMessage" or not params.get("tools") or "tools" in said


async def put(peer: Peer, ask: Ask | None, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the client what it said it can be asked; `McpFault` for anything else, and when it refuses."""
    if ask is None or not able(peer, method, params):
        raise McpFault(METHOD_NOT_FOUND, f"the client at the other end cannot be asked for {method}")
    return await ask(method, params)


def asked_in(result: Mapping[str, Any], request: Request) -> dict[str, dict[str, Any]]:
    """The questions of an `input_required` result, labelled, by the server's own keys; refused when the client did not
    say that it can be asked that, and when one passes for the gateway's own."""
    found: dict[str, dict[str, Any]] = {}
    if str(result.get("requestState", "")).startswith(STATE_PREFIX) and not request.trusted:
        raise refuse_question(request.server, "its requestState looks like one of Toolgate's own")
    asked = result.get("inputRequests")
    for key, each in asked.items() if isinstance(asked, dict) else ():
        method, params = (each.get("method"), each.get("params") or {}) if isinstance(each, dict) else (None, {})
        if not isinstance(params, dict) or not able(request.peer, str(method), params):
            raise ToolFailed(f"{request.about} asks for {method}, which this caller cannot answer", code="CANNOT_ASK")
        found[key] = {**each, "params": label_question(request.server, str(method), params, request.trusted)}
    return found
