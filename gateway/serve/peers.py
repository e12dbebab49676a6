"""The client at the other end of a request, and outcomes as it takes them; what touches the SDK from inside is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel

from ..calls import Ask, Call, Log, Outcome, Peer, text_content
from ..errors import UpstreamFault

CALL_ID = "dev.toolgate/call_id"
ERROR = "dev.toolgate/error"

LOG_LEVEL = "io.modelcontextprotocol/logLevel"
LEVELS = frozenset(get_args(types.LoggingLevel))

Context = ServerRequestContext[Any, Any]


def is_modern(context: Context) -> bool:
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def peer_of(context: Context, params: BaseModel, level: str | None = None) -> Peer:
    """What an upstream may learn of the client, and how it is asked where its era can be. `level` is what it set for
    log messages, in the era in which that is set once."""
    session = context.session
    capabilities = session.client_capabilities
    answers = params.model_dump(
        mode="json", by_alias=True, exclude_none=True, include={"input_responses", "request_state"}
    )
    return Peer(
        capabilities=capabilities.model_dump(mode="json", by_alias=True, exclude_none=True) if capabilities else {},
        meta=context.meta or {},
        answers=answers,
        ask=_asker(context) if session.can_send_request and not is_modern(context) else None,
        log=_logger(context),
        level=_wanted(context) if is_modern(context) else level,
        modern=is_modern(context),
    )


def result(call: Call, outcome: Outcome, structured: bool) -> dict[str, Any]:
    """An outcome as an MCP tool result; an upstream's as that upstream gave it."""
    if isinstance(outcome.error, UpstreamFault):
        raise MCPError(outcome.error.fault, outcome.error.message, outcome.error.data)
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


def _relayed(call: Call, outcome: Outcome, wire: Mapping[str, Any]) -> dict[str, Any]:
    meta = wire.get("_meta")
    shape = {"resultType": "complete", **wire, "_meta": {**(meta if isinstance(meta, dict) else {}), CALL_ID: call.id}}
    if shape["resultType"] == "complete":
        shape["content"] = list(outcome.content or ())
    return shape


def _wanted(context: Context) -> str | None:
    level = (context.meta or {}).get(LOG_LEVEL)
    return level if isinstance(level, str) else None


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
