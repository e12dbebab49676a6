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

from gateway.calls import Caller, ClientInfo, Progress, no_progress, to_json
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
from gateway.protocol.jsonrpc import RequestId
from gateway.serve.mcp.handlers import Handlers, convert_error
from gateway.serve.mcp.request import TRACEPARENT, Request, Response, caller_of, client_name
from gateway.serve.mcp.results import shape
from gateway.serve.mcp.sessions import Notify, Session
from gateway.tasks import CallScope

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
# The part of `_meta` that is no different for two requests that are equal; 1 equals true.
_ENVELOPE = frozenset({PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY})
_INITIALIZE = frozenset({"protocolVersion", "capabilities", "clientInfo", "_meta"})


class ServedCall(CallScope):
    """A request that is answered here, cancelled on demand without an exception (see `cancelled_caught`). Messages for
    its client after its response are dropped."""

    ended = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.ended = True
        return super().__exit__(kind)

    async def notify(self, message: Mapping[str, Any]) -> None:
        """Send a message of the request to its client."""
        if not self.ended:
            await self.send(message)

    async def send(self, message: Mapping[str, Any]) -> None:
        raise NotImplementedError


@dataclass(slots=True)
class Envelope:
    """The `_meta` in which a client of a modern version describes itself, and what it says. `principal` sent it.
    `varies` says that `client` is made anew for each request."""

    principal: Principal
    version: str
    caller: Caller
    client: ClientInfo
    varies: bool


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
    notify: Notify,
    relayed: bool = False,
    methods: frozenset[str] = METHODS,
    known: Envelope | None = None,
) -> tuple[Request, Envelope] | None:
    """Parse the request of a client of a modern version, which describes itself in every request. `known` is its
    description in an earlier one, which most clients repeat."""
    request = _parse_request(message, methods)
    if request is None:
        return None
    number, method, params, meta = request
    if known is None or known.principal is not principal or known.client.meta != meta:
        known = _parse_envelope(meta, principal)
        if known is None:
            return None
    client = known.client
    if known.varies:
        client = client.replace(meta=meta, log=None if client.level is None else partial(_log, notify))
    progress = _progress_to(notify, meta)
    return Request(method, params, known.version, known.caller, chat, client, None, progress, number, relayed), known


def _parse_envelope(meta: Mapping[str, Any], principal: Principal) -> Envelope | None:
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
    client = ClientInfo(capabilities, meta, level=level, modern=True)
    return Envelope(principal, version, caller, client, varies=not meta.keys() <= _ENVELOPE)


def parse_in_session(
    message: Mapping[str, Any], session: Session, chat: str, notify: Notify, methods: frozenset[str] = METHODS
) -> Request | None:
    """Parse the request of a client of a handshake version."""
    request = _parse_request(message, methods)
    if request is None or str(request[0]) in session.calls or PROTOCOL_VERSION_META_KEY in request[3]:
        return None
    number, method, params, meta = request
    log = None if session.level is None else partial(_log, notify)
    ask = partial(session.ask, notify) if session.capabilities else None  # without any, it can be asked nothing
    client = ClientInfo(session.capabilities, meta, {}, ask, log, session.level)
    progress = _progress_to(notify, meta)
    return Request(method, params, session.version, session.caller, chat, client, session, progress, number)


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
) -> tuple[RequestId, str, Mapping[str, Any], Mapping[str, Any]] | None:
    """Return its id, method, parameters and `_meta`."""
    number, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if type(number) not in _IDS or type(method) is not str or method not in methods or type(params) is not dict:
        return None
    meta = params.get("_meta", {})
    if type(meta) is not dict or type(meta.get("progressToken", 0)) not in _IDS:
        return None
    if not message.keys() <= _MESSAGE or not params.keys() <= _KEYS[method]:
        return None
    if method == "tools/call":
        fits = type(params.get("name")) is str and type(params.get("arguments", {})) is dict
    else:
        fits = method != "tools/list" or type(params.get("cursor", "")) is str
    return (number, method, params, meta) if fits else None  # type: ignore[return-value]  # its type is checked above


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

    async def answer(self, request: Request) -> Response:
        """Answer a request: the response has its message."""
        if request.method == "tools/list" and self._handlers.first_lists() is None:
            with suppress(GatewayError):  # the handlers word the error
                cursor, apps = request.params.get("cursor"), supports_apps(request.client.capabilities)
                page = self._handlers.tools.page_json(cursor, request.modern, request.caller, apps)
                return Response(message=_encode_response(request.id, page))
        if request.method == "ping":
            return Response(message=_encode_response(request.id, b"{}"))
        try:
            response = await self._handlers.answer(request)
            if not response.message:
                result = to_json(shape(response.result or {}, request.modern))
                response.message = _encode_response(request.id, result)
            return response
        except Exception as error:
            fault = convert_error(error, request.method, request.params, request.modern)
            response = encode_error(request.id, fault.code, fault.message, fault.data)
            response.retry_after = fault.retry_after
            return response


def _progress_to(notify: Notify, meta: Mapping[str, Any]) -> Progress:
    token = meta.get("progressToken")
    return no_progress if token is None else partial(_progress, notify, token)


async def _progress(
    notify: Notify, token: RequestId, done: float, total: float | None = None, message: str | None = None
) -> None:
    values = {"progressToken": token, "progress": done, "total": total, "message": message}
    params = {key: value for key, value in values.items() if value is not None}
    await notify({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


async def _log(notify: Notify, entry: Mapping[str, Any]) -> None:
    if entry.get("level") in LOG_LEVELS:
        await notify({"jsonrpc": "2.0", "method": "notifications/message", "params": dict(entry)})


def encode_error(request_id: RequestId, code: int, message: str, data: Any = None) -> Response:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return Response(message=to_json({"jsonrpc": "2.0", "id": request_id, "error": error}), error=code)


def encode_result(request_id: RequestId, result: Mapping[str, Any]) -> bytes:
    return _encode_response(request_id, to_json(result))


def _encode_response(request_id: RequestId, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (orjson.dumps(request_id), result)
