"""The short way for the two requests that are nearly all there is: `tools/call` and `tools/list`.

What it understands whole it answers; anything else (another method, a key or a value it does not expect) is left
to the SDK, which reads it from the beginning and finds the right words for what is wrong with it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import mcp_types as types
import orjson
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ..calls import Caller, Peer, no_progress, to_json
from ..errors import GatewayError
from .peers import LEVELS, fault_of, older
from .sessions import Say, Session
from .tools import Answer, Asked, Tools

SIZE = 1024 * 1024
"""Bytes of a request worth the hurry."""

REQUEST_CANCELLED = -32800
"""What a handshake-era request is answered that its client called off, as the SDK does."""

_DIGITS = bytes(ord("0") if chr(each).isdigit() and each < 128 else ord(" ") for each in range(256))
LONG_NUMBER = b"0" * 19
"""What may be more than 64 bits, which the fast parser would round."""

METHODS = frozenset({"tools/call", "tools/list"})
_MESSAGE = frozenset({"jsonrpc", "id", "method", "params"})
_IDS = (int, str)  # and not what is a kind of these: yes and no are integers, to Python alone
_CALL, _LIST = frozenset({"name", "arguments", "_meta"}), frozenset({"cursor", "_meta"})

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Written:
    """An answer as it leaves: the whole message. `error` is its code where it is one."""

    message: bytes
    error: int | None = None
    call_id: str | None = None


@dataclass(slots=True)
class Ready:
    """A request that can be answered here: who asks, and all that is known of the wire it came over."""

    id: int | str
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
    """A JSON-RPC message; None for what is better read by others."""
    if len(body) > SIZE or body.translate(_DIGITS).find(LONG_NUMBER) >= 0:  # `in` would raise
        return None
    try:
        message = orjson.loads(body)
    except ValueError:
        return None
    return message if isinstance(message, dict) and message.get("jsonrpc") == "2.0" else None


def modern(message: Mapping[str, Any], principal: str, chat: str, relayed: bool = False) -> Ready | None:
    """The request of a client of the newest era, which says with each what it is. `relayed` says that the answer of
    an upstream can be passed on as it is."""
    request = _request(message)
    if request is None:
        return None
    meta = request[2].get("_meta", {})
    version, capabilities = meta.get(types.PROTOCOL_VERSION_META_KEY), meta.get(types.CLIENT_CAPABILITIES_META_KEY)
    level = meta.get(types.LOG_LEVEL_META_KEY)
    if version not in MODERN_PROTOCOL_VERSIONS or not isinstance(capabilities, dict):
        return None
    if capabilities and not _usual(capabilities):
        return None
    if level is not None and not (isinstance(level, str) and level in LEVELS):
        return None
    info = meta.get(types.CLIENT_INFO_META_KEY)
    if info is not None and not _is_usual_info(info):
        return None
    caller = _caller(principal, None if info is None else f"{info['name']} {info['version']}"[:200])
    return Ready(*request, version, caller, chat, capabilities, level, None, relayed)


@lru_cache(maxsize=256)  # the same few clients make all the calls
def _caller(principal: str, client: str | None) -> Caller:
    return Caller(principal=principal, surface="mcp", client=client)


def in_session(message: Mapping[str, Any], session: Session, chat: str) -> Ready | None:
    """The request of a client of the handshake era, which said who it is when it began."""
    request = _request(message)
    if (
        request is None
        or str(request[0]) in session.calls
        or types.PROTOCOL_VERSION_META_KEY in request[2].get("_meta", {})
    ):
        return None
    return Ready(*request, session.version, session.caller, chat, session.capabilities, session.level(), session)


def _request(message: Mapping[str, Any]) -> tuple[int | str, str, Mapping[str, Any]] | None:
    number, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if not isinstance(method, str) or method not in METHODS or not message.keys() <= _MESSAGE:
        return None
    meta = params.get("_meta", {}) if isinstance(params, dict) else None
    if type(number) not in _IDS or not isinstance(meta, dict) or type(meta.get("progressToken", 0)) not in _IDS:
        return None
    if method == "tools/list":
        fits = params.keys() <= _LIST and isinstance(params.get("cursor", ""), str)
    else:
        fits = (
            params.keys() <= _CALL
            and isinstance(params.get("name"), str)
            and isinstance(params.get("arguments", {}), dict)
        )
    return (number, method, params) if fits else None  # type: ignore[return-value]  # its type is looked at above


def _usual(capabilities: Mapping[str, Any]) -> bool:
    """Whether they have the shape of nearly all: objects of objects, but that roots say yes or no to changes."""
    for name, said in capabilities.items():
        kinds = dict | bool if name == "roots" else dict
        if not isinstance(said, dict) or not all(isinstance(each, kinds) for each in said.values()):
            return False
    return True


def _is_usual_info(info: Any) -> bool:
    """Whether a client has a name and a version, and says nothing else but texts."""
    if not isinstance(info, dict) or not all(isinstance(said, str) for said in info.values()):
        return False
    return "name" in info and "version" in info


class Express:
    """Answers requests that are `Ready`."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def answer(self, request: Ready, say: Say) -> Written:
        """The answer to it. What is said before the answer goes through `say`, and nothing after it."""
        voice = _Voice(say)
        try:
            if request.method == "tools/list":
                return Written(
                    _response(request.id, self._tools.page_json(request.params.get("cursor"), request.modern))
                )
            answer = await self._tools.call(_asked(request, voice.say))
            return Written(answer.message or self._written(request, answer), call_id=answer.call_id)
        except MCPError as error:
            return failed(request.id, error.code, error.message, error.data)
        except GatewayError as refusal:
            fault = fault_of(refusal, request.modern)
            return failed(request.id, fault.code, fault.message, fault.data)
        except Exception:
            log.exception("%s failed unexpectedly", request.method)
            return failed(request.id, types.INTERNAL_ERROR, "the gateway failed; its log has the reason")
        finally:
            voice.over = True

    def _written(self, request: Ready, answer: Answer) -> bytes:
        assert answer.result is not None  # noqa: S101 - an answer is one or the other
        shown = self._tools.signed(answer.result) if request.modern else older(answer.result)
        return _response(request.id, to_json(shown))


