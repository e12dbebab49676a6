"""Both paths give the same responses: the fast path answers as the SDK would, or leaves the request to the SDK.

They differ only in this, on purpose: a response of the fast path has the header `Toolgate-Call-Id`; over HTTP in the
handshake versions, a response without notifications before it is plain JSON, not a stream of one event.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .servers import (
    ABLE,
    CALL_ID,
    ENVELOPE,
    HANDSHAKE,
    INITIALIZED,
    LIMIT,
    MODERN,
    Answer,
    Client,
    Servers,
    call,
    initialize,
    open_servers,
    request,
    routing,
    serve_on_pipes,
)

pytestmark = pytest.mark.anyio

PREFIX = "io.modelcontextprotocol/"
ECHO = call("stall__echo", {"a": 1})
BIG = 10**18
IDS: list[Any] = [0, "", "1", -1, BIG, BIG * 100, 1.0, 1.5, None, True, [], {}]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path_factory.mktemp("roads")) as opened:
        yield opened


@pytest.fixture(scope="module")
async def in_session(servers: Servers) -> tuple[Client, Client]:
    return await sessions(servers)


def anonymous(value: Any) -> Any:
    """The same, whoever's call it was."""
    if isinstance(value, dict):
        return {key: "ID" if key == CALL_ID else anonymous(each) for key, each in value.items()}
    if isinstance(value, str):
        return re.sub("under call [0-9a-f-]{36}", "under call ID", value)
    return [anonymous(each) for each in value] if isinstance(value, list) else value


def shown(answer: Answer, era: str) -> Any:
    kind = answer.headers.get("content-type")
    if era == HANDSHAKE and answer.status == 200:
        kind = "JSON or a stream"
    return answer.status, kind, [anonymous(message) for message in answer.messages]


def saying(**meta: Any) -> dict[str, Any]:
    """A call with this in its `_meta`; the names of the envelope's keys are short."""
    sdk = {PREFIX + key if key in ("logLevel", "clientInfo", "clientCapabilities") else key: meta[key] for key in meta}
    return call("stall__echo", {"a": 1}, meta=sdk)


def but(message: Mapping[str, Any], **params: Any) -> dict[str, Any]:
    return {**message, "params": {**message["params"], **params}}


def text(message: Mapping[str, Any], old: str, new: str) -> bytes:
    """The message as no library would write it."""
    written = json.dumps(message)
    assert old in written
    return written.replace(old, new).encode()


