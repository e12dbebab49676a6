"""HTTP as servers in the wild speak it: kept connections, streams that break, redirects, limits, sessions that end."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trustme
from eventually import TIMEOUT, async_eventually

from gateway import mcp_client
from gateway.errors import Invalid, Unavailable
from gateway.mcp_client import (
    ConnectionLost,
    HttpEndpoint,
    InvalidResponse,
    McpClient,
    Unauthorized,
    Unreachable,
    http_connection,
    http_pool,
    open_client,
)
from gateway.mcp_client.http_pool import HttpPool
from gateway.mcp_client.streamable_http import StatelessTransport
from gateway.protocol.jsonrpc import RpcError

from .conftest import CLIENT_IDENTITY, HANDSHAKE, MODERN, HttpServer
from .scripted import Request, handshake, modern, scripted

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def limit() -> AsyncIterator[None]:
    async with asyncio.timeout(TIMEOUT):
        yield


async def call(client: McpClient, tool: str = "t", **options: Any) -> dict[str, Any]:
    return await client.request("tools/call", {"name": tool, "arguments": {}}, **options)


def pool_of(client: McpClient) -> HttpPool:
    assert isinstance(client.transport, StatelessTransport)
    return client.transport._pool


async def napping(client: McpClient) -> asyncio.Future[dict[str, Any]]:
    """A call that the server has begun, and will not answer soon."""
    begun = asyncio.Event()

    async def progress(*_: Any) -> None:
        begun.set()

    nap = asyncio.ensure_future(call(client, "nap", on_progress=progress))
    await begun.wait()
    return nap


async def test_requests_share_a_connection_and_say_what_they_are() -> None:
    async def answer(request: Request) -> None:
        request.result({"ok": True})

    async with scripted(modern(answer)) as (script, url):
        headers = {"Authorization": "Bearer x", "Content-Type": "text/plain", "X-Own": "1"}
        client = await open_client(HttpEndpoint(url + "?key=1", headers=headers), identity=CLIENT_IDENTITY)
        for _ in range(5):
            assert await call(client, "naïve") == {"ok": True}
        await client.close()
    assert script.connections == 1
    request = script.requests[-1]
    assert (request.method, request.path) == ("POST", "/mcp?key=1")
    wanted = {
        "authorization": "Bearer x",
        "x-own": "1",
        "content-type": "application/json",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": "=?base64?bmHDr3Zl?=",
    }
    assert {name: request.headers.get(name) for name in wanted} == wanted
    assert "key=1" not in client.label


@pytest.mark.parametrize("cut", [1, 3, 50])
async def test_a_reply_may_come_in_any_pieces(cut: int) -> None:
    async def answer(request: Request) -> None:
        body = b'{"jsonrpc": "2.0", "id": %d, "result": {"ok": true}}' % request.body["id"]
        if request.body["params"]["name"] == "stream":
            body = b"retry: 5\r\n: comment\r\nevent: message\r\nid: 1\r\ndata: " + body + b"\r\n\r\n"
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n"
        else:
            head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: Application/JSON\r\n\r\n"
        whole = head + body
        for at in range(0, len(whole), cut):
            request.send(whole[at : at + cut])
            await asyncio.sleep(0)
        request.writer.close()

    async with scripted(modern(answer)) as (_, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        assert await call(client, "plain") == {"ok": True}
        assert await call(client, "stream") == {"ok": True}
        await client.close()


async def test_a_connection_closed_while_it_rested_is_not_used() -> None:
    async def answer(request: Request) -> None:
        request.result({})

    async with scripted(modern(answer)) as (script, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        for _ in range(3):
            script.drop()
            await async_eventually(lambda: not pool_of(client)._open)
            await call(client)
        await client.close()
    assert script.connections == 4


async def test_connections_of_many_calls_at_once_are_kept_for_the_next() -> None:
    number = 100
    waiting: list[Request] = []

    async def answer(request: Request) -> None:
        waiting.append(request)
        if len(waiting) == number:  # all replies arrive together
            for one in waiting:
                one.result({})
            waiting.clear()

    async with scripted(modern(answer)) as (script, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        for _ in range(3):
            await asyncio.gather(*(call(client) for _ in range(number)))
        assert script.connections == number
        await client.close()


async def test_only_what_may_be_repeated_is_sent_again_when_a_kept_connection_breaks() -> None:
    broken: list[int] = []

    async def answer(request: Request) -> None:
        if request.connection not in broken:  # closes without a byte, as a race with its timer looks to us
            broken.append(request.connection)
            request.hang_up()
        else:
            request.result({})

    async def first_fails(request: Request) -> None:
        if request.connection == 1:
            request.hang_up()
        else:
            request.result({"served": request.connection})

    async with scripted(modern(first_fails)) as (script, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        assert await client.request("tools/list") == {"served": 2}
        await client.close()
    async with scripted(modern(first_fails)) as (script, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        with pytest.raises(ConnectionLost, match="broke off"):
            await call(client)
        assert [request.body["method"] for request in script.requests] == ["server/discover", "tools/call"]
        assert (client.lost, await call(client)) == (None, {"served": 2})
        await client.close()
    async with scripted(modern(answer)) as (script, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        with pytest.raises(ConnectionLost):  # a new connection that breaks is no stale one
            await client.request("tools/list")
        assert len(script.requests) == 3
        await client.close()


@pytest.mark.slow
async def test_a_server_that_is_away_costs_only_the_requests_of_that_time(own_http_server: HttpServer) -> None:
    client = await open_client(HttpEndpoint(f"{own_http_server.url}/mcp"), identity=CLIENT_IDENTITY)
    assert client.modern
    nap = await napping(client)
    own_http_server.kill()
    with pytest.raises(ConnectionLost, match="broke off"):
        await nap
    with pytest.raises(Unreachable, match="cannot be reached"):
        await call(client, "echo")
    await asyncio.to_thread(own_http_server.start)
    assert (await call(client, "echo"))["isError"] is False
    await client.close()


@pytest.mark.slow
async def test_a_handshake_session_that_is_forgotten_ends_the_link(own_http_server: HttpServer) -> None:
    client = await open_client(HttpEndpoint(f"{own_http_server.url}/mcp"), identity=CLIENT_IDENTITY, version=HANDSHAKE)
    own_http_server.kill()
    with pytest.raises((Unreachable, ConnectionLost)):
        await call(client, "echo")
    await asyncio.to_thread(own_http_server.start)
    with pytest.raises(ConnectionLost, match="has ended our session"):
        await call(client, "echo")
    assert "session" in (await client.wait_closed()).message
    with pytest.raises(ConnectionLost):
        await call(client, "echo")
    await client.close()


@pytest.mark.slow
async def test_the_end_of_the_old_stream_ends_the_link(own_http_server: HttpServer) -> None:
    client = await open_client(HttpEndpoint(f"{own_http_server.url}/sse"), identity=CLIENT_IDENTITY)
    assert (client.protocol_version, client.modern) == (HANDSHAKE, False)
    nap = await napping(client)
    own_http_server.kill()
    with pytest.raises(ConnectionLost, match=r"the stream of .* ended"):
        await nap
    assert (await client.wait_closed()).code == "UPSTREAM_LOST"
    await client.close()


async def test_a_broken_stream_fails_its_request_only() -> None:
    async def answer(request: Request) -> None:
        if request.body["params"]["name"] == "t":
            request.stream()
            request.event({"method": "notifications/progress", "params": {"progressToken": 2, "progress": 1}})
            request.hang_up()
        else:
            await asyncio.sleep(0.1)
            request.result({"ok": 1})

    async with scripted(modern(answer)) as (_, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        other = asyncio.ensure_future(call(client, "other"))
        with pytest.raises(ConnectionLost):
            await call(client)
        assert (await other, client.lost) == ({"ok": 1}, None)
        await client.close()


async def test_a_broken_stream_is_resumed_where_it_ended() -> None:
    async def answer(request: Request) -> None:
        if request.method == "POST":
            request.stream()
            request.send(b"9\r\nretry: 1\n\r\n")
            request.event(None, event_id="e-7")
            request.hang_up()
        else:
            request.stream()
            request.event({"id": 2, "result": {"after": request.headers["last-event-id"]}}, event_id="e-8")
            request.end()

    async with scripted(handshake(answer)) as (script, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY, version=HANDSHAKE)
        assert client.protocol_version == "2025-06-18"
        assert await call(client) == {"after": "e-7"}
        await client.close()
    resumed = script.requests[-2]
    assert (resumed.headers["mcp-session-id"], resumed.headers["mcp-protocol-version"]) == ("s-1", "2025-06-18")
    assert script.requests[-1].method == "DELETE"


async def test_stream_that_the_server_ends_again_and_again_is_resumed_each_time() -> None:
    async def answer(request: Request) -> None:
        step = int(request.headers.get("last-event-id", "0")) + 1
        request.stream()
        request.send(b"9\r\nretry: 1\n\r\n")
        if step == 20:
            request.event({"id": 2, "result": {"step": step}})
        else:
            request.event(None, event_id=str(step))
        request.end()

    async with scripted(handshake(answer)) as (_, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY, version=HANDSHAKE)
        assert await call(client) == {"step": 20}
        await client.close()


@pytest.mark.parametrize("status", [202, 404, 500])
async def test_server_is_pinged_during_a_silent_request_whatever_it_answers(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(mcp_client.client, "PING_SECONDS", 0.01)
    pings = asyncio.Semaphore(0)

    async def answer(request: Request) -> None:
        for _ in range(3):
            await pings.acquire()
        request.result({"ok": 1})

    async def serve(request: Request) -> None:
        if request.body and request.body.get("method") == "ping":
            request.answer(status)
            pings.release()
        else:
            await handshake(answer)(request)

    async with scripted(serve) as (script, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY, version=HANDSHAKE)
        assert await call(client) == {"ok": 1}
        await async_eventually(lambda: client._ping_timer is None)
        assert client.lost is None
        await client.close()
    numbers = [request.body["id"] for request in script.requests if request.body and "id" in request.body]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b""),
        (404, b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "gone"}}'),
        (400, b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "No valid session ID provided"}}'),
    ],
)
async def test_a_session_that_is_over_ends_the_link_however_it_is_said(status: int, body: bytes) -> None:
    async def answer(request: Request) -> None:
        if request.body["params"]["name"] == "unknown":
            error = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32601, "message": "Method not found"}}'
            request.answer(404, error, content_type="application/json")
        else:
            request.answer(status, body, content_type="application/json")

    async with scripted(handshake(answer)) as (script, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        with pytest.raises(RpcError, match="Method not found"):
            await call(client, "unknown")
        with pytest.raises(ConnectionLost, match="has ended our session"):
            await call(client)
        await client.wait_closed()
        await client.close()
        assert "DELETE" not in [request.method for request in script.requests]


async def test_a_subscription_tells_how_it_ended() -> None:
    async def answer(request: Request) -> None:
        number = request.body["id"]
        about = {"_meta": {"io.modelcontextprotocol/subscriptionId": number}}
        wanted = request.body["params"]["notifications"]
        request.stream()
        request.event(
            {"method": "notifications/subscriptions/acknowledged", "params": {**about, "notifications": wanted}}
        )
        request.event({"method": "notifications/tools/list_changed", "params": about})
        if "lost" in wanted:
            await request.writer.drain()
            await asyncio.sleep(0.05)
            request.hang_up()
        elif "ended" in wanted:
            request.event({"id": number, "result": {"resultType": "complete", **about}})
            request.end()

    async with scripted(modern(answer)) as (_, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        received: list[str] = []
        client.on_notification = lambda method, params: received.append(method)
        lost = await client.listen({"lost": True})
        assert isinstance(await lost.wait(), ConnectionLost)
        assert await (await client.listen({"ended": True})).wait() is None
        stays = await client.listen({"stays": True})
        await client.close()
        assert str(await stays.wait()).endswith("was closed")
        assert received == ["notifications/tools/list_changed"] * 3


async def test_a_modern_server_that_asks_as_in_the_old_days_is_not_answered() -> None:
    asked: list[str] = []

    async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        asked.append(method)
        return {}

    async def answer(request: Request) -> None:
        request.stream()
        request.event({"id": 1, "method": "elicitation/create", "params": {"message": "?"}})
        request.event({"id": request.body["id"], "result": {}})
        request.end()

    async with scripted(modern(answer)) as (_, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        assert (await call(client, on_request=ask), asked) == ({}, [])
        await client.close()


async def test_the_old_transport_is_found_where_it_is_the_only_one(http_server: HttpServer) -> None:
    client = await open_client(HttpEndpoint(f"{http_server.url}/sse"), identity=CLIENT_IDENTITY)
    assert (client.protocol_version, (await call(client, "echo"))["isError"]) == (HANDSHAKE, False)
    await client.close()
    with pytest.raises(InvalidResponse, match="HTTP 405"):
        await open_client(HttpEndpoint(f"{http_server.url}/sse", transport="streamable-http"), identity=CLIENT_IDENTITY)


async def test_tools_known_from_before_need_not_be_listed_again(http_server: HttpServer) -> None:
    first = await open_client(HttpEndpoint(f"{http_server.url}/mcp"), identity=CLIENT_IDENTITY)
    tools = (await first.request("tools/list"))["tools"]
    await first.close()
    client = await open_client(HttpEndpoint(f"{http_server.url}/mcp"), identity=CLIENT_IDENTITY, version=MODERN)
    params = {"name": "place", "arguments": {"region": "eu"}}
    with pytest.raises(RpcError, match="header"):
        await client.request("tools/call", params)
    client.record_headers(tools)
    assert (await client.request("tools/call", params))["content"][0]["text"] == "eu"
    await client.close()


async def test_to_cancel_a_modern_request_is_to_close_its_connection() -> None:
    begun = asyncio.Event()

    async def answer(request: Request) -> None:
        begun.set()

    async with scripted(modern(answer)) as (script, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        waiting = asyncio.ensure_future(call(client))
        await begun.wait()
        waiting.cancel()
        await script.lost.wait()
        assert len(script.requests) == 2
        await client.close()


async def test_a_connection_given_back_is_not_closed_by_whoever_had_it_before() -> None:
    """The first request is cancelled in the very moment its reply is complete and the next one has begun."""

    async def answer(request: Request) -> None:
        request.result({})

    async with scripted(answer) as (script, url):
        pool = HttpPool(HttpEndpoint(url))
        add_idle = pool._add_idle
        tasks: list[asyncio.Task[Any]] = []

        def send(number: int) -> asyncio.Task[Any]:
            return asyncio.get_running_loop().create_task(pool.send("POST", b"", b'{"id": %d}' % number))

        def hurry(connection: http_connection.HttpConnection) -> None:
            add_idle(connection)
            if len(tasks) == 1:
                tasks.append(send(2))
                tasks[0].cancel()

        setattr(pool, "_add_idle", hurry)  # noqa: B010 - as the pool will see it
        tasks.append(send(1))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert ((await tasks[1]).status, script.connections) == (200, 1)
        pool.close()


async def test_idle_connections_take_no_place_of_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too old for a request that must not be sent twice, and not yet old enough to be closed."""
    monkeypatch.setattr(http_pool, "CONNECTIONS", 4)
    monkeypatch.setattr(http_pool, "FRESH_SECONDS", 0)
    all_begun = asyncio.Event()

    async def answer(request: Request) -> None:
        if len(script.requests) % 4 == 0:
            all_begun.set()
        await all_begun.wait()
        request.result({})

    async with scripted(answer) as (script, url):
        pool = HttpPool(HttpEndpoint(url))
        for _ in range(3):
            all_begun.clear()
            replies = await asyncio.gather(*(pool.send("POST", b"", b'{"id": 1}') for _ in range(4)))
            assert [reply.status for reply in replies] == [200] * 4
        assert (script.connections, len(pool._open)) == (12, 4)
        all_begun.clear()
        calls = [asyncio.ensure_future(pool.send("POST", b"", b'{"id": 1}')) for _ in range(5)]
        with pytest.raises(Unavailable, match="4 requests in progress"):
            await asyncio.gather(*calls)
        await asyncio.wait(calls)
        pool.close()