def _asked(request: Ready, say: Say) -> Asked:
    params, session = request.params, request.session
    meta = params.get("_meta", {})
    peer = Peer(
        capabilities=request.capabilities,
        meta=meta,
        ask=partial(session.ask, say) if session is not None else None,
        log=partial(_log, say) if request.level is not None else None,
        level=request.level,
        modern=session is None,
        reply_to=request.id if request.relayed else None,
    )
    token = meta.get("progressToken")
    progress = no_progress if token is None else partial(_progress, say, token)
    arguments = params.get("arguments", {})
    return Asked(params["name"], arguments, request.version, request.chat, request.caller, peer, progress)


class _Voice:
    """Says things, until it is over."""

    __slots__ = ("_say", "over")

    def __init__(self, say: Say) -> None:
        self.over = False
        self._say = say

    async def say(self, message: Mapping[str, Any]) -> None:
        if not self.over:
            await self._say(message)


async def _progress(
    say: Say, token: int | str, done: float, total: float | None = None, message: str | None = None
) -> None:
    """Tell a client how far its call has come."""
    said = {"progressToken": token, "progress": done, "total": total, "message": message}
    params = {key: value for key, value in said.items() if value is not None}
    await say({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


def failed(request_id: int | str, code: int, message: str, data: Any = None) -> Written:
    """An error as an answer."""
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return Written(to_json({"jsonrpc": "2.0", "id": request_id, "error": error}), error=code)


async def _log(say: Say, said: Mapping[str, Any]) -> None:
    if said.get("level") in LEVELS:
        await say({"jsonrpc": "2.0", "method": "notifications/message", "params": dict(said)})


def _response(request_id: int | str, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (orjson.dumps(request_id), result)
