"""Sessions of the handshake era: what is known of a client, what it is asked, and what ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT, async_eventually

from gateway.protocol.jsonrpc import RpcError
from gateway.serve.mcp import sessions
from gateway.serve.mcp.sessions import Session

from .servers import ABLE, Servers, open_servers, request

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G3")]


class Stream:
    """Keeps what is said; one that is stuck takes nothing."""

    def __init__(self) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self.stuck = False

    async def say(self, message: Mapping[str, Any]) -> None:
        if self.stuck:
            await anyio.sleep_forever()
        self.messages.append(message)


class Underway:
    def __init__(self) -> None:
        self.ended = 0

    def cancel(self) -> None:
        self.ended += 1


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path) as opened:
        yield opened


async def opened(servers: Servers, **options: Any) -> Session:
    client = await servers.session(**options)
    session = servers.server.handlers.sessions.get(client.session["mcp-session-id"])
    assert session is not None
    return session


async def asking(session: Session, stream: Stream) -> asyncio.Task[dict[str, Any]]:
    task = asyncio.ensure_future(session.ask(stream.say, "roots/list", {}))
    known = len(stream.messages)
    await async_eventually(lambda: len(stream.messages) > known)
    return task


async def test_session_has_version_capabilities_and_caller_of_its_handshake(servers: Servers) -> None:
    session = await opened(servers, capabilities={**ABLE, "roots": {"listChanged": True}}, version="2025-06-18")
    assert session.version == "2025-06-18"
    assert session.capabilities == {**ABLE, "roots": {"listChanged": True}}
    assert (session.caller.client, session.caller.surface) == ("tester 1", "mcp")


async def test_session_log_level_is_the_last_one_set(servers: Servers) -> None:
    client = await servers.session()
    session = servers.server.handlers.sessions.get(client.session["mcp-session-id"])
    assert session is not None and session.level is None
    for level in ("error", "debug"):
        await client.ask(request("logging/setLevel", {"level": level}, envelope={}))
        assert session.level == level


async def test_each_question_has_its_own_id_and_response(servers: Servers) -> None:
    session, stream = await opened(servers), Stream()
    first, second = await asking(session, stream), await asking(session, stream)
    ids = [message["id"] for message in stream.messages]
    assert len(set(ids)) == 2
    assert session.take_reply({"id": ids[1], "result": {"n": 2}})
    assert session.take_reply({"id": ids[0], "result": {"n": 1}})
    assert [await first, await second] == [{"n": 1}, {"n": 2}]
    assert not session.take_reply({"id": ids[0], "result": {}})


async def test_second_response_to_a_question_is_ignored(servers: Servers) -> None:
    session, stream = await opened(servers), Stream()
    question = await asking(session, stream)
    number = stream.messages[0]["id"]
    assert session.take_reply({"id": number, "error": {"code": 5, "message": "no", "data": {"x": 1}}})
    assert session.take_reply({"id": number, "result": {}})
    with pytest.raises(RpcError) as refused:
        await question
    assert (refused.value.code, refused.value.message, refused.value.data) == (5, "no", {"x": 1})


@pytest.mark.parametrize(
    "message", [{"id": None}, {"id": 1}, {"id": "1"}, {"id": []}, {}, {"id": "toolgate-1", "method": "ping"}]
)
async def test_response_to_no_question_is_not_taken(servers: Servers, message: dict[str, Any]) -> None:
    session, stream = await opened(servers), Stream()
    question = await asking(session, stream)
    assert not session.take_reply(message)
    question.cancel()


async def test_number_of_waiting_questions_is_limited(servers: Servers) -> None:
    session, stream = await opened(servers), Stream()
    questions = [await asking(session, stream) for _ in range(sessions.QUESTIONS)]
    with pytest.raises(RpcError, match=str(sessions.QUESTIONS)):
        await session.ask(stream.say, "roots/list", {})
    questions[0].cancel()
    await asyncio.wait(questions[:1])
    questions.append(await asking(session, stream))
    for question in questions:
        question.cancel()
    await asyncio.wait(questions)


async def test_cancelled_question_is_withdrawn_without_waiting_for_a_client_that_does_not_read(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, stream = await opened(servers), Stream()
    question = await asking(session, stream)
    question.cancel()
    await asyncio.wait([question])
    assert question.cancelled()
    assert stream.messages[1]["params"]["requestId"] == stream.messages[0]["id"]
    monkeypatch.setattr(sessions, "WITHDRAW_SECONDS", 0.01)
    question = await asking(session, stream)
    stream.stuck = True
    question.cancel()
    with anyio.fail_after(TIMEOUT):
        await asyncio.wait([question])
    assert question.cancelled()
    assert len(stream.messages) == 3


def cancellation(request_id: Any) -> dict[str, Any]:
    return {"method": "notifications/cancelled", "params": {"requestId": request_id}}


async def test_session_cancels_a_call_by_id_and_all_calls_at_its_end(servers: Servers) -> None:
    client = await servers.session()
    session_id = client.session["mcp-session-id"]
    session = servers.server.handlers.sessions.get(session_id)
    assert session is not None
    first, second = session.calls["1"], session.calls["a"] = Underway(), Underway()
    others: list[Any] = [True, 1.0, None, [], "b"]
    assert [session.take_reply(cancellation(number)) for number in others] == [False] * 5
    assert (first.ended, second.ended) == (0, 0)
    assert session.take_reply(cancellation(1)) and session.take_reply(cancellation("a"))
    assert (await client.delete()).status == 200
    await async_eventually(lambda: servers.server.handlers.sessions.get(session_id) is None)
    assert (first.ended, second.ended) == (2, 2)


async def test_session_is_opened_once_for_repeated_initialized_notifications(servers: Servers) -> None:
    client = await servers.session()
    session = servers.server.handlers.sessions.get(client.session["mcp-session-id"])
    await client.ask({"jsonrpc": "2.0", "method": "notifications/initialized"})
    await client.ask(request("ping", envelope={}))
    assert servers.server.handlers.sessions.get(client.session["mcp-session-id"]) is session


async def test_request_without_handshake_opens_no_session(servers: Servers) -> None:
    assert servers.server.handlers.sessions.get(None) is None
    assert servers.server.handlers.sessions.get("nobody") is None
