"""Requests to servers that may ask before they answer, whatever era each side speaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from gateway.calls import Ask, Call, ClientInfo, Log, frozen, no_progress, to_json
from gateway.errors import GatewayError, Timeout, ToolFailed, Unavailable
from gateway.mcp_client import McpClient
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
from gateway.sources.upstreams.suspended_calls import STATE, SuspendedCalls
from gateway.sources.upstreams.upstream import Upstream


@frozen
class UpstreamRequest:
    """One MCP request to `server`, in its own names. `call` says who makes it, for which chat, and how its client is
    reached; `about` names it to people. It may take `seconds`, those of questions to the client not counted; None
    leaves that to whoever calls. The operator has `trusted` the server or not."""

    method: str
    params: Mapping[str, Any]
    call: Call
    about: str
    server: str
    seconds: float | None = None
    trusted: bool = False

    @property
    def client(self) -> ClientInfo:
        return self.call.client or NOBODY

    @property
    def identity(self) -> tuple[Any, ...]:
        """Whose request it is, and for what: an answer counts for nothing else."""
        return self.call.caller.principal, self.call.chat, self.about, self.method, to_json(self.params)

    def by(self, call: Call) -> UpstreamRequest:
        return replace(self, call=call)


# For calls that come from no MCP client.
NOBODY = ClientInfo()


# By what a server may ask: what a client says that can be asked it.
CAPABILITIES = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}

METHOD_NOT_FOUND = -32601


def question_capabilities(client: ClientInfo) -> dict[str, Any]:
    """Those of the client's capabilities that are about being asked, as far as it can be asked at all."""
    if not client.capabilities or (not client.modern and client.ask is None):
        return {}
    return {key: value for key, value in client.capabilities.items() if key in CAPABILITIES.values()}


def forwarded_capabilities(client: ClientInfo) -> dict[str, Any]:
    """The client's capabilities as a server is told them: without those it cannot make good."""
    if not client.capabilities:
        return {}
    others = {key: value for key, value in client.capabilities.items() if key not in CAPABILITIES.values()}
    return {**others, **question_capabilities(client)}


def can_ask(client: ClientInfo, method: str, params: Mapping[str, Any]) -> bool:
    """Whether the client said that it can be asked this; `elicitation` alone means forms, `sampling` no tools."""
    said = question_capabilities(client).get(CAPABILITIES.get(method, ""))
    if not isinstance(said, Mapping):
        return False
    if method == "elicitation/create":
        return "url" in said if params.get("mode") == "url" else "form" in said or "url" not in said
    return method != "sampling/createMessage" or not params.get("tools") or "tools" in said