async def test_a_stream_that_has_answered_gives_its_connection_back_or_loses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connection, "STREAM_END_SECONDS", TIMEOUT)

    async def answer(request: Request) -> None:
        request.stream()
        request.event({"id": request.body["id"], "result": {}})
        if request.body["params"]["name"] == "ends":
            request.end()

    async with scripted(modern(answer)) as (script, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        await call(client, "ends")
        await async_eventually(lambda: pool_of(client)._idle)
        monkeypatch.setattr(http_connection, "STREAM_END_SECONDS", 0.1)
        await call(client, "hangs")
        assert script.connections == 1
        await script.lost.wait()
        await call(client, "ends")
        assert script.connections == 2
        await client.close()


async def test_redirects_stay_on_the_origin_and_keep_the_method() -> None:
    async def answer(request: Request) -> None:
        if request.path == "/mcp":
            request.answer(307, location="/mcp/")
        elif request.body["method"] == "server/discover":
            request.result({"supportedVersions": [MODERN], "capabilities": {}})
        else:
            status, _, location = request.body["params"]["name"].partition(" ")
            if request.path == "/there":
                request.result({"path": request.path})
            else:
                request.answer(int(status), location=location)

    async with scripted(answer) as (_, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        assert await call(client, "308 /there") == {"path": "/there"}
        for tool in ("302 /there", "307 http://127.0.0.1:9/there", "307 https://localhost/there"):
            with pytest.raises(InvalidResponse, match=r"redirects to .*not followed"):
                await call(client, tool)
        with pytest.raises(InvalidResponse, match="redirected or refused the request 4 times"):
            await call(client, "307 /mcp/")
        await client.close()


async def test_what_is_no_answer_is_refused_and_named() -> None:
    async def answer(request: Request) -> None:
        match request.body["params"]["name"]:
            case "html":
                request.answer(500, b"<h1>Oops</h1>", content_type="text/html")
            case "accepted":
                request.answer(202)
            case "login":
                request.answer(401, www_authenticate='Bearer resource_metadata="x"')
            case "gzip":
                request.answer(200, b"\x1f\x8b", content_type="application/json", content_encoding="gzip")
            case "headers":
                request.answer(200, b"{}", x="y" * 100_000)
            case "garbage":
                request.send(b"SSH-2.0-OpenSSH_9.6\r\n")
            case "list":
                request.result([1, 2])
            case "error":
                body = b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32020, "message": "mismatch", "data": [1]}}'
                request.answer(400, body, content_type="application/json")
            case _:
                request.result({"ok": True})

    async with scripted(modern(answer)) as (_, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        for tool, kind, words in (
            ("html", InvalidResponse, "HTTP 500"),
            ("accepted", InvalidResponse, "HTTP 202"),
            ("login", Unauthorized, "HTTP 401"),
            ("gzip", ConnectionLost, "compressed"),
            ("headers", ConnectionLost, "65536 bytes of headers"),
            ("garbage", ConnectionLost, "no HTTP"),
            ("list", InvalidResponse, "neither result nor error"),
        ):
            with pytest.raises(kind, match=words) as refused:
                await call(client, tool)
            assert isinstance(refused.value, Unavailable)
            assert await call(client) == {"ok": True}
        with pytest.raises(RpcError) as fault:
            await call(client, "error")
        assert fault.value.to_dict() == {"code": -32020, "message": "mismatch", "data": [1]}
        await client.close()


async def test_a_body_or_event_over_the_limit_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "MESSAGE_LIMIT", 100_000)
    monkeypatch.setattr(http_connection.HttpReply, "limit", 100_000)

    async def answer(request: Request) -> None:
        if request.body["params"]["name"] == "body":
            request.result({"text": "x" * 200_000})
            return
        request.stream()
        for _ in range(30):
            request.chunk(b"data: " + b"x" * 10_000 + b"\n")
        await request.writer.drain()

    async with scripted(modern(answer)) as (_, url):
        client = await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        for tool in ("body", "event"):
            with pytest.raises(ConnectionLost, match="more than 100000 bytes"):
                await call(client, tool)
        await client.close()


