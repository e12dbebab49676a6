"""Outcomes and errors as MCP results and JSON-RPC errors, for each protocol version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway import __version__
from gateway.calls import Call, Outcome, text_content
from gateway.errors import GatewayError, Invalid, NotFound, RateLimited, Unavailable, UpstreamFault
from gateway.protocol import SERVER_INFO_META_KEY
from gateway.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RATE_LIMITED, RESOURCE_NOT_FOUND, RpcError

# Prefix of the `_meta` keys that only the gateway may write.
OWN_PREFIX = "dev.toolgate/"

CALL_ID = "dev.toolgate/call_id"
ERROR = "dev.toolgate/error"

SERVER_INFO = {"name": "toolgate", "title": "Toolgate", "version": __version__}
_SERVER_META = {SERVER_INFO_META_KEY: SERVER_INFO}


def rpc_error(refusal: GatewayError, modern: bool, **details: Any) -> RpcError:
    """Return a refusal as the error of a protocol version; an upstream's error unchanged."""
    if isinstance(refusal, UpstreamFault):
        return RpcError(refusal.fault, refusal.message, refusal.data)
    own_fault = isinstance(refusal, Unavailable) or type(refusal) is GatewayError
    code = RATE_LIMITED if isinstance(refusal, RateLimited) else INTERNAL_ERROR if own_fault else INVALID_PARAMS
    if isinstance(refusal, NotFound) and not modern and "uri" in details:
        code = RESOURCE_NOT_FOUND
    error = RpcError(code, str(refusal), {**details, **refusal.to_dict()})
    if code == RATE_LIMITED:
        error.retry_after = refusal.details.get("retry_after")
    return error


def unknown_cursor() -> Invalid:
    return Invalid("the cursor is unknown; list from the beginning", code="UNKNOWN_CURSOR")


def tool_result(call: Call, outcome: Outcome, structured: bool) -> dict[str, Any]:
    """Return an outcome as a tool result; an upstream's result keeps all its keys."""
    if isinstance(outcome.error, UpstreamFault):
        raise rpc_error(outcome.error, modern=True)
    if outcome.wire is not None:
        return _upstream_result(call, outcome, outcome.wire)
    if outcome.error is not None:
        return {
            "resultType": "complete",
            "isError": True,
            "content": text_content(str(outcome.error)),
            "_meta": {CALL_ID: call.id, ERROR: outcome.error.to_dict()},
        }
    result: dict[str, Any] = {
        "resultType": "complete",
        "isError": False,
        "content": outcome.content or text_content(outcome.value_json.decode()),
        "_meta": {CALL_ID: call.id},
    }
    if structured:
        result["structuredContent"] = outcome.value
    return result


def shape(result: dict[str, Any], modern: bool) -> dict[str, Any]:
    """Return a result in the form of its protocol version. A modern one names the server in `_meta`; a handshake
    version allows only objects as structured results, and none of the newer keys."""
    if modern:
        return {**result, "_meta": {**(result.get("_meta") or {}), **_SERVER_META}}
    older = {**result}
    for key in ("resultType", "ttlMs", "cacheScope"):
        older.pop(key, None)
    if SERVER_INFO_META_KEY in (meta := older.get("_meta") or {}):  # of a modern upstream
        older["_meta"] = {key: value for key, value in meta.items() if key != SERVER_INFO_META_KEY}
    if not isinstance(older.get("structuredContent", {}), dict):
        del older["structuredContent"]
    if isinstance(older.get("tools"), list):
        older["tools"] = [_older_tool(tool) for tool in older["tools"]]
    return older


def _older_tool(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("outputSchema")
    if schema is None or schema.get("type") == "object":  # which a handshake version demands
        return tool
    return {key: value for key, value in tool.items() if key != "outputSchema"}


def _upstream_result(call: Call, outcome: Outcome, wire: Mapping[str, Any]) -> dict[str, Any]:
    own = wire.get("_meta")
    meta = {} if not isinstance(own, dict) else {key: own[key] for key in own if not key.startswith(OWN_PREFIX)}
    meta.pop(SERVER_INFO_META_KEY, None)  # the gateway answers, not the upstream
    result = {"resultType": "complete", **wire, "_meta": {**meta, CALL_ID: call.id}}
    if result["resultType"] == "complete":
        result["content"] = list(outcome.content or ())
    return result
