"""What happens while a call runs on the short way over stdin and stdout, and when the pipe or the gateway ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT

from gateway.calls import Call, Outcome
from gateway.serve import stdio
from gateway.serve.stdio import FastRequests

from .servers import ABLE, ENVELOPE, Servers, StdioClient, call, open_servers, request, serve_on_pipes

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G3")]

ERAS = ["modern", "handshake"]
CLOSED = {"code": -32000, "message": "Connection closed"}


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path) as opened:
        yield opened


def make_call(era: str, tool: str, number: int | str = 1, **meta: Any) -> Any:
    envelope = ENVELOPE if era == "modern" else {}
    return call(f"stall__{tool}", {}, number, envelope=envelope, **({"meta": meta} if meta else {}))


def cancellation(number: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}


async def open_connection(pipes: StdioClient, era: str) -> None:
    """Say the first things, so that the era is known."""
    if era == "modern":
        await pipes.ask(request("server/discover"))
    else:
        await pipes.open(ABLE)


async def start_call(servers: Servers) -> None:
    with anyio.fail_after(TIMEOUT):
        await servers.source.begun.wait()
    servers.source.begun.clear()


def text(message: Any) -> str:
    answers: str = message["result"]["content"][0]["text"]
    return answers


@pytest.mark.parametrize("era", ERAS)
async def test_call_and_list_never_reach_the_sdk(servers: Servers, era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []

    class Watched(FastRequests):
        def take(self, line: bytes) -> bool:
            taken.append(super().take(line))
            return taken[-1]

    monkeypatch.setattr(stdio, "FastRequests", Watched)
    async with serve_on_pipes(servers.gateway) as pipes:
        await open_connection(pipes, era)
        await pipes.ask(make_call(era, "echo"))
        await pipes.ask(request("tools/list", envelope=ENVELOPE if era == "modern" else {}))
        assert all(taken) and len(taken) >= 3


@pytest.mark.parametrize("era", ERAS)
async def test_progress_comes_before_the_response_and_nothing_after_it(servers: Servers, era: str) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        await open_connection(pipes, era)
        pipes.send(make_call(era, "count", progressToken=0))
        answers = [await pipes.line() for _ in range(3)]
        assert [each["params"]["progress"] for each in answers] == [1, 2.5, 3]
        assert text(await pipes.line()) == '"counted"'
        assert text(await pipes.ask(make_call(era, "late", progressToken=1))) == '"answered"'
        servers.source.go.set()
        await start_call(servers)
        assert text(await pipes.ask(make_call(era, "echo"))) == "{}"


@pytest.mark.parametrize("era", ERAS)
async def test_call_does_not_block_the_next(servers: Servers, era: str) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        await open_connection(pipes, era)
        pipes.send(make_call(era, "wait", number="slow"))
        await start_call(servers)
        assert (await pipes.ask(make_call(era, "echo", number="quick")))["id"] == "quick"
        servers.source.go.set()
        assert (await pipes.line())["id"] == "slow"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("number", "identifier"), [(1, 1), (1, "1"), ("a", "a")])
async def test_cancelled_call_ends_without_a_response(
    servers: Servers, era: str, number: int | str, identifier: int | str
) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        await open_connection(pipes, era)
        pipes.send(make_call(era, "wait", number=number))
        await start_call(servers)
        pipes.send(cancellation(identifier), make_call(era, "echo", number=2))
        assert (await pipes.line())["id"] == 2
        pipes.close()
        assert await pipes.rest() == []
    assert sorted(await servers.records()) == [("error", "CANCELLED"), ("success", None)]


@pytest.mark.parametrize("era", ERAS)
async def test_cancelled_call_waits_for_the_thread_that_works_for_it(
    servers: Servers, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, events = threading.Event(), list[str]()

    async def work(_: Call) -> Outcome:
        servers.source.begun.set()
        try:
            await anyio.to_thread.run_sync(release.wait, TIMEOUT)
            events.append("thread ended")
            await anyio.sleep_forever()
        finally:
            events.append("call ended")
        raise AssertionError

    monkeypatch.setattr(servers.source, "_wait", work)
    async with serve_on_pipes(servers.gateway) as pipes:
        await open_connection(pipes, era)
        pipes.send(make_call(era, "wait"))
        await start_call(servers)
        pipes.send(cancellation(1), make_call(era, "echo", number=2))
        assert (await pipes.line())["id"] == 2
        assert events == []
        release.set()
        pipes.close()
        assert await pipes.rest() == []
    assert events == ["thread ended", "call ended"]
    assert sorted(await servers.records()) == [("error", "CANCELLED"), ("success", None)]


@pytest.mark.parametrize("era", ERAS)
async def test_cancellation_with_another_id_cancels_nothing(servers: Servers, era: str) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        await open_connection(pipes, era)
        pipes.send(make_call(era, "wait"))
        await start_call(servers)
        pipes.send(*map(cancellation, [True, 1.0, None, [1], "2"]))
        pipes.send({"jsonrpc": "2.0", "method": "notifications/cancelled"})
        assert "id" in await pipes.ask(request("ping", number="ping", envelope=ENVELOPE if era == "modern" else {}))
        servers.source.go.set()
        assert text(await pipes.line()) == '"waited"'


async def test_question_is_answered_on_the_same_pipe(servers: Servers) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        await open_connection(pipes, "handshake")
        question = await pipes.ask(make_call("handshake", "ask"))
        assert question["method"] == "elicitation/create"
        pipes.send({"jsonrpc": "2.0", "id": "toolgate-77", "result": {}})  # an answer to nothing
        assert text(await pipes.ask({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}})) == (
            '{"action":"decline"}'
        )


async def test_reply_that_only_the_sdk_can_parse_reaches_the_call_that_asked(servers: Servers) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        await pipes.open(ABLE)
        pipes.send(make_call("handshake", "ask"))
        question = await pipes.line()
        content = {"action": "accept", "content": {"answer": 10**20}}
        reply = {"jsonrpc": "2.0", "id": question["id"], "result": content}
        assert str(10**20) in text(await pipes.ask(reply))


async def test_question_is_withdrawn_when_its_call_is_cancelled(servers: Servers) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        await open_connection(pipes, "handshake")
        question = await pipes.ask(make_call("handshake", "ask"))
        withdrawn = await pipes.ask(cancellation(1))
        assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", question["id"])
        assert text(await pipes.ask(make_call("handshake", "echo"))) == "{}"


@pytest.mark.parametrize("era", ERAS)
async def test_client_that_closes_its_output_gets_its_responses(servers: Servers, era: str) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        await open_connection(pipes, era)
        pipes.send(make_call(era, "wait"))
        await start_call(servers)
        pipes.close()
        servers.source.go.set()
        assert [text(each) for each in await pipes.rest()] == ['"waited"']


@pytest.mark.parametrize("era", ERAS)
async def test_call_that_exceeds_the_grace_period_gets_the_same_error_on_both_paths(servers: Servers, era: str) -> None:
    for fast in (True, False):
        stop = anyio.Event()
        async with serve_on_pipes(servers.gateway, fast=fast, grace=0.05, stop=stop) as pipes:
            await open_connection(pipes, era)
            pipes.send(make_call(era, "wait"))
            await start_call(servers)
            stop.set()
            assert await pipes.line() == {"jsonrpc": "2.0", "id": 1, "error": CLOSED}
            assert await pipes.rest() == []
    assert await servers.records() == [("error", "CANCELLED")] * 2


@pytest.mark.parametrize("era", ERAS)
async def test_stopping_gateway_answers_the_requests_it_has_read(servers: Servers, era: str) -> None:
    stop = anyio.Event()
    async with serve_on_pipes(servers.gateway, stop=stop) as pipes:
        await open_connection(pipes, era)
        pipes.send(make_call(era, "wait"))
        await start_call(servers)
        stop.set()
        await anyio.sleep(0.01)
        pipes.send(make_call(era, "echo", number=2))  # too late
        servers.source.go.set()
        assert [text(each) for each in await pipes.rest()] == ['"waited"']


async def test_cancelled_server_leaves_no_call_behind(servers: Servers) -> None:
    async with serve_on_pipes(servers.gateway) as pipes:
        await open_connection(pipes, "modern")
        pipes.send(make_call("modern", "wait"))
        await start_call(servers)
        pipes.serving.cancel()
        await asyncio.wait([pipes.serving])
        with anyio.fail_after(TIMEOUT):
            await servers.gateway.executor.idle()
    assert await servers.records() == [("error", "CANCELLED")]
