"""Tools over REST: list, show, switch, invoke, and the list in the formats of model APIs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, JsonValue

from gateway.admin import calls, switches, toolsets
from gateway.admin.tool_details import describe_tool, summarize_tool
from gateway.bundles.tool_kinds import RendererKind
from gateway.calls import Call, Outcome, check_chat, to_json
from gateway.catalog import Catalog, anthropic_tool, mcp_tool, openai_tool
from gateway.errors import GatewayError, InputRequired
from gateway.names import CHAT_LIMIT, wire_name
from gateway.serve.rest.app import error_reply, make_etag
from gateway.serve.rest.endpoint import (
    AnswerModel,
    Endpoint,
    ListPage,
    PageQuery,
    Reply,
    RequestModel,
    RestRequest,
    slice_page,
)
from gateway.tools import Tool

# Encoded lists that are kept until the catalog changes.
_CACHED_LISTS = 32
_FORMATS: Mapping[str, Callable[[str, Tool], dict[str, Any]]] = {
    "mcp": mcp_tool,
    "openai": openai_tool,
    "anthropic": anthropic_tool,
}

Chat = Annotated[str, Field(min_length=1, max_length=CHAT_LIMIT)]
MessageId = Annotated[str, Field(min_length=1, max_length=200)]
ParentMessageId = Annotated[str, Field(max_length=200, description="Empty for the first message of a conversation.")]


class ToolSummary(AnswerModel):
    """`name` is the one that clients call; `id` is stable. `app_only` tools are for views and not listed to models."""

    id: str
    name: str
    title: str | None
    description: str
    kind: str
    owner: str | None
    category: str
    permission: Literal["read-only", "read-write", "execute"]
    requires_confirmation: Annotated[bool, Field(description="Whether a person may be asked first.")]
    renderer: str | None
    tags: list[str]
    origin: Annotated[Literal["builtin", "toolset", "server"], Field(description="The kind of its owner.")]
    destructive: bool
    app_only: bool
    tokens: Annotated[int, Field(description="About what its definition takes of a model's context.")]


class RendererInfo(AnswerModel):
    kind: str
    config: dict[str, Any]


class ToolOriginal(AnswerModel):
    """A tool before anybody changed it."""

    name: str
    description: str
    requires_confirmation: bool
    renderer: str | None


class ToolDetails(ToolSummary):
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    annotations: dict[str, Any] | None
    render_config: RendererInfo | None
    original: Annotated[
        ToolOriginal | None, Field(description="For administrators; null if nothing of it can be changed.")
    ]


class WithheldTool(ToolSummary):
    reason: str


class ToolQuery(PageQuery):
    category: Annotated[str | None, Field(max_length=100)] = None
    kind: Annotated[str | None, Field(max_length=100)] = None
    tag: Annotated[str | None, Field(max_length=100)] = None


class FormatQuery(PageQuery):
    limit: Annotated[int, Field(ge=1, le=5000)] = 5000
    format: Literal["mcp", "openai", "anthropic"] = "mcp"


class AvailableTools(AnswerModel):
    format: str
    tools: list[dict[str, Any]]
    next_page_token: str | None


class ToolChanges(RequestModel):
    """Changes to a tool; of a builtin only `enabled` can change. Null undoes an earlier change."""

    enabled: bool | None = None
    name_override: Annotated[str | None, Field(max_length=200)] = None
    description_override: Annotated[str | None, Field(max_length=20_000)] = None
    requires_confirmation: bool | None = None
    renderer: RendererKind | None = None
    renderer_config: dict[str, Any] | None = None


class ToolSwitches(RequestModel):
    tools: Annotated[list[str], Field(min_length=1, max_length=5000, description="Ids or names.")]
    enabled: bool


class ToolUsage(AnswerModel):
    """The latest calls of a tool, at most 1,000; all for administrators, your own otherwise."""

    calls: int
    errors: int
    median_ms: float | None
    p95_ms: float | None
    callers: list[dict[str, Any]]


class ToolState(AnswerModel):
    """`withheld` is the reason why a tool is not offered."""

    id: str
    offered: bool
    withheld: str | None


class InvokeBody(RequestModel):
    args: dict[str, JsonValue] = {}
    chat: Chat | None = None
    message_id: MessageId | None = None
    parent_message_id: ParentMessageId | None = None


class InvokeAnswer(AnswerModel):
    """The value of a call, and what a model would read of it as MCP content."""

    ok: Literal[True]
    call_id: str
    value: Any
    content: list[dict[str, Any]] | None
    render_plan: dict[str, Any] | None
    pre_manifest_id: str | None
    post_manifest_id: str | None


class ListCache:
    """Encoded lists of the current catalogs. They are made once per catalog, as for MCP."""

    def __init__(self) -> None:
        self._catalog: Catalog | None = None
        self._replies: dict[object, Reply] = {}

    def get(self, request: RestRequest, key: object, encode: Callable[[Catalog], bytes]) -> Reply:
        """Return the reply for a principal's view of the catalog; `key` names the rest of the request."""
        if self._catalog is not request.gateway.catalog:
            self._catalog, self._replies = request.gateway.catalog, {}
        access = request.principal.access
        reply = self._replies.get((access, key))
        if reply is None:
            body = encode(self._catalog.for_principal(access))
            reply = Reply(encoded=body, etag=make_etag(body))
            if len(self._replies) < _CACHED_LISTS:
                self._replies[access, key] = reply
        return reply