MESSAGES: dict[str, Any] = {
    "a call": ECHO,
    "a list": request("tools/list"),
    "an unknown tool": call("nobody", {}),
    "a tool by its id": call("stall:echo", {"a": 1}),
    "wrong arguments": call("stall__typed", {"n": "seven"}),
    "an argument too many": call("stall__typed", {"m": 1}),
    "a float for an integer": call("stall__typed", {"n": 1.0}),
    "no arguments": request("tools/call", {"name": "stall__echo"}),
    "arguments null": request("tools/call", {"name": "stall__echo", "arguments": None}),
    "arguments as a list": request("tools/call", {"name": "stall__echo", "arguments": []}),
    "no name": request("tools/call", {"arguments": {}}),
    "a number for a name": request("tools/call", {"name": 5}),
    "an empty name": call("", {}),
    "a cursor of ours": request("tools/list", {"cursor": "2:stall__echo"}),
    "a cursor of nobody's": request("tools/list", {"cursor": "zzz"}),
    "an empty cursor": request("tools/list", {"cursor": ""}),
    "a number for a cursor": request("tools/list", {"cursor": 5}),
    "no cursor in words": request("tools/list", {"cursor": None}),
    "a method of nobody's": request("tools/sell", {"name": "x"}),
    "another method": request("resources/templates/list"),
    "a refusal": call("stall__refuse"),
    "a bug": call("stall__break"),
    "a fault": call("stall__fault"),
    "a fault with a status": call("stall__fault", {"code": -32602}),
    "a fault of a method": call("stall__fault", {"code": -32601}),
    "content": call("stall__picture"),
    "an object": call("stall__object", {"deep": {"er": [1, None]}}),
    "a number as a value": call("stall__number"),
    "progress nobody wants": call("stall__count"),
    "keys besides": {**ECHO, "extra": 1},
    "a result besides": {**ECHO, "result": {}},
    "an error besides": {**ECHO, "error": {"code": 1, "message": "x"}},
    "params of no use": but(ECHO, weather="fine"),
    "answers to nothing": but(ECHO, inputResponses={}, requestState="x"),
    "answers of a wrong kind": but(ECHO, inputResponses=[]),
    "a task": but(ECHO, task={"ttl": 5}),
    "no params": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
    "params null": {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": None},
    "params as a list": {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": []},
    "another JSON-RPC": {**ECHO, "jsonrpc": "1.0"},
    "no JSON-RPC": {key: value for key, value in ECHO.items() if key != "jsonrpc"},
    "a number for a method": {**ECHO, "method": 5},
    "a list for a method": {**ECHO, "method": []},
    "a notification": {key: value for key, value in ECHO.items() if key != "id"},
    "a batch": json.dumps([ECHO, ECHO]).encode(),
    "an empty batch": b"[]",
    "a string": b'"tools/call"',
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": text(ECHO, '"a"', '"\xff"').decode().encode("latin-1"),
    "UTF-16": json.dumps(ECHO).encode("utf-16"),
    "a byte order mark": json.dumps(ECHO).encode("utf-8-sig"),
    "space around": b" \r\n\t" + json.dumps(ECHO).encode() + b"\n ",
    "duplicate keys": text(ECHO, '"a": 1', '"a": 1, "a": 2'),
    "duplicate ids": text(ECHO, '"id": 1', '"id": 2, "id": 1'),
    "not a number": call("stall__echo", {"a": float("nan")}),
    "infinity": call("stall__echo", {"a": float("inf")}),
    "a float too large": text(ECHO, '"a": 1', '"a": 1e400'),
    "minus nothing": text(ECHO, '"a": 1', '"a": -0'),
    "the largest small integer": call("stall__echo", {"a": 2**63 - 1, "b": -(2**63)}),
    "more than 64 bits": call("stall__echo", {"a": 2**64, "b": 10**40}),
    "a long fraction": text(ECHO, '"a": 1', '"a": 0.12345678901234567890123'),
    "a number as text": call("stall__echo", {"a": "1" * 40}),
    "a lone surrogate": call("stall__echo", {"a": "\ud800"}),
    "a lone surrogate for a name": call("\ud800", {}),
    "a pair of surrogates": call("stall__echo", {"a": "😀", "ключ": "ß"}),
    "a nul": call("stall__echo", {"a": "\0"}),
    "deep arguments": text(ECHO, '"a": 1', '"a": ' + "[" * 150 + "]" * 150),
    "bottomless arguments": text(ECHO, '"a": 1', '"a": ' + "[" * 5000 + "]" * 5000),
    "a mebibyte": call("stall__echo", {"a": "x" * 1024 * 1024}),
    "a chat": call("stall__echo", {"a": 1}, meta={"dev.toolgate/chat": "garden"}),
    "messages": call(
        "stall__echo", {}, meta={"dev.toolgate/message": "m1", "dev.toolgate/parent_message": "m0", "else": [1]}
    ),
    "a number for a chat": call("stall__echo", {"a": 1}, meta={"dev.toolgate/chat": 5}),
    "a chat with a line break": call("stall__echo", {"a": 1}, meta={"dev.toolgate/chat": "a\nb"}),
    "an empty chat": call("stall__echo", {"a": 1}, meta={"dev.toolgate/chat": ""}),
    "no meta": but(ECHO, _meta=None),
    "meta as a list": but(ECHO, _meta=[]),
    "meta as text": but(ECHO, _meta="x"),
    "meta without envelope": but(ECHO, _meta={}),
    "a token": saying(progressToken="t"),
    "no token in words": saying(progressToken=None),
    "a float for a token": saying(progressToken=1.5),
    "yes for a token": saying(progressToken=True),
    "an object for a token": saying(progressToken={}),
    "meta under their Python names": but(ECHO, _meta={**ENVELOPE, "progress_token": {}}),
} | {f"id {number!r}": {**ECHO, "id": number} for number in IDS}

ENVELOPES: dict[str, Any] = {
    "a level": saying(logLevel="info"),
    "a level of nobody's": saying(logLevel="loud"),
    "a number for a level": saying(logLevel=3),
    "a list for a level": saying(logLevel=[]),
    "no level in words": saying(logLevel=None),
    "no name": saying(clientInfo={"version": "1"}),
    "a number for a version": saying(clientInfo={"name": "n", "version": 1}),
    "no client in words": saying(clientInfo=None),
    "a client as text": saying(clientInfo="n"),
    "a client with a title": saying(clientInfo={"name": "n", "version": "1", "title": "N", "websiteUrl": "x"}),
    "a number for a title": saying(clientInfo={"name": "n", "version": "1", "title": 5}),
    "a number for a page": saying(clientInfo={"name": "n", "version": "1", "websiteUrl": 5}),
    "icons": saying(clientInfo={"name": "n", "version": "1", "icons": [{"src": "x"}]}),
    "wrong icons": saying(clientInfo={"name": "n", "version": "1", "icons": [{"source": "x"}]}),
    "a long name": saying(clientInfo={"name": "n" * 300, "version": "1"}),
    "capabilities": saying(clientCapabilities={**ABLE, "sampling": {}, "roots": {}, "extensions": {"a/b": {"c": 1}}}),
    "capabilities of their own": saying(clientCapabilities={"weather": {"rain": True}}),
    "capabilities of their own and no shape": saying(clientCapabilities={"weather": True}),
    "no capabilities in words": saying(clientCapabilities=None),
    "capabilities as a list": saying(clientCapabilities=[]),
    "a capability as text": saying(clientCapabilities={"elicitation": "yes"}),
    "a capability null": saying(clientCapabilities={"elicitation": None}),
    "a number for forms": saying(clientCapabilities={"elicitation": {"form": 5}}),
    "no forms in words": saying(clientCapabilities={"elicitation": {"form": None}}),
    "more than forms": saying(clientCapabilities={"elicitation": {"form": {}, "voice": 5}}),
    "yes for tools": saying(clientCapabilities={"sampling": {"tools": True}}),
    "a root that changes": saying(clientCapabilities={"roots": {"listChanged": True}}),
    "a root that changes maybe": saying(clientCapabilities={"roots": {"listChanged": "maybe"}}),
    "an experiment": saying(clientCapabilities={"experimental": {"x": {}}}),
    "an experiment of no shape": saying(clientCapabilities={"experimental": {"x": 1}}),
    "an extension of no shape": saying(clientCapabilities={"extensions": {"x": 1}}),
    "another version": call("stall__echo", {}, meta={PREFIX + "protocolVersion": "2027-01-01"}),
    "an older version": call("stall__echo", {}, meta={PREFIX + "protocolVersion": HANDSHAKE}),
    "a number for a version of the protocol": call("stall__echo", {}, meta={PREFIX + "protocolVersion": 5}),
    "no version": but(ECHO, _meta={PREFIX + "clientCapabilities": {}}),
    "nothing but a version": but(ECHO, _meta={PREFIX + "protocolVersion": MODERN}),
    "an anonymous client": but(ECHO, _meta={PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}),
}


HEADERS: dict[str, Any] = {
    "no method": {"mcp-method": None},
    "another method": {"mcp-method": "tools/list"},
    "a method in capitals": {"mcp-method": "TOOLS/CALL"},
    "no name": {"mcp-name": None},
    "another name": {"mcp-name": "stall__typed"},
    "an empty name": {"mcp-name": ""},
    "a name in base64": {"mcp-name": "=?base64?c3RhbGxfX2VjaG8=?="},
    "another name in base64": {"mcp-name": "=?base64?c3RhbGw=?="},
    "no base64": {"mcp-name": "=?base64?***?="},
    "spaces around": {"mcp-name": " stall__echo\t", "mcp-method": "tools/call "},
    "no version": {"mcp-protocol-version": None},
    "an older version": {"mcp-protocol-version": HANDSHAKE},
    "a version of nobody's": {"mcp-protocol-version": "2027-01-01"},
    "two methods": [("mcp-method", "tools/call")],
    "two names": [("mcp-name", "stall__echo")],
    "two versions": [("mcp-protocol-version", MODERN)],
    "two of another kind": [("x-a", "1"), ("x-a", "2")],
    "two ways to accept": [("accept", "text/plain")],
    "two content types": [("content-type", "text/plain")],
    "two hosts": [("host", "127.0.0.1")],
    "plain text": {"content-type": "text/plain"},
    "no content type": {"content-type": None},
    "a charset": {"content-type": "application/json; charset=utf-8"},
    "JSON in capitals": {"content-type": "Application/JSON"},
    "nearly JSON": {"content-type": "application/jsonl"},
    "JSON and more": {"content-type": "application/json, text/plain"},
    "accepts JSON only": {"accept": "application/json"},
    "accepts a stream only": {"accept": "text/event-stream"},
    "accepts nothing": {"accept": None},
    "accepts anything": {"accept": "*/*"},
    "accepts with weights": {"accept": "text/event-stream;q=0.5, application/json;q=0.9"},
    "accepts nearly JSON": {"accept": "application/jsonl, text/event-stream"},
    "accepts nearly a stream": {"accept": "application/json, text/event-streams"},
    "accepts them in a word": {"accept": "application/json;x=text/event-stream"},
    "a session of nobody's": {"mcp-session-id": "nobody"},
    "another host": {"host": "evil.example"},
    "another origin": {"origin": "http://evil.example"},
    "a parameter nobody wants": {"mcp-param-where": "here"},
    "no length": {"content-length": None},
}


@pytest.mark.parametrize("message", [*MESSAGES.values(), *ENVELOPES.values()], ids=[*MESSAGES, *ENVELOPES])
async def test_modern_request_gets_the_same_response(servers: Servers, message: Any) -> None:
    await assert_same(servers, Client(servers.fast), Client(servers.sdk), message, _modern_headers(message))


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
async def test_request_in_a_session_gets_the_same_response(servers: Servers, message: Any) -> None:
    await assert_same(servers, *await sessions(servers), _older(message))


async def test_arguments_in_a_session_may_be_nested_deeper_than_the_sdk_allows(servers: Servers) -> None:
    """On purpose another answer: one that names the reason, and that is recorded."""
    fast, sdk = await sessions(servers)
    deep = text(_older(ECHO), '"a": 1', '"a": ' + "[" * 300 + "]" * 300)
    assert (await fast.ask(deep)).message["result"]["_meta"]["dev.toolgate/error"]["code"] == "INVALID_JSON"
    assert (await sdk.ask(deep)).status == 400


@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05"])
async def test_session_of_an_older_version_gets_the_same_response(servers: Servers, version: str) -> None:
    fast, sdk = await sessions(servers, version)
    for message in (ECHO, request("tools/list"), call("stall__number")):
        await assert_same(servers, fast, sdk, _older(message))


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
async def test_headers_have_the_same_effect(servers: Servers, headers: Any) -> None:
    await assert_same(servers, Client(servers.fast), Client(servers.sdk), ECHO, headers)


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
async def test_headers_have_the_same_effect_in_a_session(servers: Servers, headers: Any) -> None:
    await assert_same(servers, *await sessions(servers), _older(ECHO), headers)


async def test_content_length_that_is_there_twice_is_refused_by_the_application(servers: Servers) -> None:
    """Over a connection the HTTP parser refuses it first."""
    answer = await Client(servers.sdk).ask(ECHO, [("content-length", "5")])
    assert (answer.status, answer.message["error"]["code"]) == (400, "INVALID_HEADER")


async def test_body_in_pieces_gets_the_same_response(servers: Servers) -> None:
    large = call("stall__echo", {"a": "x" * (LIMIT // 3 * 2)})
    for message in (ECHO, large, call("stall__echo", {"a": "x" * LIMIT})):
        for chunks in (1, 20):
            for headers in ({}, {"content-length": None}):
                asked = (message, {**routing(message), **headers})
                await assert_same(servers, Client(servers.fast), Client(servers.sdk), *asked, chunks=chunks)


@pytest.mark.parametrize("arguments", [{}, {"where": "here"}, {"where": None}, {"where": "ü"}])
@pytest.mark.parametrize("header", [None, "here", "there", "=?base64?w7w=?="])
async def test_argument_that_is_also_a_header_is_compared_the_same_way(
    servers: Servers, arguments: dict[str, Any], header: str | None
) -> None:
    marked = call("stall__marked", arguments)
    given = {**routing(marked), "mcp-param-where": header}
    await assert_same(servers, Client(servers.fast), Client(servers.sdk), marked, given)


@pytest.mark.parametrize(
    "url", ["/mcp?chat=garden", "/mcp?chat=", "/mcp?chat=a&chat=b", "/mcp?chat=%0a", "/mcp/", "/x"]
)
async def test_url_has_the_same_effect(servers: Servers, url: str) -> None:
    await assert_same(servers, Client(servers.fast), Client(servers.sdk), ECHO, routing(ECHO), url=url)
    await assert_same(
        servers, Client(servers.fast), Client(servers.sdk), saying(**{"dev.toolgate/chat": "own"}), url=url
    )
    await assert_same(servers, *await sessions(servers), _older(ECHO), url=url)


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "OPTIONS"])
async def test_other_http_methods_get_the_same_response(servers: Servers, method: str) -> None:
    await assert_same(servers, Client(servers.fast), Client(servers.sdk), ECHO, routing(ECHO), method=method)


async def test_ended_or_unknown_session_or_wrong_version_gets_the_same_error(servers: Servers) -> None:
    ended = await sessions(servers)
    for client in ended:
        assert (await client.delete()).status == 200
    await assert_same(servers, *ended, _older(ECHO))
    for headers in ({"mcp-session-id": "nobody"}, {"mcp-session-id": ""}, {"mcp-protocol-version": "2025-06-18"}):
        await assert_same(servers, *await sessions(servers), _older(ECHO), headers)


async def test_progress_is_the_same(servers: Servers) -> None:
    for token in (0, "", "t", 7):
        asked = call("stall__count", meta={"progressToken": token})
        await assert_same(servers, Client(servers.fast), Client(servers.sdk), asked)
        await assert_same(servers, *await sessions(servers), _older(asked))


async def test_cancellation_of_an_unknown_call_is_left_to_the_sdk(servers: Servers) -> None:
    for message in (
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": []}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled"},
        {"jsonrpc": "2.0", "id": "toolgate-1", "result": {}},
        {"jsonrpc": "2.0", "id": [], "result": {}},
        {"jsonrpc": "2.0", "result": {}},
    ):
        await assert_same(servers, *await sessions(servers), message)


@pytest.mark.parametrize("road", ["short", "long"])
async def test_notification_calls_no_tool(servers: Servers, road: str) -> None:
    """In the handshake era the SDK takes a request with an id of a wrong kind for a notification."""
    client = await servers.session() if road == "short" else (await sessions(servers))[1]
    servers.source.take_calls()
    for message in (_older({key: ECHO[key] for key in ECHO if key != "id"}), _older({**ECHO, "id": None})):
        assert (await client.ask(message)).status == 202
        await client.ask(request("ping", envelope={}))
        await servers.gateway.executor.idle()
    assert servers.source.take_calls() == []


# An empty line is no message; what is a request and an answer too may be either to the SDK.
STDIO = {
    name: message
    for name, message in (MESSAGES | ENVELOPES).items()
    if message not in (b"", b"[]") and "besides" not in name
}


async def test_modern_lines_get_the_same_responses(servers: Servers) -> None:
    fast, sdk = [await _lines(servers, fast, [ECHO, *STDIO.values()]) for fast in (True, False)]
    for name, *answers in zip(["first", *STDIO, "calls"], fast, sdk, strict=True):
        assert answers[0] == answers[1], name


async def test_handshake_lines_get_the_same_responses(servers: Servers) -> None:
    lines = [_older(message) for message in STDIO.values()]
    fast, sdk = [await _lines(servers, fast, [initialize(), INITIALIZED, *lines]) for fast in (True, False)]
    for name, *answers in zip(["hello", "hello again", *STDIO, "calls"], fast, sdk, strict=True):
        assert answers[0] == answers[1], name


async def test_first_request_on_a_pipe_decides_the_version(servers: Servers) -> None:
    modern_first = [ECHO, initialize(), _older(ECHO), ECHO, request("tools/list")]
    handshake_first = [initialize(), ECHO, INITIALIZED, {**ECHO, "id": 2}, {**_older(ECHO), "id": 3}]
    for lines in (modern_first, handshake_first, [_older(ECHO), ECHO, initialize(), ECHO]):
        answers = [await _lines(servers, fast, lines) for fast in (True, False)]
        assert answers[0] == answers[1]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["info", "x", MODERN]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
PLACES = [
    ("id",),
    ("method",),
    ("extra",),
    ("params",),
    ("params", "name"),
    ("params", "arguments"),
    ("params", "arguments", "a"),
    ("params", "cursor"),
    ("params", "_meta"),
    ("params", "_meta", "progressToken"),
    ("params", "_meta", "dev.toolgate/chat"),
    *(("params", "_meta", key) for key in ENVELOPE),
    ("params", "_meta", PREFIX + "logLevel"),
    *(("params", "_meta", PREFIX + "clientCapabilities", key) for key in ("elicitation", "sampling", "experimental")),
    ("params", "_meta", PREFIX + "clientInfo", "title"),
]


@settings(deadline=None)
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), JSON), max_size=2), listed=st.booleans())
async def test_mutated_request_gets_the_same_response(
    servers: Servers, in_session: tuple[Client, Client], changes: list[tuple[tuple[str, ...], Any]], listed: bool
) -> None:
    message = json.loads(json.dumps(request("tools/list") if listed else ECHO))
    for place, value in changes:
        _put(message, place, value)
    await assert_same(servers, Client(servers.fast), Client(servers.sdk), message, _modern_headers(message))
    await assert_same(servers, *in_session, _older(message))


