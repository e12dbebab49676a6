"""Upstream servers' tools, called as their own clients would call them, whatever era each side speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from mcp.shared.exceptions import MCPError

from ...calls import Ask, Call, Outcome, Peer, no_progress
from ...errors import InputRequired, NotFound, ToolFailed, Unavailable, UpstreamFault
from ...tools import Tool
from .addresses import outer_blocks, prefix_of
from .lane import Lane, Taken
from .link import Link, McpFault
from .logs import heard, tune
from .parking import STATE, Parking
from .server import Upstream

ROUNDS = 16
"""How often a server may ask before it answers."""

_CAPABILITY = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
_PRIVATE_META = ("io.modelcontextprotocol/", "dev.toolgate/")
_TEXT_LIMIT = 4096
METHOD_NOT_FOUND = -32601


class UpstreamSource:
    """Every upstream in one source; each is known by the owner of its tools."""

    name = "upstreams"

    def __init__(self, parking: Parking | None = None) -> None:
        self.upstreams: Mapping[str, Upstream] = {}
        self._parking = parking or Parking()

    async def list_tools(self) -> Sequence[Tool]:
        return [tool for upstream in self.upstreams.values() for tool in upstream.tools]

    async def call_tool(self, call: Call) -> Outcome:
        upstream = self.upstreams.get(call.target.owner or "")
        if upstream is None:
            raise NotFound(f"the upstream of {call.target.id} has just been removed", code="UNKNOWN_TOOL")
        try:
            return _outcome(await self._result(upstream, call), prefix_of(upstream.spec))
        except McpFault as fault:
            raise UpstreamFault(fault.message, fault=fault.code, data=fault.data) from None
        except Unavailable as error:
            raise _naming(upstream, error) from None

    async def close(self) -> None:
        """End the calls that wait for answers."""
        await self._parking.close()

    async def _result(self, upstream: Upstream, call: Call) -> dict[str, Any]:
        peer = call.peer or Peer()
        if str(peer.answers.get("requestState", "")).startswith(STATE):
            return await self._parking.resume(call)
        link = await upstream.lane(call).link()
        if peer.modern and not link.modern and _askable(peer):
            return await self._parking.run(call, partial(_relay, upstream))
        return await _relay(upstream, peer.ask, call)


async def _relay(upstream: Upstream, ask: Ask | None, call: Call) -> dict[str, Any]:
    """What the server answers, on the first way to it on which nobody is being asked something."""
    while True:
        lane = upstream.lane(call)
        with lane.use():
            link = await lane.link()
            if link.modern:
                return await _rounds(link, call)
            asker = ask and _asker(upstream, lane, link, partial(_if_able, call.peer or Peer(), ask))
            try:
                # Over a wire that does not say which call a question belongs to, one call at a time may be asked.
                async with lane.turn() if upstream.asks else nullcontext():
                    return await _request(link, call, asker)
            except Taken:
                continue
            finally:
                upstream.asks = upstream.asks or link.asks_mid_call


def _asker(upstream: Upstream, lane: Lane, link: Link, ask: Ask) -> Ask:
    """`ask`, letting others know that the lane waits for an answer."""

    async def asked(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        upstream.asks = upstream.asks or link.asks_mid_call
        with lane.asked() if upstream.asks else nullcontext():
            return await ask(method, params)

    return asked


async def _rounds(link: Link, call: Call) -> dict[str, Any]:
    """Of a server that asks by answering, the answer: a client of its kind is handed the questions, any other is
    asked here, round by round."""
    peer = call.peer or Peer()
    answers = peer.answers
    for _ in range(ROUNDS):
        result = await _request(link, call, None, answers)
        if result.get("resultType") != "input_required":
            return result
        asked = _questions(call, peer, result)
        if peer.modern:
            return result
        answers = {"inputResponses": {key: await _if_able(peer, peer.ask, *each) for key, each in asked.items()}}
        if "requestState" in result:
            answers["requestState"] = result["requestState"]
    raise ToolFailed(f"{call.target.id} asked more than {ROUNDS} times without an answer", code="UPSTREAM_ERROR")


def _questions(call: Call, peer: Peer, result: Mapping[str, Any]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """What a server asks, by its own keys; refused when the client did not say that it can be asked that."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    asked = result.get("inputRequests")
    for key, each in asked.items() if isinstance(asked, dict) else ():
        method, params = (each.get("method"), each.get("params") or {}) if isinstance(each, dict) else (None, {})
        if not isinstance(params, dict) or not _able(peer, str(method), params):
            raise ToolFailed(f"{call.target.id} asks for {method}, which this caller cannot answer", code="CANNOT_ASK")
        found[key] = (str(method), params)
    return found


async def _if_able(peer: Peer, ask: Ask | None, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the client what it said it can be asked."""
    if ask is None or not _able(peer, method, params):
        raise McpFault(METHOD_NOT_FOUND, f"the client at the other end cannot be asked for {method}")
    try:
        return await ask(method, params)
    except MCPError as error:
        raise McpFault(error.code, error.message, error.data) from None


def _able(peer: Peer, method: str, params: Mapping[str, Any]) -> bool:
    """Whether the client said that it can be asked this; `elicitation` alone means forms, `sampling` no tools."""
    said = _askable(peer).get(_CAPABILITY.get(method, ""))
    if not isinstance(said, Mapping):
        return False
    if method == "elicitation/create":
        return "url" in said if params.get("mode") == "url" else "form" in said or "url" not in said
    return method != "sampling/createMessage" or not params.get("tools") or "tools" in said


def _askable(peer: Peer) -> dict[str, Any]:
    """Those of the client's capabilities that are about being asked, as far as it can be asked at all."""
    if not peer.modern and peer.ask is None:
        return {}
    return {key: value for key, value in peer.capabilities.items() if key in _CAPABILITY.values()}


async def _request(link: Link, call: Call, ask: Ask | None, answers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    peer = call.peer or Peer()
    own = call.target.id.partition(":")[2]
    meta = {key: value for key, value in peer.meta.items() if not key.startswith(_PRIVATE_META)}
    if peer.level is not None:
        meta |= await tune(link, peer.level)
    told = peer.meta.get("progressToken") is not None if call.peer else call.progress is not no_progress
    others = {key: value for key, value in peer.capabilities.items() if key not in _CAPABILITY.values()}
    return await link.request(
        "tools/call",
        {"name": own, "arguments": dict(call.arguments), **(answers or {})},
        ask=ask,
        progress=call.progress if told else None,
        log=heard(peer),
        meta=meta,
        capabilities={**others, **_askable(peer)} if link.modern else None,
    )


def _naming(upstream: Upstream, error: Unavailable) -> Unavailable:
    """The same, saying which server it is about."""
    name = upstream.spec.name
    if error.details.get("server") == name:
        return error
    message = f"the upstream server {name!r} did not answer: {error.message}"
    return Unavailable(message, code=error.code, server=name, **error.details)


def _outcome(result: dict[str, Any], prefix: str) -> Outcome:
    content = result.get("content")
    blocks = outer_blocks(prefix, content) if isinstance(content, list) else []
    if result.get("resultType") == "input_required":
        asked = InputRequired("the server asks for more before it answers", reason="the server asks for more")
        return Outcome(error=asked, wire=result)
    if result.get("isError"):
        return Outcome(error=ToolFailed(_text(blocks) or "the tool failed without a word"), content=blocks, wire=result)
    value = result.get("structuredContent", blocks)
    return Outcome(value=value, content=blocks, wire=result)


def _text(blocks: Sequence[Any]) -> str:
    texts = [block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]
    return "\n".join(texts)[:_TEXT_LIMIT]
