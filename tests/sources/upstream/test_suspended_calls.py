"""SuspendedCalls: a call goes on while its caller is away with the questions, but not for ever, and for nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT
from journeys.servers import labs

from gateway import Gateway
from gateway.calls import Call, Caller, ClientInfo, Outcome
from gateway.errors import Invalid, Unavailable
from gateway.sources.upstreams import suspended_calls
from gateway.sources.upstreams.forward import RequestForwarder, UpstreamRequest
from gateway.sources.upstreams.suspended_calls import SuspendedCalls

pytestmark = pytest.mark.anyio

ABLE: dict[str, Any] = {"elicitation": {}}
ASKING = {"method": "elicitation/create", "name": "who"}


@asynccontextmanager
async def gateway_to(
    directory: Path, seconds: float = 60.0, habits: str = "", sharing: str = "principal"
) -> AsyncIterator[Gateway]:
    """A gateway with a lab of the handshake era, whose parked calls wait so long."""
    server = {**labs.on_stdio("handshake", LAB_FILE=str(directory / "notes"), LAB_HABITS=habits), "sharing": sharing}
    settings = {"data_dir": str(directory / "data"), "approval": {"mode": "never"}, "mcpServers": {"lab": server}}
    async with Gateway.open(settings) as gateway:
        gateway.upstreams.source.forwarder = RequestForwarder(SuspendedCalls(seconds))
        yield gateway


def call(arguments: Mapping[str, Any] = ASKING, answers: Mapping[str, Any] | None = None, **more: Any) -> Call:
    """As a client of the newest era makes it."""
    return Call(
        name="lab__ask",
        arguments=arguments,
        client=ClientInfo(capabilities=ABLE, answers=answers or {}, modern=True),
        **more,
    )


def request(answers: Mapping[str, Any] | None = None, method: str = "tools/call", **more: Any) -> UpstreamRequest:
    return UpstreamRequest(
        method, {"name": "ask", "arguments": ASKING}, call(ASKING, answers, **more), "lab:ask", "lab"
    )


def answering(outcome: Outcome, answer: str = "me") -> dict[str, Any]:
    """What the client sends back with its answers to all that was asked."""
    assert outcome.wire is not None
    given = {"action": "accept", "content": {"answer": answer}}
    return {
        "requestState": outcome.wire["requestState"],
        "inputResponses": dict.fromkeys(outcome.wire["inputRequests"], given),
    }


def answers(outcome: Outcome) -> list[str]:
    assert outcome.content, outcome.error
    return [each["content"]["answer"] for each in json.loads(outcome.content[0]["text"])]


async def test_a_call_is_resumed_round_by_round(tmp_path: Path) -> None:
    async with gateway_to(tmp_path) as gateway:
        arguments = {**ASKING, "rounds": 2}
        first = await gateway.executor.call_tool(call(arguments))
        second = await gateway.executor.call_tool(call(arguments, answering(first, "one")))
        assert second.wire is not None
        assert second.wire["resultType"] == "input_required"
        [question] = second.wire["inputRequests"].values()
        assert question["params"]["message"] == labs.question("lab", "who 1")
        last = await gateway.executor.call_tool(call(arguments, answering(second, "two")))
        assert answers(last) == ["one", "two"]


async def test_a_call_nobody_answers_ends_at_the_server_too(tmp_path: Path) -> None:
    async with gateway_to(tmp_path, seconds=0.1) as gateway:
        asked = await gateway.executor.call_tool(call())
        await labs.noted(tmp_path / "notes", "cancelled ask who")
        late = await gateway.executor.call_tool(call(answers=answering(asked)))
        assert late.error is not None
        assert late.error.code == "INVALID_STATE"


async def test_parked_calls_end_with_the_gateway(tmp_path: Path) -> None:
    async with gateway_to(tmp_path) as gateway:
        await gateway.executor.call_tool(call())
    assert labs.running(str(tmp_path)) == []


async def test_a_call_cancelled_after_its_answer_is_cancelled_at_the_server(tmp_path: Path) -> None:
    async with gateway_to(tmp_path) as gateway:
        slow = {**ASKING, "nap": True}
        asked = await gateway.executor.call_tool(call(slow))
        waiting = asyncio.ensure_future(gateway.executor.call_tool(call(slow, answering(asked))))
        await labs.noted(tmp_path / "notes", "answered who")
        waiting.cancel()
        await labs.noted(tmp_path / "notes", "cancelled ask who")


async def test_a_server_that_dies_while_nobody_waits_is_told_of_at_the_retry(tmp_path: Path) -> None:
    async with gateway_to(tmp_path) as gateway:
        asked = await gateway.executor.call_tool(call())
        await gateway.call("lab__crash", {})
        pids = [
            pid for pid in labs.running(str(tmp_path)) if b"marshal" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        for pid in pids:
            labs.kill(pid)
        outcome = await gateway.executor.call_tool(call(answers=answering(asked)))
        assert outcome.error is not None
        assert outcome.error.code == "UPSTREAM_LOST"
        assert "'lab'" in outcome.error.message


@pytest.mark.parametrize("sharing", [pytest.param("principal", marks=pytest.mark.slow), "all"])
async def test_while_one_is_asked_the_next_call_waits_for_nobody(tmp_path: Path, sharing: str) -> None:
    async with gateway_to(tmp_path, sharing=sharing) as gateway:
        asked = await gateway.executor.call_tool(call())
        with anyio.fail_after(TIMEOUT):
            echoed = await gateway.call("lab__echo", {})
            others = [
                await gateway.executor.call_tool(call({**ASKING, "name": name}, chat=name)) for name in ("ann", "bob")
            ]
        assert echoed.ok
        for name, other in zip(("ann", "bob"), others, strict=True):
            assert other.wire is not None
            [question] = other.wire["inputRequests"].values()
            assert question["params"]["message"] == labs.question("lab", f"{name} 0")
            done = await gateway.executor.call_tool(call({**ASKING, "name": name}, answering(other, name), chat=name))
            assert answers(done) == [name]
        assert answers(await gateway.executor.call_tool(call(answers=answering(asked)))) == ["me"]


async def test_nobody_else_can_use_a_state() -> None:
    parked = SuspendedCalls()

    async def start(ask: Any, _: UpstreamRequest) -> dict[str, Any]:
        return dict(await ask("elicitation/create", {"message": "who"}))

    mine = request(caller=Caller(principal="ann"))
    asked = Outcome(wire=await parked.run(mine, start))
    theirs = request(answering(asked), caller=Caller(principal="bob"))
    with pytest.raises(Invalid, match="no suspended call has"):
        await parked.resume(theirs)
    back = request(answering(asked), caller=Caller(principal="ann"))
    assert await parked.resume(back) == {"action": "accept", "content": {"answer": "me"}}
    with pytest.raises(Invalid, match="no suspended call has"):
        await parked.resume(back)


async def test_one_principal_cannot_fill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspended_calls, "SUSPENDED_PER_PRINCIPAL", 2)
    parked, ended = SuspendedCalls(), 0

    async def start(ask: Any, _: UpstreamRequest) -> dict[str, Any]:
        nonlocal ended
        try:
            return dict(await ask("elicitation/create", {}))
        finally:
            ended += 1

    ann, bob = (request(caller=Caller(principal=name)) for name in ("ann", "bob"))
    for _ in range(2):
        await parked.run(ann, start)
    with pytest.raises(Unavailable, match="too many calls wait"):
        await parked.run(ann, start)
    await asyncio.sleep(0)
    assert ended == 1
    await parked.run(bob, start)
    await parked.close()
    assert ended == 4


async def test_reports_go_to_whoever_waits_now() -> None:
    received: list[tuple[str, float]] = []

    def reporting(name: str) -> Any:
        async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
            received.append((name, done))

        return progress

    async def start(ask: Any, told_request: UpstreamRequest) -> dict[str, Any]:
        await told_request.call.progress(1, None, None)
        await ask("elicitation/create", {})
        await told_request.call.progress(2, None, None)
        return {}

    parked = SuspendedCalls()
    asked = Outcome(wire=await parked.run(request(progress=reporting("first")), start))
    await parked.resume(request(answering(asked), progress=reporting("second")))
    assert received == [("first", 1), ("second", 2)]