async def ask_client(client: ClientInfo, ask: Ask | None, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the client what it said it can be asked; `RpcError` for anything else, and when it refuses."""
    if ask is None or not can_ask(client, method, params):
        raise RpcError(METHOD_NOT_FOUND, f"the client at the other end cannot be asked for {method}")
    return await ask(method, params)


def label_input_requests(result: Mapping[str, Any], request: UpstreamRequest) -> dict[str, dict[str, Any]]:
    """The questions of an `input_required` result, labelled, by the server's own keys; refused when the client did not
    say that it can be asked that, and when one passes for the gateway's own."""
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
    """Have the server tell what is wanted: what to put into `_meta` for one of the newest era. An older one is set
    once for all who share the link, to the most that anybody wants."""
    if link.modern:
        return {LOG_LEVEL: level}
    wanted = _rank(level)
    if "logging" in link.capabilities and wanted < _set.get(link, len(LEVELS)):
        _set[link] = wanted
        try:
            await link.request("logging/setLevel", {"level": level}, timeout=LOG_LEVEL_SECONDS)
        except (GatewayError, RpcError) as error:
            log.debug("%s takes no log level: %s", link.label, error)
    return {}


def log_forwarder(client: ClientInfo, server: str) -> Log | None:
    """Hands on what the client wants to hear, under the server's name; None when it wants nothing."""
    tell = client.log
    if tell is None or client.level is None:
        return None
    least = _rank(client.level)

    async def told(said: Mapping[str, Any]) -> None:
        if _rank(said.get("level")) >= least:
            await tell({**said, "logger": label_logger(server, said.get("logger"))})

    return told


def _rank(level: Any) -> int:
    return LEVELS.index(level) if level in LEVELS else 0


INVALID_PARAMS = -32602
# How often a server may ask before it answers.
ROUNDS = 16

# How long a client may take for one answer to a request that has a limit.
ANSWER_SECONDS = 600.0

_PRIVATE_META = ("io.modelcontextprotocol/", "dev.toolgate/")

Result = dict[str, Any]


class RequestForwarder:
    """A client of the handshake era is asked while its request runs; one of the newest gets the questions as the
    answer, and comes again with its answers."""

    def __init__(self, parking: SuspendedCalls | None = None) -> None:
        self._parking = parking or SuspendedCalls()

    async def answer(self, upstream: Upstream, request: UpstreamRequest) -> Result:
        """The server's result; its own error as `UpstreamFault`. `input_required` leaves only for a client of the
        newest era."""
        client = request.client
        try:
            if client.answers and str(client.answers.get("requestState", "")).startswith(STATE):
                return await self._parking.resume(request)
            if (
                client.modern
                and question_capabilities(client)
                and not (await upstream.connection_for(request.call).connect()).modern
            ):
                return await self._parking.run(request, partial(_relay, upstream))
            return await _relay(upstream, client.ask, request)
        except RpcError as fault:
            raise label_fault(request.server, fault, request.trusted) from None
        except Timeout:
            raise
        except Unavailable as error:
            raise _naming(upstream, error) from None

    async def close(self) -> None:
        """End what waits for answers."""
        await self._parking.close()


async def _relay(upstream: Upstream, ask: Ask | None, request: UpstreamRequest) -> Result:
    """What the server answers, on the first way to it on which nobody is being asked something."""
    call, client = request.call, request.client
    while True:
        lane = upstream.connection_for(call)
        with lane.use():
            link = lane.client or await lane.connect()
            if not upstream.verified:
                await upstream.verify()
            if call.tool is not None:
                upstream.refuse_changed(call.tool)
            if link.modern:
                answer = await _send(link, request, None, unwrap_state(client.answers, request.trusted))
                return answer if answer.get("resultType") != "input_required" else await _rounds(link, request, answer)
            asker = ask and _asker(upstream, lane, link, partial(ask_client, client, ask))
            try:
                # Over a wire that does not say which call a question belongs to, one call at a time may be asked.
                async with lane.exclusive() if upstream.asks else nullcontext():
                    answer = await _send(link, request, asker)
                if answer.get("resultType") == "input_required":
                    reason = f"{request.about}: {link.protocol_version} has no input_required"
                    raise ToolFailed(reason, code="UPSTREAM_ERROR")
                return answer
            except ConnectionBusy:
                continue
            finally:
                upstream.asks = upstream.asks or link.asks_mid_call


def _asker(upstream: Upstream, lane: UpstreamConnection, link: McpClient, ask: Ask) -> Ask:
    """`ask`, naming the server, and letting others know that the lane waits for an answer."""

    async def asked(method: str, params: Mapping[str, Any]) -> Result:
        upstream.asks = upstream.asks or link.asks_mid_call
        try:
            labelled = label_question(upstream.spec.name, method, params, upstream.spec.terms.trusted)
        except ToolFailed as refusal:
            raise RpcError(INVALID_PARAMS, refusal.message) from None
        with lane.waiting_for_input() if upstream.asks else nullcontext():
            return await ask(method, labelled)

    return asked


async def _rounds(link: McpClient, request: UpstreamRequest, answer: Result) -> Result:
    """The result of a server that asks by answering: a client of its kind is handed the questions, any other
    is asked here, round by round."""
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
    raise ToolFailed(f"{request.about} asked more than {ROUNDS} times without an answer", code="UPSTREAM_ERROR")


def _send(
    link: McpClient, request: UpstreamRequest, ask: Ask | None, answers: Mapping[str, Any] | None = None
) -> Awaitable[Result]:
    if request.client.level is None and request.seconds is None:
        return _sending(link, request, ask, answers)
    return _send_in_time(link, request, ask, answers)


async def _send_in_time(
    link: McpClient, request: UpstreamRequest, ask: Ask | None, answers: Mapping[str, Any] | None
) -> Result:
    """Send it, once the server knows what of its log is wanted; the answer must come in time where there is a limit."""
    level, seconds = request.client.level, request.seconds
    told = await request_log_level(link, level) if level is not None else {}
    if seconds is None:
        return await _sending(link, request, ask, answers, told)
    limit = asyncio.timeout(seconds)
    asker = ask and _unhurried(limit, seconds, ask)
    try:
        async with limit:
            return await _sending(link, request, asker, answers, told)
    except TimeoutError:
        raise Timeout(f"{request.about}: no answer to {request.method} within {seconds:g} s") from None


def _sending(
    link: McpClient,
    request: UpstreamRequest,
    ask: Ask | None,
    answers: Mapping[str, Any] | None,
    told: Mapping[str, Any] | None = None,
) -> Awaitable[Result]:
    client, call = request.client, request.call
    meta = {key: value for key, value in client.meta.items() if not key.startswith(_PRIVATE_META)}
    heeded = call.progress is not no_progress and (call.client is None or client.meta.get("progressToken") is not None)
    return link.request(
        request.method,
        {**request.params, **answers} if answers else request.params,
        on_request=ask,
        on_progress=call.progress if heeded else None,
        on_log=log_forwarder(client, request.server) if client.log is not None else None,
        meta={**meta, **told} if told else meta,
        capabilities=forwarded_capabilities(client) if link.modern else None,
        reply_to=client.reply_to,
    )


def _unhurried(limit: asyncio.Timeout, seconds: float, ask: Ask) -> Ask:
    """`ask`, with time for a person to answer, and then as much for the server as it had at first."""
    now, open_ = asyncio.get_running_loop().time, 0

    async def asked(method: str, params: Mapping[str, Any]) -> Result:
        nonlocal open_
        open_ += 1
        limit.reschedule(now() + ANSWER_SECONDS)
        try:
            return await ask(method, params)
        finally:
            open_ -= 1
            if not open_:
                with suppress(RuntimeError):  # the request has ended, and the question with it
                    limit.reschedule(now() + seconds)

    return asked


def _naming(upstream: Upstream, error: Unavailable) -> Unavailable:
    """The same, saying which server it is about."""
    name = upstream.spec.name
    if error.details.get("server") == name:
        return error
    message = f"the upstream server {name!r} did not answer: {error.message}"
    return Unavailable(message, code=error.code, server=name, **error.details)