_lists = ListCache()


async def list_tools(request: RestRequest, query: ToolQuery) -> object:
    """List the tools that you may call, of the program, toolsets and upstream servers"""

    def encode(catalog: Catalog) -> bytes:
        chosen = catalog.filter(kind=query.kind, category=query.category, tag=query.tag)
        page = slice_page(chosen, lambda entry: entry.name, query, "tools")
        return to_json({**page, "items": [summarize_tool(entry.name, entry.tool) for entry in page["items"]]})

    return _lists.get(request, query, encode)


async def list_withheld_tools(request: RestRequest, query: PageQuery) -> object:
    """List the tools that exist and are not offered, with the reason and what to do"""
    found = [
        {**summarize_tool(wire_name(tool.id, tool.prefix), tool), "reason": reason}
        for tool, reason in await switches.list_withheld(request.gateway)
    ]
    return slice_page(found, lambda tool: tool["id"], query, "withheld")


async def get_tool(request: RestRequest, tool_id: str) -> object:
    """Get a tool by its id or name, with its schemas and how its outcomes are shown"""
    entry = request.gateway.catalog.for_principal(request.principal.access).find(tool_id)
    is_admin = request.principal.admin
    return {
        **describe_tool(entry),
        "original": await toolsets.describe_original(request.gateway, entry.tool) if is_admin else None,
    }


async def get_tool_usage(request: RestRequest, tool_id: str) -> object:
    """Get how often a tool is called, how long it takes, and by whom"""
    principal = request.principal
    tool = request.gateway.catalog.for_principal(principal.access).find(tool_id).tool
    return await calls.measure_tool(request.gateway, tool.id, None if principal.admin else principal.id)


async def switch_tools(request: RestRequest, body: ToolSwitches) -> object:
    """Turn tools on or off together; each answers whether it is offered now"""
    results = await switches.enable_tools(request.gateway, body.tools, body.enabled)
    return {"items": [_describe_state(request, tool_id, refusal) for tool_id, refusal in results.items()]}


async def change_tool(request: RestRequest, tool_id: str, body: ToolChanges) -> object:
    """Turn a tool on or off, or change how a toolset's tool is named, described, confirmed and shown"""
    gateway, changes = request.gateway, {name: getattr(body, name) for name in body.model_fields_set}
    enabled = changes.pop("enabled", None)
    tool_id = await switches.find_tool_id(gateway, tool_id)
    if changes:
        await toolsets.override_tool(gateway, tool_id, changes)
    if enabled is not None:
        await switches.enable_tool(gateway, tool_id, enabled)
    await gateway.reload()
    return _describe_state(request, tool_id)