async def sessions(servers: Servers, version: str = HANDSHAKE) -> tuple[Client, Client]:
    """A client in a session on each road."""
    fast, sdk = await servers.session(version=version), Client(servers.sdk)
    await sdk.open(version=version)
    return fast, sdk


async def assert_same(servers: Servers, fast: Client, sdk: Client, *asked: Any, **options: Any) -> None:
    """Send a request on both paths and compare the responses and the calls that reached the tools."""
    found = []
    for client in (fast, sdk):
        answer = await client.ask(*asked, **options)
        if answer.status == 202 and client.session:  # acknowledged before it is read
            await client.ask(request("ping", envelope={}))
            await servers.gateway.executor.idle()
            servers.source.take_calls()
        era = HANDSHAKE if client.session else MODERN
        own = client.session.get("mcp-session-id", "no session")
        shown_text = repr((shown(answer, era), servers.source.take_calls())).replace(own, "SESSION")
        shown_text = re.sub(
            r"(?<=Missing session ID): send initialize.*?\(header MCP-Protocol-Version\)", "", shown_text
        )
        shown_text = re.sub(r"there is no \S+: MCP is at /mcp.*? the console at /", "Not Found", shown_text)
        found.append((shown_text, answer.headers.get("mcp-session-id") == client.session.get("mcp-session-id")))
    assert found[0] == found[1]


