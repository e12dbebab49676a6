"""The client at the other end of a request, and outcomes as it takes them; what touches the SDK from inside is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from ..calls import Ask, Call, Log, Outcome, Peer, text_content
from ..errors import GatewayError, NotFound, Unavailable, UpstreamFault

OURS = "dev.toolgate/"
"""How every key begins that only we may write."""

RESOURCE_NOT_FOUND = -32002
"""The handshake era's code for it; 2026-07-28 retired it for -32602."""

CALL_ID = "dev.toolgate/call_id"
ERROR = "dev.toolgate/error"

LEVELS = frozenset(get_args(types.LoggingLevel))

VERBATIM = frozenset({"tools/list", "tools/call"})
"""What `Verbatim` answers."""

Context = ServerRequestContext[Any, Any]


def is_modern(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def peer_of(context: Context, _: BaseModel, level: str | None = None) -> Peer:
    """What an upstream may learn of the client, and how it is asked where its era can be. `level` is what it set for
    log messages, in the era in which that is set once."""
    said: Mapping[str, Any] = context.params or {}  # as it came: what the SDK does not know may matter to the server
    meta: Mapping[str, Any] = said.get("_meta") or {}
    modern = is_modern(context)
    return Peer(
        capabilities=_capabilities(context, meta),
        meta=meta,
        answers={key: said[key] for key in ("inputResponses", "requestState") if said.get(key) is not None},
        ask=_asker(context) if context.session.can_send_request and not modern else None,
        log=_logger(context),
        level=_wanted(meta) if modern else level,
        modern=modern,
    )


def fault_of(refusal: GatewayError, modern: bool, **details: Any) -> MCPError:
    """A refusal as the error its era has for it; an upstream's as that upstream gave it."""
    if isinstance(refusal, UpstreamFault):
        return MCPError(refusal.fault, refusal.message, refusal.data)
    ours = isinstance(refusal, Unavailable) or type(refusal) is GatewayError
    code = types.INTERNAL_ERROR if ours else types.INVALID_PARAMS
    if isinstance(refusal, NotFound) and not modern:
        code = RESOURCE_NOT_FOUND
    return MCPError(code, str(refusal), {**details, **refusal.to_dict()})


def result(call: Call, outcome: Outcome, structured: bool) -> dict[str, Any]:
    """An outcome as an MCP tool result; an upstream's as that upstream gave it."""
    if isinstance(outcome.error, UpstreamFault):
        raise fault_of(outcome.error, modern=True)
    if outcome.wire is not None:
        return _relayed(call, outcome, outcome.wire)
    if outcome.error is not None:
        return {
            "resultType": "complete",
            "isError": True,
            "content": text_content(str(outcome.error)),
            "_meta": {CALL_ID: call.id, ERROR: outcome.error.to_dict()},
        }
    shape: dict[str, Any] = {
        "resultType": "complete",
        "isError": False,
        "content": outcome.content or text_content(outcome.value_json.decode()),
        "_meta": {CALL_ID: call.id},
    }
    if structured:
        shape["structuredContent"] = outcome.value
    return shape


class Verbatim:
    """Middleware, innermost: gives answers out as the handlers made them. The SDK would drop every key it does not
    know from an upstream's words, and refuse them whole for a kind of content it does not know.

    What comes in is checked as ever, and a client of the handshake era gets nothing that only the newest has.
    """

    def __init__(self, server: Server[Any]) -> None:
        self._server = server
        self._said = {types.SERVER_INFO_META_KEY: server.server_info_stamp}

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        entry = self._server.get_request_handler(ctx.method) if ctx.method in VERBATIM else None
        if entry is None or ctx.request_id is None or not ctx.session._connection.initialize_accepted:
            return await call_next(ctx)
        methods.validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
        params = entry.params_type.model_validate(ctx.params or {}, by_name=False)
        answer = await entry.handler(ctx, params)
        if not isinstance(answer, dict):
            return await call_next(ctx)
        return self.signed(answer) if is_modern(ctx) else older(answer)

    def signed(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Every answer of the newest era says who gave it."""
        return {**answer, "_meta": {**(answer.get("_meta") or {}), **self._said}}


def older(answer: dict[str, Any]) -> dict[str, Any]:
    """The same for the handshake era, which knows no other structured results than objects."""
    told = {key: value for key, value in answer.items() if key not in ("resultType", "ttlMs", "cacheScope")}
    if not isinstance(told.get("structuredContent", {}), dict):
        del told["structuredContent"]
    if isinstance(told.get("tools"), list):
        told["tools"] = [_older_tool(tool) for tool in told["tools"]]
    return told


def _older_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("outputSchema", {}).get("type", "object") == "object":
        return tool
    return {key: value for key, value in tool.items() if key != "outputSchema"}


def _relayed(call: Call, outcome: Outcome, wire: Mapping[str, Any]) -> dict[str, Any]:
    said = wire.get("_meta")
    meta = {} if not isinstance(said, dict) else {key: said[key] for key in said if not key.startswith(OURS)}
    meta.pop(types.SERVER_INFO_META_KEY, None)  # it is we who answer
    shape = {"resultType": "complete", **wire, "_meta": {**meta, CALL_ID: call.id}}
    if shape["resultType"] == "complete":
        shape["content"] = list(outcome.content or ())
    return shape


def _capabilities(context: Context, meta: Mapping[str, Any]) -> Mapping[str, Any]:
    if is_modern(context):
        said = meta.get(types.CLIENT_CAPABILITIES_META_KEY)
        return said if isinstance(said, dict) else {}
    known = context.session.client_capabilities
    return known.model_dump(mode="json", by_alias=True, exclude_none=True) if known else {}


def _wanted(meta: Mapping[str, Any]) -> str | None:
    level = meta.get(types.LOG_LEVEL_META_KEY)
    return level if level in LEVELS else None


def _logger(context: Context) -> Log:
    async def log(said: Mapping[str, Any]) -> None:
        level: Any = said.get("level")
        logger = said.get("logger")
        if level in LEVELS:
            named = logger if isinstance(logger, str) else None
            await context.session.send_log_message(level, said.get("data"), named, context.request_id)

    return log


def _asker(context: Context) -> Ask:
    # On the stream of the request itself: a question on any other stream may never be seen.
    channel = context.session._request_outbound

    async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return await channel.send_raw_request(method, dict(params))

    return ask
