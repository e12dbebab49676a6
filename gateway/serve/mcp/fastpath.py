"""The fast path: the most frequent requests, parsed and encoded without the SDK.

It answers requests that it understands completely. Any other request (another method, an unexpected key or value) is
left to the SDK, which parses it from the beginning and words the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from gateway.calls import Caller, ClientInfo, no_progress, to_json
from gateway.errors import GatewayError
from gateway.identity import Principal
from gateway.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    LOG_LEVELS,
    MODERN_PROTOCOL_VERSIONS,
    PROTOCOL_VERSION_META_KEY,
    supports_apps,
)
from gateway.protocol.jsonrpc import RequestId, RpcError
from gateway.serve.mcp.handlers import Handlers
from gateway.serve.mcp.request import TRACEPARENT, Request, caller_of, client_name
from gateway.serve.mcp.results import shape
from gateway.serve.mcp.sessions import Notify, Session

# The largest request that is parsed here, in bytes.
SIZE = 1024 * 1024

_DIGITS = bytes(ord("0") if chr(code).isdigit() and code < 128 else ord(" ") for code in range(256))
# A number that may have more than 64 bits, which the fast parser would round.
LONG_NUMBER = b"0" * 19

# Requests answered here over any transport.
METHODS = frozenset({"tools/call", "tools/list"})

STDIO_HANDSHAKE_METHODS = METHODS | {"ping"}
# Requests answered here over stdio, whose client waits for the start of the process.
STDIO_MODERN_METHODS = METHODS | {"server/discover"}

_MESSAGE = frozenset({"jsonrpc", "id", "method", "params"})
_IDS = (int, str)  # exact types: bool is a subclass of int
_KEYS = {
    "tools/call": frozenset({"name", "arguments", "_meta"}),
    "tools/list": frozenset({"cursor", "_meta"}),
    "ping": frozenset({"_meta"}),
    "server/discover": frozenset({"_meta"}),
}
_INITIALIZE = frozenset({"protocolVersion", "capabilities", "clientInfo", "_meta"})


@dataclass(slots=True)
class EncodedResponse:
    """A response as the bytes of its message. `error` is the code of an error response."""

    message: bytes
    error: int | None = None
    call_id: str | None = None


@dataclass(slots=True)
class ParsedRequest:
    """A request that can be answered here. `relayed` allows the bytes of an upstream's response to be passed on."""

    id: RequestId
    method: str
    params: Mapping[str, Any]
    version: str
    caller: Caller
    chat: str
    capabilities: Mapping[str, Any]
    level: str | None = None
    session: Session | None = None
    relayed: bool = False

    @property
    def modern(self) -> bool:
        return self.session is None


def parse(body: bytes) -> dict[str, Any] | None:
    """Parse a JSON-RPC message; return None for one that is left to the SDK."""
    if len(body) > SIZE or body.translate(_DIGITS).find(LONG_NUMBER) >= 0:  # `in` would raise
        return None
    try:
        message = orjson.loads(body)
    except ValueError:
        return None
    return message if isinstance(message, dict) and message.get("jsonrpc") == "2.0" else None


def add_traceparent(message: Mapping[str, Any], trace: str) -> None:
    """Add the trace of an HTTP header to the `_meta` of a request, unless it names one itself."""
    params = message.get("params")
    if isinstance(params, dict) and isinstance(params.get("_meta", {}), dict):
        params.setdefault("_meta", {}).setdefault(TRACEPARENT, trace)


def parse_modern(
    message: Mapping[str, Any],
    principal: Principal,
    chat: str,
    relayed: bool = False,
    methods: frozenset[str] = METHODS,
) -> ParsedRequest | None:
    """Parse the request of a client of a modern version, which describes itself in every request."""
    request = _parse_request(message, methods)
    if request is None:
        return None
    meta = request[2].get("_meta", {})
    version, capabilities = meta.get(PROTOCOL_VERSION_META_KEY), meta.get(CLIENT_CAPABILITIES_META_KEY)
    level = meta.get(LOG_LEVEL_META_KEY)
    if version not in MODERN_PROTOCOL_VERSIONS or not isinstance(capabilities, dict):
        return None
    if capabilities and not _are_valid_capabilities(capabilities):
        return None
    if level is not None and not (isinstance(level, str) and level in LOG_LEVELS):
        return None
    info = meta.get(CLIENT_INFO_META_KEY)
    if info is not None and not _is_valid_info(info):
        return None
    caller = caller_of(principal, None if info is None else client_name(info))
    return ParsedRequest(*request, version, caller, chat, capabilities, level, None, relayed)


def parse_in_session(
    message: Mapping[str, Any], session: Session, chat: str, methods: frozenset[str] = METHODS
) -> ParsedRequest | None:
    """Parse the request of a client of a handshake version."""
    request = _parse_request(message, methods)
    if request is None or str(request[0]) in session.calls or PROTOCOL_VERSION_META_KEY in request[2].get("_meta", {}):
        return None
    return ParsedRequest(*request, session.version, session.caller, chat, session.capabilities, session.level, session)


