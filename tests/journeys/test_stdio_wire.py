"""What goes over stdin and stdout, line by line: the parts a client library would hide or never write."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .processes import PATIENCE, Process, environment, on_stdio, serve_command, to_line
from .wire import HANDSHAKE, INITIALIZE, INITIALIZED, MODERN, call, nested, request

pytestmark = pytest.mark.timeout(600)

# Bytes of one message, as configured here: four times what a tool's arguments may have.
LIMIT = 256 * 1024
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601


@pytest.fixture(scope="module", params=[MODERN, pytest.param(HANDSHAKE, marks=pytest.mark.slow)])
def era(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(scope="module")
def gateway(era: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One process per era for every test here: each shows that what the one before sent did no harm."""
    directory = tmp_path_factory.mktemp(f"wire-{era}")
    config = directory / "toolgate.yaml"
    config.write_text(f"limits: {{request_bytes: {LIMIT // 4}}}\n")
    with on_stdio(directory, "--config", str(config)) as process:
        if era == HANDSHAKE:
            assert process.ask(INITIALIZE)["result"]["protocolVersion"] == HANDSHAKE
            process.send(INITIALIZED)
        else:
            assert MODERN in process.ask(request(MODERN, 0, "server/discover"))["result"]["supportedVersions"]
        yield process


@pytest.mark.promise("G3")
@pytest.mark.parametrize(
    "line",
    [
        b"this is no message\n",
        b"{\n",
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"\n',
        b"\xff\xfe\xfa\n",
        b'{"jsonrpc": "2.0", "id": 1, "method": "\xc3\x28"}\n',
        b"\x00\n",
    ],
    ids=["words", "brace", "cut-short", "no-utf8", "no-utf8-inside", "nul"],
)
def test_line_that_is_not_json_gets_a_parse_error(gateway: Process, era: str, line: bytes) -> None:
    assert gateway.ask(line)["error"]["code"] == PARSE_ERROR
    _assert_alive(gateway, era)


@pytest.mark.promise("G3")
@pytest.mark.parametrize(
    "line",
    [b"7\n", b"null\n", b'"words"\n', b"[]\n", b"{}\n", b'{"jsonrpc": "1.0", "id": 3, "method": "tools/list"}\n'],
    ids=["number", "null", "string", "batch", "empty", "version-1"],
)
def test_json_that_is_not_a_message_gets_an_invalid_request_error(gateway: Process, era: str, line: bytes) -> None:
    assert gateway.ask(line)["error"]["code"] == INVALID_REQUEST
    _assert_alive(gateway, era)


@pytest.mark.promise("G3")
@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_json_nested_without_end_is_refused(gateway: Process, era: str, depth: int) -> None:
    answer = gateway.ask(nested(era, depth) + b"\n")
    assert "error" in answer or answer["result"]["isError"]
    _assert_alive(gateway, era)


@pytest.mark.promise("B11")
@pytest.mark.parametrize("size", [LIMIT, 10_000_000])
def test_a_message_over_the_limit_is_answered_under_its_own_id_with_the_limit(
    gateway: Process, era: str, size: int
) -> None:
    answer = gateway.ask(call(era, "big", "write_file", {"path": "big.txt", "content": "x" * size}))
    assert (answer["id"], answer["error"]["code"]) == ("big", INVALID_REQUEST)
    assert str(LIMIT) in answer["error"]["message"]
    _assert_alive(gateway, era)


@pytest.mark.promise("G3")
def test_unknown_method_gets_a_method_not_found_error(gateway: Process, era: str) -> None:
    answer = gateway.ask(request(era, 5, "tools/dance"))
    assert (answer["id"], answer["error"]["code"]) == (5, METHOD_NOT_FOUND)
    _assert_alive(gateway, era)


@pytest.mark.promise("G3")
def test_parameters_of_the_wrong_shape_are_refused_without_a_traceback(gateway: Process, era: str) -> None:
    for params in ({}, {"name": 7}, {"name": "read_file", "arguments": [1]}, {"name": None, "arguments": "x"}):
        answer = gateway.ask(request(era, 6, "tools/call", params))
        assert (answer["id"], answer["error"]["code"]) == (6, -32602)
        assert "Traceback" not in answer["error"]["message"]
    _assert_alive(gateway, era)


@pytest.mark.promise("G3")
def test_a_message_may_come_in_pieces_with_blank_lines_and_windows_endings(gateway: Process, era: str) -> None:
    line = to_line(request(era, 7, "tools/list"))
    gateway.send(b"\n\r\n  \n", line[:20])
    gateway.send(line[20:-1], b"\r\n")
    assert gateway.receive()["id"] == 7


