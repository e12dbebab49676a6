"""Requests to servers that may ask before they answer, whatever era each side speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from gateway.calls import Ask, no_progress
from gateway.errors import Timeout, ToolFailed, Unavailable
from gateway.mcp_client import Link, McpFault
from gateway.sources.upstreams.connection import Taken, UpstreamConnection
from gateway.sources.upstreams.labels import label_fault, label_question, unwrap_state, wrap_state
from gateway.sources.upstreams.logs import heard, tune
from gateway.sources.upstreams.questions import askable, asked_in, put, shown
from gateway.sources.upstreams.requests import Request
from gateway.sources.upstreams.suspended_calls import STATE, SuspendedCalls
from gateway.sources.upstreams.upstream import Upstream

INVALID_PARAMS = -32602
# How often a server may ask before it answers.
ROUNDS = 16

# How long a client may take for one answer to a request that has a limit.
ANSWER_SECONDS = 600.0

_PRIVATE_META = ("io.modelcontextprotocol/", "dev.toolgate/")

Result = dict[str, Any]


class Asking:
    """A client of the handshake era is asked while its request runs; one of the newest gets the questions as the
    answer, and comes again with its answers."""

    def __init__(self, parking: SuspendedCalls | None = None) -> None:
        self._parking = parking or SuspendedCalls()

    async def answer(self, upstream: Upstream, request: Request) -> Result:
        """The server's result; its own error as `UpstreamFault`. `input_required` leaves only for a client of the
        newest era."""
        peer = request.peer
        try:
            if peer.answers and str(peer.answers.get("requestState", "")).startswith(STATE):
                return await self._parking.resume(request)
            if peer.modern and askable(peer) and not (await upstream.lane(request.call).link()).modern:
                return await self._parking.run(request, partial(_relay, upstream))
            return await _relay(upstream, peer.ask, request)
        except McpFault as fault:
            raise label_fault(request.server, fault, request.trusted) from None
        except Timeout:
            raise
        except Unavailable as error:
            raise _naming(upstream, error) from None

    async def close(self) -> None:
        """End what waits for answers."""
        await self._parking.close()


async def _relay(upstream: Upstream, ask: Ask | None, request: Request) -> Result:
    """What the server answers, on the first way to it on which nobody is being asked something."""
    call, peer = request.call, request.peer
    while True:
        lane = upstream.lane(call)
        with lane.use():
            link = lane.live or await lane.link()
            if not upstream.verified:
                await upstream.verify()
            if call.tool is not None:
                upstream.refuse_changed(call.tool)
            if link.modern:
                answer = await _send(link, request, None, unwrap_state(peer.answers, request.trusted))
                return answer if answer.get("resultType") != "input_required" else await _rounds(link, request, answer)
            asker = ask and _asker(upstream, lane, link, partial(put, peer, ask))
            try:
                # Over a wire that does not say which call a question belongs to, one call at a time may be asked.
                async with lane.turn() if upstream.asks else nullcontext():
                    answer = await _send(link, request, asker)
                if answer.get("resultType") == "input_required":
                    raise ToolFailed(f"{request.about}: {link.era} has no input_required", code="UPSTREAM_ERROR")
                return answer
            except Taken:
                continue
            finally:
                upstream.asks = upstream.asks or link.asks_mid_call


def _asker(upstream: Upstream, lane: UpstreamConnection, link: Link, ask: Ask) -> Ask:
    """`ask`, naming the server, and letting others know that the lane waits for an answer."""

    async def asked(method: str, params: Mapping[str, Any]) -> Result:
        upstream.asks = upstream.asks or link.asks_mid_call
        try:
            labelled = label_question(upstream.spec.name, method, params, upstream.spec.terms.trusted)
        except ToolFailed as refusal:
            raise McpFault(INVALID_PARAMS, refusal.message) from None
        with lane.asked() if upstream.asks else nullcontext():
            return await ask(method, labelled)

    return asked


async def _rounds(link: Link, request: Request, answer: Result) -> Result:
    """The result of a server that asks by answering: a client of its kind is handed the questions, any other
    is asked here, round by round."""
    peer = request.peer
    for _ in range(ROUNDS):
        asked = asked_in(answer, request)
        if peer.modern:
            answer = wrap_state(answer, request.trusted)
            return {**answer, "inputRequests": asked} if "inputRequests" in answer else answer
        given = {key: await put(peer, peer.ask, each["method"], each["params"]) for key, each in asked.items()}
        answers: dict[str, Any] = {"inputResponses": given}
        if "requestState" in answer:
            answers["requestState"] = answer["requestState"]
        answer = await _send(link, request, None, answers)
        if answer.get("resultType") != "input_required":
            return answer
    raise ToolFailed(f"{request.about} asked more than {ROUNDS} times without an answer", code="UPSTREAM_ERROR")


def _send(link: Link, request: Request, ask: Ask | None, answers: Mapping[str, Any] | None = None) -> Awaitable[Result]:
    if request.peer.level is None and request.seconds is None:
        return _sending(link, request, ask, answers)
    return _send_in_time(link, request, ask, answers)


async def _send_in_time(link: Link, request: Request, ask: Ask | None, answers: Mapping[str, Any] | None) -> Result:
    """Send it, once the server knows what of its log is wanted; the answer must come in time where there is a limit."""
    level, seconds = request.peer.level, request.seconds
    told = await tune(link, level) if level is not None else {}
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
    link: Link,
    request: Request,
    ask: Ask | None,
    answers: Mapping[str, Any] | None,
    told: Mapping[str, Any] | None = None,
) -> Awaitable[Result]:
    peer, call = request.peer, request.call
    meta = {key: value for key, value in peer.meta.items() if not key.startswith(_PRIVATE_META)}
    heeded = call.progress is not no_progress and (call.peer is None or peer.meta.get("progressToken") is not None)
    return link.request(
        request.method,
        {**request.params, **answers} if answers else request.params,
        ask=ask,
        progress=call.progress if heeded else None,
        log=heard(peer, request.server) if peer.log is not None else None,
        meta={**meta, **told} if told else meta,
        capabilities=shown(peer) if link.modern else None,
        reply_to=peer.reply_to,
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
