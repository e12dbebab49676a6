"""An SDK server with a tool for everything a link must carry, in both eras: `everything.py stdio|http PORT`.

Over HTTP the streamable transport is at /mcp and the old one at /sse.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import warnings
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated, ToolsListChanged
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

warnings.simplefilter("ignore")
bus = InMemorySubscriptionBus()
cancelled: list[str] = []
FORM: dict[str, Any] = {"type": "object", "properties": {"answer": {"type": "string"}}}
ANY: dict[str, Any] = {"type": "object"}
PLACED: dict[str, Any] = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


def said(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def echo(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    return said(str(arguments.get("text")))


async def count(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    for step in range(1, 4):  # without a pause, so that the client can receive several reports in one read
        await ctx.session.report_progress(step, 3, f"step {step}")
    return said("counted")


async def chatter(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    for word in ("one", "two"):
        await ctx.session.send_log_message("warning", word, logger="t", related_request_id=ctx.request_id)
    return said("logged")


async def nap(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    try:
        await ctx.session.report_progress(0, None, "asleep")
        await asyncio.sleep(float(arguments.get("seconds", 30)))
    except BaseException:
        cancelled.append(str(arguments.get("name")))
        print("cancelled", arguments.get("name"), file=sys.stderr, flush=True)
        raise
    return said("awake")


async def cancellations(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    return said(",".join(cancelled))


async def elicit(ctx: Any, arguments: dict[str, Any], params: Any) -> Any:
    """Asks `rounds` questions, one after the other; the answer is all the answers."""
    rounds = int(arguments.get("rounds", 1))
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        answers = []
        for number in range(rounds):
            question = f"{arguments.get('name', '')}{number}"
            result = await ctx.session.elicit_form(question, FORM, related_request_id=ctx.request_id)
            answers.append(str((result.content or {}).get("answer", result.action)))
        return said(",".join(answers))
    got = [entry for entry in (params.request_state or "").split(",") if entry]
    given = (params.input_responses or {}).get("q")
    if given is not None:
        got.append(str((given.content or {}).get("answer", given.action)))
    if len(got) == rounds:
        return said(",".join(got))
    question = f"{arguments.get('name', '')}{len(got)}"
    form = types.ElicitRequest(params=types.ElicitRequestFormParams(message=question, requested_schema=FORM))
    return types.InputRequiredResult(input_requests={"q": form}, request_state=",".join(got))


async def sample(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    message = types.SamplingMessage(role="user", content=types.TextContent(text="hello"))
    result = await ctx.session.create_message([message], max_tokens=5, related_request_id=ctx.request_id)
    return said(result.content.text)


async def roots(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    related = ServerMessageMetadata(related_request_id=ctx.request_id) if arguments.get("related", True) else None
    result = await ctx.session.send_request(types.ListRootsRequest(), types.ListRootsResult, metadata=related)
    return said(",".join(str(root.uri) for root in result.roots))


async def big(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    return said("x" * int(arguments.get("size", 2_000_000)))


async def crash(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    print("about to crash", file=sys.stderr, flush=True)
    os._exit(3)


async def change(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    await bus.publish(ToolsListChanged())
    await bus.publish(ResourceUpdated("file:///x"))
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        await ctx.session.send_tool_list_changed()
        await ctx.session.send_resource_updated("file:///x")
    return said("changed")


async def meta(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[], structured_content={"meta": dict(ctx.meta or {})})


async def place(ctx: Any, arguments: dict[str, Any], params: Any) -> types.CallToolResult:
    return said(str(arguments.get("region")))


TOOLS = (echo, count, chatter, nap, cancellations, elicit, sample, roots, big, crash, change, meta, place)
UNICODE = "naïve"


async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
    tools = [types.Tool(name=tool.__name__, input_schema=PLACED if tool is place else ANY) for tool in TOOLS]
    return types.ListToolsResult(tools=[*tools, types.Tool(name=UNICODE, input_schema=ANY)])


async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> Any:
    for tool in TOOLS:
        if tool.__name__ == params.name:
            return await tool(ctx, params.arguments or {}, params)
    return said(params.name)


async def subscribe(ctx: Any, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


class Everything(Server[Any]):
    def create_initialization_options(self, notification_options: Any = None, *more: Any, **rest: Any) -> Any:
        changed = NotificationOptions(tools_changed=True, resources_changed=True)
        return super().create_initialization_options(notification_options or changed, *more, **rest)


server = Everything(
    "everything",
    version="1.0",
    instructions="try them all",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_subscribe_resource=subscribe,
    on_subscriptions_listen=ListenHandler(bus),
    on_set_logging_level=subscribe,
    get_tool_input_schema=lambda name: PLACED if name == "place" else None,
)


async def over_stdio() -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def over_http() -> None:
    old = SseServerTransport("/messages/")

    async def sse(request: Request) -> Response:
        async with old.connect_sse(request.scope, request.receive, request._send) as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
        return Response()

    app = server.streamable_http_app(
        custom_starlette_routes=[Route("/sse", sse), Mount("/messages/", app=old.handle_post_message)]  # type: ignore[list-item]
    )
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)).run([listening])


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        asyncio.run(over_stdio())
    else:
        over_http()
