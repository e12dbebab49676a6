"""Forward requests to upstream servers, and their questions to the client, whichever protocol era each side speaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gateway.calls import ANSWER_SECONDS, Ask, Call, ClientInfo, Log, frozen, lazy, to_json
from gateway.errors import Forbidden, GatewayError, Timeout, ToolFailed, Unavailable
from gateway.mcp_client import McpClient, Unauthorized
from gateway.names import new_id
from gateway.oauth.store import LoginAccount
from gateway.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    UI_EXTENSION,
)
from gateway.protocol.jsonrpc import RpcError
from gateway.sources.upstreams.connection import ConnectionBusy, UpstreamConnection
from gateway.sources.upstreams.labels import (
    STATE_PREFIX,
    label_fault,
    label_logger,
    label_question,
    refuse_question,
    unwrap_state,
    wrap_state,
)
from gateway.sources.upstreams.suspended_calls import SuspendedCalls, is_resumed
from gateway.sources.upstreams.upstream import Upstream

if TYPE_CHECKING:
    from gateway.oauth.callback_server import PendingLogin


@frozen
class UpstreamRequest:
    """One MCP request to `server`, in the server's names. `call` has the caller, the chat and the client; `about` names
    the request in messages. `seconds` is its timeout, without the time for questions to the client; None leaves that to
    the caller. `trusted` says whether the operator trusts the server."""

    method: str
    params: Mapping[str, Any]
    call: Call
    about: str
    server: str
    seconds: float | None = None
    trusted: bool = False

    @lazy
    def client(self) -> ClientInfo:
        return self.call.client or NOBODY

    @property
    def identity(self) -> tuple[Any, ...]:
        """The caller and the content of the request: an answer is valid for the same identity only."""
        return self.call.caller.principal, self.call.chat, self.about, self.method, to_json(self.params)

    def by(self, call: Call) -> UpstreamRequest:
        return replace(self, call=call)


# The client of calls that come from no MCP client.
NOBODY = ClientInfo()


# The client capability that each request of a server needs.
CAPABILITIES = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

# Extensions that pass through the gateway in both directions. Servers are told of no others: a task, for example, could
# not be followed by the client it is for.
RELAYED_EXTENSIONS = frozenset({UI_EXTENSION})

METHOD_NOT_FOUND = -32601


def question_capabilities(client: ClientInfo) -> dict[str, Any]:
    """The client's capabilities for questions; none if it cannot be asked at all."""
    if not client.capabilities or (not client.modern and client.ask is None):
        return {}
    return {key: value for key, value in client.capabilities.items() if key in CAPABILITIES.values()}


def server_capabilities(client: ClientInfo) -> dict[str, Any]:
    """The client's capabilities as the server sees them: only what the gateway forwards."""
    capabilities = question_capabilities(client)
    declared = client.capabilities.get("extensions")
    if isinstance(declared, Mapping):
        relayed = {name: value for name, value in declared.items() if name in RELAYED_EXTENSIONS}
        return {**capabilities, "extensions": relayed} if relayed else capabilities
    return capabilities


def can_ask(client: ClientInfo, method: str, params: Mapping[str, Any]) -> bool:
    """Return whether the client declared this capability; bare `elicitation` means forms, bare `sampling` no tools."""
    capability = question_capabilities(client).get(CAPABILITIES.get(method, ""))
    if not isinstance(capability, Mapping):
        return False
    if method == "elicitation/create":
        return "url" in capability if params.get("mode") == "url" else "form" in capability or "url" not in capability
    return method != "sampling/createMessage" or not params.get("tools") or "tools" in capability