def parse_initialize(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the parameters of an `initialize` request, None for one that is left to the SDK."""
    params = message.get("params")
    if message.get("method") != "initialize" or type(message.get("id")) not in _IDS or not message.keys() <= _MESSAGE:
        return None
    if (
        not isinstance(params, dict)
        or not params.keys() <= _INITIALIZE
        or not isinstance(params.get("_meta", {}), dict)
    ):
        return None
    capabilities = params.get("capabilities")
    if not isinstance(params.get("protocolVersion"), str) or not isinstance(capabilities, dict):
        return None
    if PROTOCOL_VERSION_META_KEY in params.get("_meta", {}):
        return None
    return params if _are_valid_capabilities(capabilities) and _is_valid_info(params.get("clientInfo")) else None


def _parse_request(
    message: Mapping[str, Any], methods: frozenset[str]
) -> tuple[RequestId, str, Mapping[str, Any]] | None:
    number, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if not isinstance(method, str) or method not in methods or not message.keys() <= _MESSAGE:
        return None
    meta = params.get("_meta", {}) if isinstance(params, dict) else None
    if type(number) not in _IDS or not isinstance(meta, dict) or type(meta.get("progressToken", 0)) not in _IDS:
        return None
    fits = params.keys() <= _KEYS[method]
    if method == "tools/call":
        fits = fits and isinstance(params.get("name"), str) and isinstance(params.get("arguments", {}), dict)
    elif method == "tools/list":
        fits = fits and isinstance(params.get("cursor", ""), str)
    return (number, method, params) if fits else None  # type: ignore[return-value]  # its type is checked above


def _are_valid_capabilities(capabilities: Mapping[str, Any]) -> bool:
    """Return whether all capabilities are objects of objects; only `roots` may have a flag."""
    for name, value in capabilities.items():
        kinds = dict | bool if name == "roots" else dict
        if not isinstance(value, dict) or not all(isinstance(item, kinds) for item in value.values()):
            return False
    return True


def _is_valid_info(info: Any) -> bool:
    """Return whether a client names itself and its version, with strings only."""
    if not isinstance(info, dict) or not all(isinstance(value, str) for value in info.values()):
        return False
    return "name" in info and "version" in info


class FastPath:
    """Answers parsed requests by the handlers, and encodes the responses."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    async def answer(self, parsed: ParsedRequest, notify: Notify) -> EncodedResponse:
        """Answer a request. Messages of the call go through `notify`; those after the response are dropped."""
        if parsed.method == "tools/list" and self._handlers.first_lists() is None:
            with suppress(GatewayError):  # the handlers word the error
                cursor, apps = parsed.params.get("cursor"), supports_apps(parsed.capabilities)
                page = self._handlers.tools.page_json(cursor, parsed.modern, parsed.caller, apps)
                return EncodedResponse(_response(parsed.id, page))
        if parsed.method == "ping":
            return EncodedResponse(_response(parsed.id, b"{}"))
        notifier = _Notifier(notify)
        try:
            response = await self._handlers.answer(_request(parsed, notifier.notify))
            if response.message is not None:
                return EncodedResponse(response.message, call_id=response.call_id)
            result = to_json(shape(response.result or {}, parsed.modern))
            return EncodedResponse(_response(parsed.id, result), call_id=response.call_id)
        except RpcError as error:
            return encode_error(parsed.id, error.code, error.message, error.data)
        finally:
            notifier.closed = True


def _request(parsed: ParsedRequest, notify: Notify) -> Request:
    params, session = parsed.params, parsed.session
    meta = params.get("_meta", {})
    client = ClientInfo(
        capabilities=parsed.capabilities,
        meta=meta,
        ask=partial(session.ask, notify) if session is not None else None,
        log=partial(_log, notify) if parsed.level is not None else None,
        level=parsed.level,
        modern=session is None,
        reply_to=parsed.id if parsed.relayed else None,
    )
    token = meta.get("progressToken")
    progress = no_progress if token is None else partial(_progress, notify, token)
    return Request(parsed.method, params, parsed.version, parsed.caller, parsed.chat, client, session, progress)


class _Notifier:
    """Sends the notifications of one request until its response."""

    __slots__ = ("_notify", "closed")

    def __init__(self, notify: Notify) -> None:
        self.closed = False
        self._notify = notify

    async def notify(self, message: Mapping[str, Any]) -> None:
        if not self.closed:
            await self._notify(message)


async def _progress(
    notify: Notify, token: RequestId, done: float, total: float | None = None, message: str | None = None
) -> None:
    values = {"progressToken": token, "progress": done, "total": total, "message": message}
    params = {key: value for key, value in values.items() if value is not None}
    await notify({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


async def _log(notify: Notify, entry: Mapping[str, Any]) -> None:
    if entry.get("level") in LOG_LEVELS:
        await notify({"jsonrpc": "2.0", "method": "notifications/message", "params": dict(entry)})


def encode_error(request_id: RequestId, code: int, message: str, data: Any = None) -> EncodedResponse:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return EncodedResponse(to_json({"jsonrpc": "2.0", "id": request_id, "error": error}), error=code)


def encode_result(request_id: RequestId, result: Mapping[str, Any]) -> bytes:
    return _response(request_id, to_json(result))


def _response(request_id: RequestId, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (orjson.dumps(request_id), result)