@pytest.mark.promise("G3")
def test_ids_come_back_as_they_were_sent(gateway: Process, era: str) -> None:
    for number in (0, "0", "ünï", 2**53 - 1):
        assert gateway.ask(request(era, number, "tools/list"))["id"] == number


@pytest.mark.promise("X2")
def test_cancelled_call_does_not_affect_others(gateway: Process, era: str) -> None:
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "gone"}}
    gateway.send(to_line(call(era, "gone", "list_directory", {"path": "."})) + to_line(cancel))
    gateway.send(request(era, "next", "tools/list"))
    # Whether the call was quicker than its cancellation is nobody's promise; that the next one is answered is.
    answers = [gateway.receive()["id"]]
    while answers[-1] != "next":
        answers.append(gateway.receive()["id"])
    assert answers in (["next"], ["gone", "next"])


@pytest.mark.promise("G3")
def test_client_that_is_closing_is_answered_and_sent_nothing_else(tmp_path: Path) -> None:
    """The Python SDK 1 fails with BrokenResourceError if it is sent a notification while it closes."""
    with on_stdio(tmp_path) as process:
        process.ask(INITIALIZE)
        process.send(INITIALIZED)
        process.ask(request(HANDSHAKE, 1, "resources/list"))
        process.send(call(HANDSHAKE, 2, "write_file", {"path": "a.txt", "content": "new in the list"}))
        process.close_stdin()
        [line] = process.rest()
        answer = json.loads(line)
        assert answer["id"] == 2 and not answer["result"]["isError"]


def test_handshake_works_after_a_request_before_it_was_refused(tmp_path: Path) -> None:
    with on_stdio(tmp_path) as gateway:
        assert "error" in gateway.ask({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert gateway.ask(INITIALIZE)["result"]["serverInfo"]["name"] == "toolgate"


@pytest.mark.promise("G3")
@pytest.mark.parametrize("asking", [pytest.param(MODERN, marks=pytest.mark.slow), HANDSHAKE])
def test_requests_followed_by_the_end_of_input_are_all_answered(tmp_path: Path, asking: str) -> None:
    with on_stdio(tmp_path) as gateway:
        gateway.send(b"".join(_conversation(asking)))
        gateway.close_stdin()
        _assert_all_answered(asking, gateway.rest())
        assert gateway.wait() == 0


@pytest.mark.promise("G3")
@pytest.mark.parametrize("asking", [MODERN, HANDSHAKE])
@pytest.mark.slow
def test_requests_kept_in_a_file_are_all_answered(tmp_path: Path, asking: str) -> None:
    conversation = tmp_path / "conversation.jsonl"
    conversation.write_bytes(b"".join(_conversation(asking)))
    with conversation.open("rb") as stdin:
        finished = subprocess.run(
            serve_command(tmp_path / "data"),
            stdin=stdin,
            capture_output=True,
            cwd=tmp_path,
            env=environment(tmp_path),
            timeout=PATIENCE,
            check=False,
        )
    assert finished.returncode == 0, finished.stderr.decode()
    _assert_all_answered(asking, finished.stdout.splitlines())


@pytest.mark.promise("G3")
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])
def test_signal_stops_the_gateway_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with on_stdio(tmp_path) as gateway:
        assert "result" in gateway.ask(INITIALIZE)
        gateway.signal(number)
        assert gateway.wait() == 0
        assert gateway.rest() == []
        assert "Traceback" not in gateway.log.read_text()


def _conversation(era: str) -> list[bytes]:
    greeting = [] if era == MODERN else [INITIALIZE, INITIALIZED]
    writes = [call(era, n, "write_file", {"path": f"{n}.txt", "content": f"{n}"}) for n in range(20)]
    return [to_line(message) for message in [*greeting, *writes, request(era, "tools", "tools/list")]]


def _assert_all_answered(era: str, lines: list[bytes]) -> None:
    """Every request once, no error among the answers, and nothing else on stdout."""
    messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert all(message["jsonrpc"] == "2.0" for message in messages)
    greeting = [] if era == MODERN else ["hello"]
    assert sorted(str(message["id"]) for message in messages) == sorted([*greeting, *map(str, range(20)), "tools"])
    results = {message["id"]: message["result"] for message in messages}
    assert [results[n]["structuredContent"]["path"] for n in range(20)] == [f"{n}.txt" for n in range(20)]


def _assert_alive(gateway: Process, era: str) -> None:
    answer = gateway.ask(call(era, "alive", "list_directory", {"path": "."}))
    assert (answer["id"], answer["result"]["isError"]) == ("alive", False)