async def ask_client(client: ClientInfo, ask: Ask | None, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Forward a question to the client; raises `RpcError` if it cannot be asked that, or refuses."""
    if ask is None or not can_ask(client, method, params):
        raise RpcError(METHOD_NOT_FOUND, f"the client does not support {method}")
    return await ask(method, params)


def label_input_requests(result: Mapping[str, Any], request: UpstreamRequest) -> dict[str, dict[str, Any]]:
    """The labelled questions of an `input_required` result, by the server's keys; refused when the client does not
    support one, or one imitates the gateway's own."""
    found: dict[str, dict[str, Any]] = {}
    if str(result.get("requestState", "")).startswith(STATE_PREFIX) and not request.trusted:
        raise refuse_question(request.server, "its requestState looks like one of Toolgate's own")
    asked = result.get("inputRequests")
    for key, each in asked.items() if isinstance(asked, dict) else ():
        method, params = (each.get("method"), each.get("params") or {}) if isinstance(each, dict) else (None, {})
        if not isinstance(params, dict) or not can_ask(request.client, str(method), params):
            raise ToolFailed(f"{request.about} asks for {method}, which this caller cannot answer", code="CANNOT_ASK")
        found[key] = {**each, "params": label_question(request.server, str(method), params, request.trusted)}
    return found


LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
LOG_LEVEL_SECONDS = 10.0

log = logging.getLogger(__name__)
_set: WeakKeyDictionary[McpClient, int] = WeakKeyDictionary()


async def request_log_level(link: McpClient, level: str) -> dict[str, str]:
    """Request log messages from the server: returns what to add to `_meta` for a modern one. For a handshake-era server
    the level is set for all who share the connection, to the lowest that anybody wants."""
    if link.modern:
        return {LOG_LEVEL: level}
    wanted = _rank(level)
    if "logging" in link.capabilities and wanted < _set.get(link, len(LEVELS)):
        _set[link] = wanted
        try:
            await link.request("logging/setLevel", {"level": level}, timeout=LOG_LEVEL_SECONDS)
        except (GatewayError, RpcError) as error:
            log.debug("%s refused the log level: %s", link.label, error)
    return {}


def log_forwarder(client: ClientInfo, server: str) -> Log | None:
    """A callback that forwards log messages of the client's level and above; None if the client wants none."""
    send = client.log
    if send is None or client.level is None:
        return None
    least = _rank(client.level)

    async def forward(message: Mapping[str, Any]) -> None:
        if _rank(message.get("level")) >= least:
            await send({**message, "logger": label_logger(server, message.get("logger"))})

    return forward


def _rank(level: Any) -> int:
    return LEVELS.index(level) if level in LEVELS else 0


INVALID_PARAMS = -32602
# Questions a server may ask before its result.
ROUNDS = 16

# Time for a person to log in to a server, and between looks whether they have.
LOGIN_SECONDS = 300.0
LOGIN_POLL_SECONDS = 0.5
ELICIT = "elicitation/create"
UNAUTHORIZED = Unauthorized.default_code

_PRIVATE_META = ("io.modelcontextprotocol/", "dev.toolgate/")
_ENVELOPE = frozenset({PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY})

Result = dict[str, Any]
LoginPage = Callable[[LoginAccount], "PendingLogin"]


class RequestForwarder:
    """Forwards requests. A handshake-era client is asked while its request runs; a modern one gets the questions as
    its result, and calls again with its answers. `login_page` returns the address at which a person logs in to a
    server; there is none without HTTP."""

    def __init__(self, suspended: SuspendedCalls | None = None) -> None:
        self._suspended = suspended or SuspendedCalls()
        self.login_page: LoginPage | None = None

    async def answer(self, upstream: Upstream, request: UpstreamRequest) -> Result:
        """The server's result; its own error as `UpstreamFault`. Only a modern client gets `input_required`. A person
        whose login is missing is asked to log in."""
        client = request.client
        try:
            if is_resumed(client):
                return await self._suspended.resume(request)
            if (
                client.modern
                and question_capabilities(client)
                and not (await upstream.connection_for(request.call).connect()).modern
            ):
                return await self._suspended.run(request, partial(_relay, upstream))
            return await _relay(upstream, client.ask, request)
        except RpcError as fault:
            raise label_fault(request.server, fault, request.trusted) from None
        except Timeout:
            raise
        except Unavailable as error:
            page = self._find_login_page(upstream, request, error)
            if page is None:
                raise _with_server(upstream, error) from None
        return await self._ask_to_log_in(upstream, request, page)

    def _find_login_page(self, upstream: Upstream, request: UpstreamRequest, error: Unavailable) -> PendingLogin | None:
        """Return the page at which the client is asked to log in, if that would help. Raise its address for a client
        that cannot be asked."""
        account = upstream.account_for(request.call.caller.principal) if error.code == UNAUTHORIZED else None
        if account is None or self.login_page is None or is_resumed(request.client):  # asked once is enough
            return None
        page = self.login_page(account)
        if not can_ask(request.client, ELICIT, {"mode": "url"}):
            link = f"log in to {upstream.spec.name!r} at {page.url} with your own account, then call again"
            raise Unauthorized(link, server=upstream.spec.name, login_url=page.url) from None
        return page

    async def _ask_to_log_in(self, upstream: Upstream, request: UpstreamRequest, page: PendingLogin) -> Result:
        async def relay(ask: Ask | None, request: UpstreamRequest) -> Result:
            assert ask is not None  # noqa: S101 - `can_ask` found one
            await _wait_for_login(ask, request, page)
            return await _relay(upstream, ask, request)

        # The response to this request is not the server's: a modern client gets it with another request.
        request, client = request.by(request.call.replace(reply_to=None)), request.client
        try:
            return await (self._suspended.run(request, relay) if client.modern else relay(client.ask, request))
        except RpcError as fault:
            raise label_fault(request.server, fault, request.trusted) from None

    async def close(self) -> None:
        """Cancel calls that wait for answers."""
        await self._suspended.close()


async def _wait_for_login(ask: Ask, request: UpstreamRequest, page: PendingLogin) -> None:
    """Ask a person to log in, and wait until they have."""
    params = {"mode": "url", "message": page.message, "url": page.url}
    if not request.client.modern:  # removed in 2026-07-28
        params["elicitationId"] = new_id()
    answer = await ask(ELICIT, params)
    if answer.get("action") != "accept":
        raise Forbidden(
            f"{request.about} needs a login to {request.server!r}, which was declined", code="LOGIN_DECLINED"
        )
    for _ in range(int(LOGIN_SECONDS / LOGIN_POLL_SECONDS)):
        if page.is_done():
            return
        await request.call.progress(0, None, f"waiting for the login to {request.server!r}")  # puts the deadline off
        await asyncio.sleep(LOGIN_POLL_SECONDS)
    raise Timeout(
        f"nobody logged in to {request.server!r} within {LOGIN_SECONDS / 60:g} minutes; call again",
        code="LOGIN_TIMED_OUT",
    )


async def _relay(upstream: Upstream, ask: Ask | None, request: UpstreamRequest) -> Result:
    """Send the request on the first connection that does not wait for user input."""
    call, client = request.call, request.client
    while True:
        connection = upstream.connection_for(call)
        connection.users += 1
        try:
            link = connection.client or await connection.connect()
            if not upstream.verified:
                await upstream.verify()
            if call.tool is not None and upstream.current.get(call.tool.id) is not call.tool:
                upstream.refuse_changed(call.tool)
            if link.modern:
                answers = unwrap_state(client.answers, request.trusted) if client.answers else None
                answer = await _send(link, request, None, answers)
                if answer.get("resultType") == "input_required":
                    answer = await _answer_rounds(link, request, answer)
                return _require_known(request, answer)
            asker = ask and _asker(upstream, connection, link, partial(ask_client, client, ask))
            try:
                if upstream.asks:  # a handshake-era question does not name its call: one call at a time may be asked
                    async with connection.exclusive():
                        answer = await _send(link, request, asker)
                else:
                    answer = await _send(link, request, asker)
                if answer.get("resultType") == "input_required":
                    raise ToolFailed(
                        f"{request.about}: {link.protocol_version} has no input_required", code="UPSTREAM_ERROR"
                    )
                return _require_known(request, answer)
            except ConnectionBusy:
                continue
            finally:
                upstream.asks = upstream.asks or link.asks_mid_call
        finally:
            connection.release()


def _require_known(request: UpstreamRequest, answer: Result) -> Result:
    """The result, if it is one that clients of the gateway understand. A task would look like an empty result. Some
    servers leave `content` out beside structured content or an error."""
    kind = answer.get("resultType")
    is_result = isinstance(answer.get("content"), list) or request.method != "tools/call"
    is_result = is_result or answer.get("structuredContent") is not None or bool(answer.get("isError"))
    if kind == "input_required" or (is_result and kind in (None, "complete")):
        return answer
    if kind is None and "task" in answer:  # a task of 2025-11-25
        kind = "task"
    if kind in (None, "complete"):
        fields = ", ".join(map(repr, sorted(answer.keys() - {"_meta", "resultType"}))) or "no field"
        raise ToolFailed(
            f"{request.about} answered with no result of a tool: neither 'content' nor 'structuredContent', "
            f"but {fields:.200}",
            code="UPSTREAM_ERROR",
        )
    raise ToolFailed(
        f"{request.about} answered with a result of the type {kind!r:.60}, which the gateway does not forward",
        code="UPSTREAM_ERROR",
    )


def _asker(upstream: Upstream, connection: UpstreamConnection, link: McpClient, ask: Ask) -> Ask:
    """`ask`, with labelled questions, marking the connection as waiting for user input."""

    async def ask_and_wait(method: str, params: Mapping[str, Any]) -> Result:
        upstream.asks = upstream.asks or link.asks_mid_call
        try:
            labelled = label_question(upstream.spec.name, method, params, upstream.spec.terms.trusted)
        except ToolFailed as refusal:
            raise RpcError(INVALID_PARAMS, refusal.message) from None
        with connection.waiting_for_input() if upstream.asks else nullcontext():
            return await ask(method, labelled)

    return ask_and_wait


async def _answer_rounds(link: McpClient, request: UpstreamRequest, answer: Result) -> Result:
    """Handle `input_required` of a modern server: a modern client gets the questions, any other client is asked here,
    round by round."""
    client = request.client
    for _ in range(ROUNDS):
        asked = label_input_requests(answer, request)
        if client.modern:
            answer = wrap_state(answer, request.trusted)
            return {**answer, "inputRequests": asked} if "inputRequests" in answer else answer
        given = {
            key: await ask_client(client, client.ask, each["method"], each["params"]) for key, each in asked.items()
        }
        answers: dict[str, Any] = {"inputResponses": given}
        if "requestState" in answer:
            answers["requestState"] = answer["requestState"]
        answer = await _send(link, request, None, answers)
        if answer.get("resultType") != "input_required":
            return answer
    raise ToolFailed(f"{request.about} asked more than {ROUNDS} times without a result", code="UPSTREAM_ERROR")


def _send(
    link: McpClient, request: UpstreamRequest, ask: Ask | None, answers: Mapping[str, Any] | None = None
) -> Awaitable[Result]:
    if request.client.level is None and request.seconds is None:
        return _send_request(link, request, ask, answers)
    return _send_in_time(link, request, ask, answers)


async def _send_in_time(
    link: McpClient, request: UpstreamRequest, ask: Ask | None, answers: Mapping[str, Any] | None
) -> Result:
    """Set the log level and send the request, within its timeout."""
    level, seconds = request.client.level, request.seconds
    log_meta = await request_log_level(link, level) if level is not None else {}
    if seconds is None:
        return await _send_request(link, request, ask, answers, log_meta)
    limit = asyncio.timeout(seconds)
    asker = ask and _extend_timeout(limit, seconds, ask)
    try:
        async with limit:
            return await _send_request(link, request, asker, answers, log_meta)
    except TimeoutError:
        raise Timeout(f"{request.about}: no answer to {request.method} within {seconds:g} s") from None


def _send_request(
    link: McpClient,
    request: UpstreamRequest,
    ask: Ask | None,
    answers: Mapping[str, Any] | None,
    log_meta: Mapping[str, Any] | None = None,
) -> Awaitable[Result]:
    client, call = request.client, request.call
    meta = log_meta
    if call.trace is not None or not client.meta.keys() <= _ENVELOPE:  # most requests have nothing else
        meta = {key: value for key, value in client.meta.items() if not key.startswith(_PRIVATE_META)}
        if call.trace is not None:
            meta["traceparent"] = call.trace
        meta |= log_meta or {}
    return link.request(
        request.method,
        {**request.params, **answers} if answers else request.params,
        on_request=ask,
        on_progress=call.progress if call.wants_progress else None,
        on_log=log_forwarder(client, request.server) if client.log is not None else None,
        meta=meta,
        capabilities=server_capabilities(client) if link.modern and client.capabilities else {},
        reply_to=call.reply_to,
    )


def _extend_timeout(limit: asyncio.Timeout, seconds: float, ask: Ask) -> Ask:
    """`ask`, extending the timeout: time for a person to answer, then again the full timeout for the server."""
    now, open_ = asyncio.get_running_loop().time, 0

    async def ask_and_wait(method: str, params: Mapping[str, Any]) -> Result:
        nonlocal open_
        open_ += 1
        limit.reschedule(now() + ANSWER_SECONDS)
        try:
            return await ask(method, params)
        finally:
            open_ -= 1
            if not open_:
                with suppress(RuntimeError):  # the request has ended meanwhile
                    limit.reschedule(now() + seconds)

    return ask_and_wait


def _with_server(upstream: Upstream, error: Unavailable) -> Unavailable:
    """The same error, naming the server."""
    name = upstream.spec.name
    if error.details.get("server") == name:
        return error
    message = f"the upstream server {name!r} did not answer: {error.message}"
    return Unavailable(message, code=error.code, server=name, **error.details)