async def test_credentials_that_are_missing_are_no_sign_of_another_era() -> None:
    async def answer(request: Request) -> None:
        request.answer(401, www_authenticate="Bearer")

    async with scripted(answer) as (script, url):
        with pytest.raises(Unauthorized, match="check the credentials") as refused:
            await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
        assert (refused.value.challenge, len(script.requests)) == ("Bearer", 1)


async def test_the_old_transports_endpoint_may_not_lead_elsewhere() -> None:
    async def answer(request: Request) -> None:
        if request.method == "POST":
            request.answer(405)
            return
        request.stream()
        request.chunk(b"event: endpoint\ndata: http://127.0.0.1:9/steal\n\n")

    async with scripted(answer) as (_, url):
        with pytest.raises(Unavailable):
            await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)


async def test_a_url_or_header_that_cannot_be_is_refused_before_anything_is_sent() -> None:
    for url in ("ftp://x/", "http://", "http://user:pass@x/", "http://x:99999/", "mcp"):
        with pytest.raises(Invalid):
            await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)
    for headers in ({"a": "b\r\nx: y"}, {"a b": "c"}, {"": "c"}):
        with pytest.raises(Invalid, match="not a header"):
            await open_client(HttpEndpoint("http://localhost:9/", headers=headers), identity=CLIENT_IDENTITY)
    with pytest.raises(Unreachable, match="cannot be reached"):
        await open_client(HttpEndpoint("http://localhost:9/"), identity=CLIENT_IDENTITY)


