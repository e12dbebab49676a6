"""Upstream servers' tools, called as their own clients would call them, whatever era each side speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.calls import Call, Outcome
from gateway.errors import InputRequired, NotFound, ToolFailed
from gateway.sources.upstreams.forward import Asking
from gateway.sources.upstreams.requests import Request
from gateway.sources.upstreams.upstream import Upstream
from gateway.sources.upstreams.uris import outer_blocks, prefix_of
from gateway.tools import Tool

_TEXT_LIMIT = 4096


class UpstreamSource:
    """Every upstream in one source; each is known by the owner of its tools."""

    name = "upstreams"

    def __init__(self, asking: Asking | None = None) -> None:
        self.upstreams: Mapping[str, Upstream] = {}
        self.asking = asking or Asking()

    async def list_tools(self) -> Sequence[Tool]:
        return [tool for upstream in self.upstreams.values() for tool in upstream.tools]

    async def call_tool(self, call: Call) -> Outcome:
        tool = call.target
        upstream = self.upstreams.get(tool.owner or "")
        if upstream is None:
            raise NotFound(f"the upstream of {tool.id} has just been removed", code="UNKNOWN_TOOL")
        params = {"name": tool.id.partition(":")[2], "arguments": dict(call.arguments)}
        spec = upstream.spec
        request = Request("tools/call", params, call, tool.id, spec.name, trusted=spec.terms.trusted)
        return _outcome(await self.asking.answer(upstream, request), prefix_of(upstream.spec))

    async def close(self) -> None:
        """End the calls that wait for answers."""
        await self.asking.close()


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
