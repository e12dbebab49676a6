"""Tools on the wire: listed in pages made once per catalog, and called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mcp_types.version import is_version_at_least

from ..calls import Call, Caller, Delivered, Outcome, Peer, Progress, check_chat, to_json
from ..catalog import Catalog
from ..errors import Invalid
from ..executor import Executor
from .peers import OURS, older, result
from .renders import link

CHAT = "dev.toolgate/chat"
MESSAGE = "dev.toolgate/message"
PARENT_MESSAGE = "dev.toolgate/parent_message"

PAGE = 200
"""Tools on one page of `tools/list`: small enough for any client, large enough to be one page for most."""

RESOURCE_LINKS = "2025-06-18"
"""The first version whose clients know links in a result; to an earlier one they would spoil the whole of it."""


class Calls(Protocol):
    """What carries a call to its tool."""

    async def call_tool(self, call: Call) -> Outcome: ...


@dataclass(slots=True)
class Asked:
    """A request to call a tool, whatever wire it came over. `chat` is where it goes if it names none itself."""

    name: str
    arguments: Mapping[str, Any]
    version: str
    chat: str
    caller: Caller
    peer: Peer
    progress: Progress


@dataclass(slots=True)
class Answer:
    """A result, or where an upstream's needs nothing of ours, its whole message as it came."""

    call_id: str
    result: dict[str, Any] | None = None
    message: bytes | None = None


class Tools:
    """What the executor offers, as MCP has it. `calls` carries the calls; `planned` says that render plans are kept,
    so that a result may link to its own; `signed` makes of an answer what the newest era wants it to say."""

    def __init__(
        self, executor: Executor, calls: Calls, planned: bool, signed: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        self.signed = signed
        self._calls = calls
        self._planned = planned
        self._view = _View(executor.catalog)

    def show(self, catalog: Catalog) -> None:
        """From now on list these."""
        self._view = _View(catalog)

    def header_schema(self, name: str) -> Mapping[str, Any] | None:
        """The input schema of a tool some of whose arguments travel as headers too."""
        return self._view.header_schemas.get(name)

    def page(self, cursor: str | None) -> dict[str, Any]:
        return self._view.page(cursor)

    def page_json(self, cursor: str | None, modern: bool) -> bytes:
        """The same, written down; made once."""
        view = self._view
        written = view.written.get((cursor, modern))
        if written is None:
            page = view.page(cursor)
            written = to_json(self.signed(page) if modern else older(page))
            if cursor is None or cursor in view.names:  # a cursor of ours, of which there are only so many
                view.written[cursor, modern] = written
        return written

    async def call(self, asked: Asked) -> Answer:
        meta = asked.peer.meta
        call = Call(
            name=asked.name,
            arguments=asked.arguments,
            chat=check_chat(said_in(meta, CHAT) or asked.chat),
            message=said_in(meta, MESSAGE) if MESSAGE in meta else None,
            parent_message=said_in(meta, PARENT_MESSAGE) if PARENT_MESSAGE in meta else None,
            caller=asked.caller,
            peer=asked.peer,
            progress=asked.progress,
        )
        outcome = await self._calls.call_tool(call)
        if outcome.call_id is not None:  # it goes on with one that was begun before
            call = call.but(id=outcome.call_id)
        wire, plan = outcome.wire, outcome.render_plan
        if type(wire) is Delivered and plan is None and outcome.content is wire.get("content") and not _is_ours(wire):
            return Answer(call.id, message=wire.message)
        answer = result(call, outcome, structured=asked.name in self._view.structured)
        if not is_version_at_least(asked.version, RESOURCE_LINKS):
            answer["content"] = [block for block in answer.get("content", ()) if not _is_link(block)]
        elif plan is not None and self._planned:
            answer["content"] = [*answer["content"], link(call.id, plan)]
        return Answer(call.id, answer)


def _is_link(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "resource_link"


def _is_ours(wire: Mapping[str, Any]) -> bool:
    """Whether a server's result says what only we may say of it, however that is spelled in its bytes."""
    meta = wire.get("_meta")
    if isinstance(meta, dict):
        for key in meta:  # nearly all have one, and say who the server is
            if key.startswith(OURS):
                return True
    return False


def said_in(meta: Mapping[str, Any], key: str) -> str | None:
    value = meta.get(key)
    if value is not None and not isinstance(value, str):
        raise Invalid(f"_meta {key!r} must be a string")
    return value


class _View:
    """What a catalog looks like on this wire, made once per catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.tools = catalog.to_mcp_tools()
        self.names = {tool["name"]: place for place, tool in enumerate(self.tools)}
        self.structured = frozenset(tool["name"] for tool in self.tools if "outputSchema" in tool)
        self.header_schemas = {
            tool["name"]: tool["inputSchema"] for tool in self.tools if "x-mcp-header" in str(tool["inputSchema"])
        }
        self.written: dict[tuple[str | None, bool], bytes] = {}

    def page(self, cursor: str | None) -> dict[str, Any]:
        """The tools after the one the cursor names, so that a changed catalog shifts no page."""
        start = 0 if cursor is None else sum(name <= cursor for name in self.names)
        listed = self.tools[start : start + PAGE]
        page: dict[str, Any] = {"resultType": "complete", "tools": listed, "ttlMs": 0, "cacheScope": "private"}
        if start + PAGE < len(self.tools):
            page["nextCursor"] = listed[-1]["name"]
        return page