async def test_https_is_spoken_to_servers_we_trust_only() -> None:
    async def answer(request: Request) -> None:
        request.result({"ok": True})

    authority = trustme.CA()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(serving)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with scripted(modern(answer), serving) as (script, url):
        client = await open_client(HttpEndpoint(url, tls=trusting), identity=CLIENT_IDENTITY)
        for _ in range(3):
            assert await call(client) == {"ok": True}
        assert script.connections == 1
        await client.close()
        with pytest.raises(Unreachable, match=r"certificate that is not trusted: .*; to trust it, set SSL_CERT_FILE"):
            await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)


async def test_https_to_a_server_without_tls_says_to_try_http() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listening:
        url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
        with pytest.raises(Unreachable, match="it does not speak TLS; try http:// instead"):
            await open_client(HttpEndpoint(url), identity=CLIENT_IDENTITY)


async def test_a_failing_asker_or_listener_breaks_nothing(http_server: HttpServer) -> None:
    client = await open_client(HttpEndpoint(f"{http_server.url}/mcp"), identity=CLIENT_IDENTITY, version=HANDSHAKE)

    async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("secret detail")

    async def progress(*_: Any) -> None:
        raise RuntimeError

    with pytest.raises(RpcError) as fault:
        await call(client, "elicit", on_request=ask)
    assert "secret" not in str(fault.value)
    assert (await call(client, "count", on_progress=progress))["isError"] is False
    await client.close()


@pytest.mark.slow
@pytest.mark.parametrize(("path", "era"), [("/mcp", MODERN), ("/mcp", HANDSHAKE), ("/sse", HANDSHAKE)])
async def test_two_hundred_links_leave_no_descriptor_or_task(http_server: HttpServer, path: str, era: str) -> None:
    endpoint = HttpEndpoint(http_server.url + path, transport="sse" if path == "/sse" else "auto")
    await (await open_client(endpoint, identity=CLIENT_IDENTITY, version=era)).close()
    await asyncio.sleep(0.05)
    descriptors, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    for number in range(200):
        client = await open_client(endpoint, identity=CLIENT_IDENTITY, version=era)
        if number % 20 == 0:
            nap = await napping(client)
            await client.close()
            with pytest.raises(ConnectionLost, match="was closed"):
                await nap
        await client.close()
    await async_eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    await async_eventually(lambda: len(asyncio.all_tasks()) <= tasks)
