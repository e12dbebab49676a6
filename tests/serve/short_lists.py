"""A gateway with tools that record their calls, whose lists are short, and clients of both eras."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from journeys.test_approval import Person
from mcp import Client
from mcp_types import TextContent

from gateway import Gateway
from gateway.calls import Call, Outcome
from gateway.discovery import count_tokens
from gateway.errors import ToolFailed
from gateway.identity import Principal
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.tools import Permission, Tool

ERAS = ("2026-07-28", "legacy")
TEXT: Mapping[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}


class Notes:
    """Tools of a server of notes: each echoes, or does what its name says."""

    name = "notes"

    def __init__(self, more: Sequence[Tool] = ()) -> None:
        self.calls: list[Call] = []
        self.begun = asyncio.Event()
        self._more = more

    async def list_tools(self) -> list[Tool]:
        read: dict[str, Any] = {"owner": "notes", "category": "upstream", "permission": Permission.READ_ONLY}
        write = {**read, "permission": Permission.READ_WRITE}
        return [
            Tool("notes:read_note", "Read one note by its text.", TEXT, **read),
            Tool("notes:add-note", "Add a note to the notebook.", TEXT, **write),
            Tool("notes:erase_notes", "Erase notes.", TEXT, destructive=True, requires_confirmation=True, **write),
            Tool("notes:break_note", "Fail each time.", TEXT, **read),
            Tool("notes:wait_long", "Wait for ever.", TEXT, **read),
            Tool("notes:draw_chart", "Draw a chart in a view.", TEXT, meta={"ui": {"resourceUri": "ui://x"}}, **read),
            *self._more,
        ]

    async def call_tool(self, call: Call) -> Outcome:
        self.calls.append(call)
        if call.target.id == "notes:break_note":
            raise ToolFailed("it broke", code="BROKEN")
        if call.target.id == "notes:wait_long":
            self.begun.set()
            await asyncio.Event().wait()
        return Outcome({"tool": call.target.id, **call.arguments})


class Lab:
    """The gateway, its tools, and a function that connects a client."""

    def __init__(self, gateway: Gateway, notes: Notes) -> None:
        self.gateway, self.notes = gateway, notes
        self.handlers = Handlers(gateway.executor, gateway.versions, "c", gateway.records, caller=gateway.approval_flow)
        self.server = McpServer(self.handlers)

    @asynccontextmanager
    async def connect(self, era: str, person: Person | None = None) -> AsyncIterator[Client]:
        options: dict[str, Any] = {"elicitation_callback": person.asked} if person is not None else {}
        async with Client(self.server.sdk, mode=era, cache=None, **options) as client:
            yield client

    def tokens(self, principal: Principal | None = None, client: str | None = "tester 1") -> int:
        return count_tokens(self.list(principal, client))

    def list(self, principal: Principal | None = None, client: str | None = "tester 1") -> list[dict[str, Any]]:
        caller = (principal or self.gateway.roles.make_principal("local", "admin")).caller("mcp", client)
        tools: list[dict[str, Any]] = self.handlers.tools.page(None, caller, apps=False)["tools"]
        return tools


@asynccontextmanager
async def short_lists(
    directory: Path, mode: str = "search", more: Sequence[Tool] = (), **settings: Any
) -> AsyncIterator[Lab]:
    notes = Notes(more)
    chosen = {"data_dir": str(directory), "tools": {"mode": mode}, **settings}
    async with Gateway.open(chosen, sources=[notes]) as gateway:
        yield Lab(gateway, notes)


async def call(client: Client, name: str, /, **arguments: Any) -> str:
    """Call a tool; return what the model reads."""
    block = (await client.call_tool(name, arguments)).content[0]
    assert isinstance(block, TextContent)
    return block.text