async def _lines(servers: Servers, fast: bool, lines: list[Any]) -> Any:
    """What each line is answered, None where it is not."""
    found: list[Any] = []
    async with serve_on_pipes(servers.gateway, fast=fast) as pipes:
        for number, line in enumerate(lines):
            pipes.send(line, request("ping", number=f"ping {number}", envelope={}))
            answers = [await pipes.line()]
            while all(answer.get("id") != f"ping {number}" for answer in answers):
                answers.append(await pipes.line())
            if len(answers) == 1 and _is_answered(line):
                answers.append(await pipes.line())
            found.append([anonymous(each) for each in answers if each.get("id") != f"ping {number}"])
    return [*found, repr(servers.source.take_calls())]


def _is_answered(line: Any) -> bool:
    """Whether it is a request, or no message at all."""
    return isinstance(line, bytes) or (type(line.get("id")) in (int, str) and isinstance(line.get("method"), str))


def _modern_headers(message: Any) -> dict[str, str]:
    headers = routing(message if isinstance(message, dict) else ECHO)
    return {name: value if value.isascii() and value.isprintable() else "x" for name, value in headers.items()}


def _older(message: Any) -> Any:
    """The same in the handshake era, which has no envelope."""
    if not isinstance(message, dict) or not isinstance(message.get("params"), dict):
        return message
    meta = message["params"].get("_meta")
    if not isinstance(meta, dict):
        return message
    left = {key: value for key, value in meta.items() if key not in ENVELOPE}
    params = {key: value for key, value in message["params"].items() if key != "_meta"}
    return {**message, "params": {**params, **({"_meta": left} if left else {})}}


def _put(message: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    for key in place[:-1]:
        inner = message.get(key)
        if not isinstance(inner, dict):
            return
        message = inner
    message[place[-1]] = value
