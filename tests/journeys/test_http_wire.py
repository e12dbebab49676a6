"""What goes over HTTP, header by header: the parts a client library would hide or never write."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from .processes import LISTENING, PATIENCE, Listening, Process, on_http, on_stdio, serve_command
from .wire import ERAS, HANDSHAKE, INITIALIZE, MODERN, call, exchange, nested, open_session, post, request, routing

pytestmark = pytest.mark.timeout(600)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
# Bytes of one request, with default settings: four times what a tool's arguments may have.
LIMIT = 32 * 1024 * 1024


@pytest.mark.promise("G7")
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3:8420", "gateway.cluster.local"])
def test_a_serving_gateway_is_healthy_and_ready_for_any_host_name(listening: Listening, path: str, host: str) -> None:
    answer = exchange(_at(listening, path), "GET", headers={"host": host})
    assert (answer.status, json.loads(answer.body)["ok"]) == (200, True)
    page = exchange(_at(listening, path), "GET", headers={"host": host, "origin": "http://evil.example"})
    assert page.status == 403


@pytest.mark.promise("G7")
@pytest.mark.parametrize("path", ["/mcp", "/nowhere"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost@evil.example"]
)
def test_a_request_for_another_host_is_misdirected(listening: Listening, path: str, host: str) -> None:
    for method in ("GET", "POST"):
        answer = exchange(_at(listening, path), method, headers={"host": host})
        assert answer.status == 421
        assert answer.body


@pytest.mark.promise("G7")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("origin", ["http://evil.example", "https://localhost.evil.example", "null", "file://"])
def test_a_page_of_another_site_is_forbidden(listening: Listening, era: str, origin: str) -> None:
    opening = INITIALIZE if era == HANDSHAKE else request(MODERN, 1, "tools/list")
    answer = post(listening.url, opening, {"origin": origin})
    assert answer.status == 403
    assert answer.body


@pytest.mark.promise("G7")
@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1"])
def test_a_page_on_this_machine_may_use_the_gateway(listening: Listening, origin: str) -> None:
    answer = post(listening.url, request(MODERN, 1, "tools/list"), {"origin": origin})
    assert (answer.status, "result" in answer.message) == (200, True)


@pytest.mark.promise("G7")
def test_localhost_is_this_machine_too(listening: Listening) -> None:
    port = urlsplit(listening.url).port
    answer = post(listening.url, request(MODERN, 1, "tools/list"), {"host": f"localhost:{port}"})
    assert answer.status == 200


@pytest.mark.promise("G3")
def test_modern_request_needs_no_session_and_gets_none(listening: Listening) -> None:
    answer = post(listening.url, request(MODERN, 1, "tools/list"))
    assert (answer.status, answer.message["id"]) == (200, 1)
    assert "mcp-session-id" not in answer.headers


@pytest.mark.promise("G3")
def test_session_ends_when_its_client_deletes_it(listening: Listening) -> None:
    session = open_session(listening.url)
    assert "result" in post(listening.url, request(HANDSHAKE, 1, "tools/list"), session).message
    assert exchange(listening.url, "DELETE", headers=session).status == 200
    assert post(listening.url, request(HANDSHAKE, 2, "tools/list"), session).status == 404


@pytest.mark.promise("G3")
def test_unknown_session_is_not_found(listening: Listening) -> None:
    session = {"mcp-session-id": "0" * 32, "mcp-protocol-version": HANDSHAKE}
    assert post(listening.url, request(HANDSHAKE, 1, "tools/list"), session).status == 404


@pytest.mark.promise("G3")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("body", [b"no json", b"\xff\xfe", b"{", b""], ids=["words", "no-utf8", "cut-short", "empty"])
def test_http_body_that_is_not_json_is_a_parse_error(listening: Listening, era: str, body: bytes) -> None:
    answer = post(listening.url, body, _headers(listening, era))
    assert (answer.status, answer.message["error"]["code"]) == (400, PARSE_ERROR)
    _assert_alive(listening)


@pytest.mark.promise("G3")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("body", [b"[1,2]", b"[]", b"7", b'{"jsonrpc": "2.0"}', b'{"id": 1, "method": ["x"]}'])
def test_json_that_is_not_one_message_is_refused_in_one_sentence(listening: Listening, era: str, body: bytes) -> None:
    for headers in (_headers(listening, era), {}):
        answer = post(listening.url, body, headers)
        error = answer.message["error"]
        assert (answer.status, answer.message["id"], error["code"]) == (400, None, INVALID_REQUEST)
        if headers and era == MODERN:
            assert error["message"] == "Body must be a single JSON-RPC request or notification object"
        else:
            assert "a batch is not taken; send one message per request" in error["message"]
            assert len(error["message"]) < 120
    _assert_alive(listening)


@pytest.mark.promise("G3")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_json_nested_without_end_is_refused(listening: Listening, era: str, depth: int) -> None:
    answer = post(listening.url, nested(era, depth), _headers(listening, era)).message
    assert "error" in answer or answer["result"]["isError"]
    _assert_alive(listening)


@pytest.mark.promise("B11")
@pytest.mark.parametrize("era", ERAS)
def test_a_body_over_the_limit_is_too_large_and_the_answer_names_the_limit(listening: Listening, era: str) -> None:
    session = open_session(listening.url) if era == HANDSHAKE else {}
    message = call(era, 1, "write_file", {"path": "big.txt", "content": "x" * (LIMIT + 1)})
    answer = post(listening.url, message, session)
    assert answer.status == 413
    assert str(LIMIT) in answer.body.decode()
    _assert_alive(listening)


@pytest.mark.promise("B11")
def test_a_body_without_a_length_meets_the_same_limit(listening: Listening) -> None:
    parts = urlsplit(listening.url)
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json", **routing(MODERN)}
    chunks = (b"x" * 1024 * 1024 for _ in range(LIMIT // (1024 * 1024) + 1))
    with closing(http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)) as connection:
        connection.request("POST", parts.path, chunks, headers, encode_chunked=True)
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (413, True)
    _assert_alive(listening)


@pytest.mark.promise("G3")
@pytest.mark.parametrize("era", ERAS)
def test_another_content_type_is_refused(listening: Listening, era: str) -> None:
    headers = {**_headers(listening, era), "content-type": "text/plain"}
    assert post(listening.url, request(era, 1, "tools/list"), headers).status in (400, 415)


@pytest.mark.promise("G3")
def test_call_with_different_names_in_headers_and_body_is_refused(listening: Listening) -> None:
    message = call(MODERN, 1, "read_file", {"path": "a.txt"})
    answer = post(listening.url, message, {"mcp-name": "list_directory"})
    assert (answer.status, answer.message["error"]["code"]) == (400, -32020)


def test_spaces_around_a_header_value_are_ignored(listening: Listening, chat: str) -> None:
    asked = call(MODERN, 1, "list_directory", {}, chat)
    answer = post(listening.url, asked, {"mcp-name": "  list_directory \t", "origin": " http://localhost  "})
    assert (answer.status, answer.message["result"]["isError"]) == (200, False)


@pytest.mark.promise("G3")
def test_unknown_protocol_version_is_answered_with_the_supported_ones(listening: Listening) -> None:
    message = request(MODERN, 1, "tools/list", {"_meta": {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}})
    answer = post(listening.url, message, {"mcp-protocol-version": "2099-01-01"})
    assert (answer.status, answer.message["error"]["code"]) == (400, -32022)
    assert MODERN in answer.message["error"]["data"]["supported"]


@pytest.mark.promise("G3")
def test_modern_and_handshake_clients_are_served_at_the_same_time(listening: Listening, chat: str) -> None:
    session = open_session(listening.url)
    written = post(listening.url, call(HANDSHAKE, 1, "write_file", {"path": "a.txt", "content": "a"}, chat), session)
    read = post(listening.url, call(MODERN, 2, "read_file", {"path": "a.txt"}, chat))
    assert written.message["result"]["structuredContent"] == {"path": "a.txt", "size": 1, "created": True}
    assert read.message["result"]["structuredContent"]["content"] == "a"


@pytest.mark.promise("G7")
@pytest.mark.slow
def test_sigterm_stops_the_gateway_cleanly_while_a_client_listens(tmp_path: Path) -> None:
    with on_http(tmp_path) as gateway:
        session = open_session(gateway.url)
        parts = urlsplit(gateway.url)
        with closing(http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)) as stream:
            stream.request("GET", parts.path, headers={**session, "accept": "text/event-stream"})
            with closing(stream.getresponse()) as events:
                assert events.status == 200
                gateway.signal(signal.SIGTERM)
                assert gateway.wait() == 0
        assert gateway.rest() == []
        assert "Traceback" not in gateway.log.read_text()


@pytest.mark.promise("G3")
def test_one_process_serves_stdio_and_http_on_the_same_files(tmp_path: Path) -> None:
    with on_stdio(tmp_path, "--transport", "stdio", "--transport", "http", "--port", "0") as gateway:
        url = gateway.complaint(LISTENING).group()
        written = gateway.ask(call(MODERN, 1, "write_file", {"path": "a.txt", "content": "by pipe"}, "shared"))
        assert written["result"]["isError"] is False
        read = post(url, call(MODERN, 2, "read_file", {"path": "a.txt"}, "shared"))
        assert read.message["result"]["structuredContent"]["content"] == "by pipe"
        gateway.close_stdin()
        assert gateway.wait() == 0


@pytest.mark.promise("G7")
def test_a_port_in_use_is_one_readable_line_and_exit_code_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway = Process(serve_command(tmp_path / "data", "--transport", "http", "--port", str(port)), tmp_path)
        try:
            gateway.complaint(rf"^toolgate: [A-Z_]+: .*\b{port}\b")
            assert gateway.wait() == 1
            assert "Traceback" not in gateway.log.read_text()
        finally:
            gateway.end()


def _at(listening: Listening, path: str) -> str:
    return listening.url.removesuffix("/mcp") + path


def _headers(listening: Listening, era: str) -> dict[str, str]:
    return open_session(listening.url) if era == HANDSHAKE else routing(MODERN)


def _assert_alive(listening: Listening) -> None:
    answer = post(listening.url, call(MODERN, "alive", "list_directory", {"path": "."}, "alive"))
    assert (answer.status, answer.message["result"]["isError"]) == (200, False)
