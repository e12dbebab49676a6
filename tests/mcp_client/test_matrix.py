"""The same behaviours in both eras over every transport, against one SDK server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from eventually import TIME_LIMITS, TIMEOUT, async_eventually

from gateway.errors import Timeout
from gateway.mcp_client import Endpoint, HttpEndpoint, McpClient, open_client
from gateway.mcp_client.streamable_http import SessionTransport
from gateway.protocol.jsonrpc import RpcError

from .conftest import CLIENT_IDENTITY, HANDSHAKE, MODERN, HttpServer, server

pytestmark = pytest.mark.anyio

# The inner loop keeps to each transport and each era, and to both where most servers are.
WITH_THE_WHOLE = {("stdio", HANDSHAKE), ("sse", MODERN)}
COMBINATIONS = [
    pytest.param(
        (transport, era),
        id=f"{transport}-{era}",
        marks=[pytest.mark.slow] * ((transport, era) in WITH_THE_WHOLE),
    )
    for transport in ("stdio", "http", "sse")
    for era in (MODERN, HANDSHAKE)
]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=COMBINATIONS)
async def client(request: pytest.FixtureRequest, http_server: HttpServer) -> AsyncIterator[McpClient]:
    transport, era = request.param
    endpoints: dict[str, Endpoint] = {
        "stdio": server("everything.py", "stdio"),
        "http": HttpEndpoint(f"{http_server.url}/mcp"),
        "sse": HttpEndpoint(f"{http_server.url}/sse", transport="sse"),
    }
    opened = await open_client(endpoints[transport], identity=CLIENT_IDENTITY, version=era)
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
async def limit() -> AsyncIterator[None]:
    async with asyncio.timeout(1.5 * TIMEOUT):
        yield


async def call(client: McpClient, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
    """The text a tool answers with; a whole result when it is no text."""
    result = await client.request("tools/call", {"name": tool, "arguments": arguments or {}}, **options)
    match result:
        case {"content": [{"type": "text", "text": str(text)}]}:
            return text
        case _:
            return result


async def cancelled_upstream(client: McpClient, name: str) -> None:
    """Returns when the server has seen the nap of that name cancelled."""

    async def is_seen() -> bool:
        return name in (await call(client, "cancellations")).split(",")

    await async_eventually(is_seen)


def answering(asked: list[tuple[str, Any]]) -> Any:
    async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        asked.append((method, params.get("message")))
        if method == "roots/list":
            return {"roots": [{"uri": "file:///here"}]}
        if method == "sampling/createMessage":
            return {"role": "assistant", "content": {"type": "text", "text": "sampled"}, "model": "m"}
        return {"action": "accept", "content": {"answer": f"to {params['message']}"}}

    return ask


async def test_the_server_is_known_once_the_link_is_open(client: McpClient) -> None:
    assert (client.modern, client.protocol_version in (MODERN, HANDSHAKE)) == (client.protocol_version == MODERN, True)
    assert client.server_info == {"name": "everything", "version": "1.0"}
    assert client.capabilities["tools"] == {"listChanged": True}
    assert client.instructions == "try them all"


async def test_a_call_is_answered_with_the_raw_result(client: McpClient) -> None:
    result = await client.request("tools/call", {"name": "echo", "arguments": {"text": "äöü"}})
    assert (result["content"], result["isError"]) == ([{"type": "text", "text": "äöü"}], False)


async def test_many_calls_at_once_each_get_their_own_answer(client: McpClient) -> None:
    texts = [str(number) for number in range(40)]
    assert await asyncio.gather(*(call(client, "echo", {"text": text}) for text in texts)) == texts


async def test_tools_whose_names_and_arguments_travel_in_headers_can_be_called(client: McpClient) -> None:
    tools = (await client.request("tools/list"))["tools"]
    assert "naïve" in [tool["name"] for tool in tools]
    assert await call(client, "naïve") == "naïve"
    assert await call(client, "place", {"region": "zürich"}) == "zürich"
    assert await call(client, "place") == "None"


async def test_a_large_answer_arrives_whole(client: McpClient) -> None:
    assert await call(client, "big", {"size": 2_000_000}) == "x" * 2_000_000


async def test_the_servers_error_is_a_fault(client: McpClient) -> None:
    with pytest.raises(RpcError) as refused:
        await client.request("no/such/method")
    assert refused.value.code == -32601


async def test_progress_is_told_to_whoever_asked_for_it(client: McpClient) -> None:
    reports: list[tuple[float, float | None, str | None]] = []

    async def progress(*report: Any) -> None:
        reports.append(report)

    assert await call(client, "count", on_progress=progress) == "counted"
    assert reports == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
    assert await call(client, "count") == "counted"
    assert len(reports) == 3


async def test_log_messages_go_to_the_request_they_belong_to(client: McpClient) -> None:
    lines: list[Any] = []

    async def log(params: dict[str, Any]) -> None:
        lines.append(params["data"])

    meta = {"io.modelcontextprotocol/logLevel": "debug"}
    assert await call(client, "chatter", on_log=log, meta=meta) == "logged"
    assert lines == ["one", "two"]


async def test_notes_and_capabilities_are_handed_on(client: McpClient) -> None:
    meta = {"traceparent": "00-1", "progressToken": "the caller's own"}
    result = await call(client, "meta", meta=meta, capabilities={"sampling": {}})
    seen = result["structuredContent"]["meta"]
    assert (seen["traceparent"], "progressToken" in seen) == ("00-1", False)
    if client.modern:
        assert seen["io.modelcontextprotocol/clientCapabilities"] == {"sampling": {}}
        assert seen["io.modelcontextprotocol/clientInfo"] == {"name": "links", "version": "1"}
    else:
        assert not [key for key in seen if key.startswith("io.modelcontextprotocol/")]


async def test_a_cancelled_call_is_cancelled_upstream_and_disturbs_nobody(client: McpClient) -> None:
    asleep = asyncio.Event()
    name = f"{client.label}-{client.protocol_version}-cancelled"

    async def progress(*_: Any) -> None:
        asleep.set()

    nap = asyncio.ensure_future(call(client, "nap", {"name": name}, on_progress=progress))
    other = asyncio.ensure_future(call(client, "nap", {"name": "other", "seconds": 0.5}))
    await asleep.wait()
    nap.cancel()
    with pytest.raises(asyncio.CancelledError):
        await nap
    await cancelled_upstream(client, name)
    assert await other == "awake"


async def test_calls_are_untouched_by_others_that_are_cancelled_at_any_moment(client: McpClient) -> None:
    chance = random.Random(7)

    async def one(number: int) -> str | None:
        calling = asyncio.ensure_future(call(client, "echo", {"text": str(number)}))
        if number % 3 == 0:
            await asyncio.sleep(chance.random() * 0.03)
            calling.cancel()
        try:
            return str(await calling)
        except asyncio.CancelledError:
            return None

    for start in range(0, 150, 15):
        numbers = range(start, start + 15)
        answers = await asyncio.gather(*map(one, numbers))
        expected = [(str(number), None) if number % 3 == 0 else (str(number),) for number in numbers]
        assert all(answer in right for answer, right in zip(answers, expected, strict=True))


async def test_a_call_that_takes_too_long_is_cancelled_upstream(client: McpClient) -> None:
    name = f"{client.label}-{client.protocol_version}-late"
    asleep = asyncio.Event()

    async def progress(*_: Any) -> None:
        asleep.set()

    for seconds in TIME_LIMITS:
        with pytest.raises(Timeout, match=rf"did not answer tools/call within {seconds:g} seconds"):
            await call(client, "nap", {"name": name, "seconds": 600}, timeout=seconds, on_progress=progress)
        if asleep.is_set():
            break
    await cancelled_upstream(client, name)


@pytest.mark.parametrize("rounds", [1, 2])
async def test_questions_reach_the_asker_or_come_as_a_result(client: McpClient, rounds: int) -> None:
    asked: list[tuple[str, Any]] = []
    result = await call(client, "elicit", {"rounds": rounds}, on_request=answering(asked))
    questions = [("elicitation/create", str(number)) for number in range(rounds)]
    if not client.modern:
        assert (result, asked) == (",".join(f"to {number}" for number in range(rounds)), questions)
        # Over streamable HTTP the stream says whose question it is; only elsewhere must calls be kept apart.
        assert client.asks_mid_call == (not isinstance(client.transport, SessionTransport))
        return
    for number in range(rounds):
        assert result["resultType"] == "input_required"
        assert result["inputRequests"]["q"]["params"]["message"] == str(number)
        answers = {"q": {"action": "accept", "content": {"answer": f"to {number}"}}}
        params = {"name": "elicit", "arguments": {"rounds": rounds}}
        again = {**params, "inputResponses": answers, "requestState": result["requestState"]}
        result = await client.request("tools/call", again, on_request=answering(asked))
    assert result["content"][0]["text"] == ",".join(f"to {number}" for number in range(rounds))
    assert asked == []


async def test_sampling_and_roots_reach_the_asker(client: McpClient) -> None:
    asked: list[tuple[str, Any]] = []
    if client.modern:
        pytest.skip("asked by results only")
    assert await call(client, "sample", on_request=answering(asked)) == "sampled"
    assert await call(client, "roots", on_request=answering(asked)) == "file:///here"
    assert await call(client, "roots", {"related": False}, on_request=answering(asked)) == "file:///here"
    assert [method for method, _ in asked] == ["sampling/createMessage", "roots/list", "roots/list"]


async def test_a_refusing_asker_is_heard_and_the_call_goes_on(client: McpClient) -> None:
    if client.modern:
        pytest.skip("asked by results only")

    async def refuse(method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise RpcError(-1, "the user is away")

    with suppress(RpcError):
        assert "the user is away" in str(await call(client, "elicit", on_request=refuse))
    with suppress(RpcError):
        assert "does not support" in str(await call(client, "elicit"))
    assert await call(client, "echo", {"text": "still here"}) == "still here"


async def test_changes_are_heard(client: McpClient) -> None:
    received: asyncio.Queue[str] = asyncio.Queue()
    client.on_notification = lambda method, params: received.put_nowait(method)
    if client.modern:
        wanted = {"toolsListChanged": True, "resourceSubscriptions": ["file:///x"]}
        listening = await client.listen(wanted)
        assert listening.honored == wanted
        await call(client, "change")
    else:
        await client.request("resources/subscribe", {"uri": "file:///x"})
        await call(client, "change")
    assert {await received.get(), await received.get()} == {
        "notifications/tools/list_changed",
        "notifications/resources/updated",
    }
    if client.modern:
        listening.close()
        assert await listening.wait() is None
    else:
        with pytest.raises(RpcError, match="has no subscriptions/listen"):
            await client.listen({})


async def test_questions_of_calls_that_run_at_once_are_never_mixed_up(client: McpClient) -> None:
    """Over streamable HTTP each goes to its own caller; where nothing says whose it is, to nobody."""
    if client.modern:
        pytest.skip("asked by results only")
    received: dict[str, list[tuple[str, Any]]] = {name: [] for name in "abc"}

    async def one(name: str) -> Any:
        try:
            return await call(client, "elicit", {"name": name}, on_request=answering(received[name]))
        except RpcError as fault:
            return str(fault)

    results = await asyncio.gather(*(one(name) for name in "abc"))
    if client.label.endswith("/mcp"):
        assert results == ["to a0", "to b0", "to c0"]
    for name, asked in received.items():
        assert asked in ([], [("elicitation/create", f"{name}0")])
    if not client.label.endswith("/mcp"):
        assert any("the request does not identify its call" in str(result) for result in results)
        async with client.exclusive:
            assert await call(client, "elicit", {"name": "d"}, on_request=answering([])) == "to d0"