def _describe_state(request: RestRequest, tool_id: str, refusal: GatewayError | None = None) -> dict[str, Any]:
    catalog = request.gateway.catalog
    offered = catalog.get(tool_id) is not None
    reason = refusal or (None if offered else catalog.refusal(tool_id))
    return {"id": tool_id, "offered": offered, "withheld": None if reason is None else reason.message}


async def invoke_tool(request: RestRequest, tool_id: str, body: InvokeBody) -> object:
    """Call a tool

    A call that needs consent is refused with 428 while it waits in the queue (`approval.without_elicitation: queue`):
    decide at /api/approvals/{id}, then call again with the same arguments. The call goes on if you disconnect.
    """
    call = build_call(request, tool_id, body.args, body.chat, body.message_id, body.parent_message_id)
    return encode_outcome(call, await request.gateway.approval_flow.call_tool(call))


async def get_available_tools(request: RestRequest, query: FormatQuery) -> object:
    """List the tools that you may call in the format of a model API"""

    def encode(catalog: Catalog) -> bytes:
        page = slice_page(catalog.for_models, lambda entry: entry.name, query, "available")
        tools = [_FORMATS[query.format](entry.name, entry.tool) for entry in page.pop("items")]
        return to_json({"format": query.format, "tools": tools, **page})

    return _lists.get(request, query, encode)


def build_call(
    request: RestRequest,
    tool: str,
    arguments: Mapping[str, Any],
    chat: str | None,
    message: str | None = None,
    parent_message: str | None = None,
    **more: Any,
) -> Call:
    return Call(
        name=tool,
        arguments=arguments,
        chat=check_chat(chat) if chat is not None else request.default_chat,
        message=message,
        parent_message=parent_message,
        caller=request.caller,
        **more,
    )


def encode_outcome(call: Call, outcome: Outcome) -> Reply:
    """Return the reply for a call that has ended."""
    call_id = outcome.call_id or call.id
    if outcome.error is not None:
        error = outcome.error
        if isinstance(error, InputRequired) and outcome.wire is not None:  # a server's question, which we cannot relay
            error = InputRequired(error.message, reason="the server asks for input, which only an MCP client can give")
        return error_reply(error, call_id=call_id)
    return Reply(encoded=to_json(describe_outcome(call_id, outcome)))


def describe_outcome(call_id: str, outcome: Outcome) -> dict[str, Any]:
    """Return the answer of a call that succeeded, as `InvokeAnswer` has it."""
    return {
        "ok": True,
        "call_id": call_id,
        "value": orjson.Fragment(outcome.value_json),
        "content": outcome.content,
        "render_plan": outcome.render_plan,
        "pre_manifest_id": outcome.pre_manifest,
        "post_manifest_id": outcome.post_manifest,
    }


CALL_ERRORS = (403, 404, 409, 422, 428, 429, 499)
ENDPOINTS = [
    Endpoint("GET", "/api/tools", list_tools, ListPage[ToolSummary]),
    Endpoint("PATCH", "/api/tools", switch_tools, ListPage[ToolState], admin=True),
    Endpoint("GET", "/api/tools/{tool_id}", get_tool, ToolDetails, errors=(403,)),
    Endpoint("PATCH", "/api/tools/{tool_id}", change_tool, ToolState, admin=True),
    Endpoint("POST", "/api/tools/{tool_id}/invoke", invoke_tool, InvokeAnswer, errors=CALL_ERRORS),
    Endpoint("GET", "/api/tools/{tool_id}/usage", get_tool_usage, ToolUsage, errors=(403,)),
    Endpoint("GET", "/api/withheld-tools", list_withheld_tools, ListPage[WithheldTool], admin=True),
    Endpoint("GET", "/api/available-tools", get_available_tools, AvailableTools),
]
