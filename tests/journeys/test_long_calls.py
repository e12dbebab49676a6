"""Calls that take long: progress keeps them alive, and a client whose connection breaks gets their answer."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from amounts import NIGHTLY
from mcp import Client
from sources.toolset.writing import require_sandbox, write_toolset

from .clients import over_http, refusal, text
from .processes import PATIENCE, Listening, on_http
from .servers import labs
from .wire import ERAS, HANDSHAKE, open_session, request, routing_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.promise("G2", "G3")]

# Seconds without progress after which these gateways end a call.
TIMEOUT = 4

# A client that begins a call, prints each event of its stream, and is killed before the answer.
KILLED = """
import http.client, json, sys
address, headers, body = sys.argv[1:]
connection = http.client.HTTPConnection(address)
connection.request("POST", "/mcp", body, json.loads(headers))
for line in connection.getresponse():
    sys.stdout.buffer.write(line)
    sys.stdout.flush()
"""


MANIFEST = """
id: counter
name: Toolset
version: 1.0.0
tools:
  - {id: count, entrypoint: "code:count"}
  - {id: nap, entrypoint: "code:nap"}
"""
CODE = """
import time
from covalt_toolset import get_context, tool

@tool
def count(steps: int, pause: float = 0) -> str:
    "Count."
    for step in range(1, steps + 1):
        get_context().progress(step, steps, "on")
        time.sleep(pause)
    return "counted"

@tool
def nap() -> None:
    "Sleep."
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """A gateway with little patience, in front of a lab of each era and a toolset."""
    with labs.on_http("handshake") as handshake:
        directory = tmp_path_factory.mktemp("gateway")
        write_toolset(directory / "toolset", MANIFEST, code=CODE)
        settings = {
            "mcpServers": {"modern": labs.on_stdio("modern"), "handshake": {"url": handshake}},
            "toolsets": ["./toolset"],
            "approval": {"mode": "never"},
            "limits": {"timeout": TIMEOUT},
        }
        file = directory / "toolgate.yaml"
        file.write_text(json.dumps(settings))
        with on_http(directory, "--config", str(file)) as running:
            yield running


@pytest.mark.parametrize("owner", ["modern", "handshake", "counter"])
@pytest.mark.parametrize("era", ERAS)
async def test_call_with_progress_outlives_its_timeout(gateway: Listening, era: str, owner: str) -> None:
    if owner == "counter":
        await require_sandbox()
    reports: list[float] = []

    async def count(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)

    async with over_http(gateway.url, era) as client:
        result = await client.call_tool(
            f"{owner}__count", {"steps": 30, "pause": TIMEOUT / 16}, progress_callback=count
        )
        assert text(result) == '"counted"'
        assert reports == [*range(1, 31)]
        error = await refusal(client, f"{owner}__nap", {})
        assert error["message"].endswith("took longer than 4 s without a progress report; raise limits.timeout")
        assert error["details"]["setting"] == "limits.timeout"


@pytest.mark.skipif(not NIGHTLY, reason="takes ten minutes, at night")
@pytest.mark.timeout(1800)
async def test_call_of_ten_minutes_is_answered_under_the_default_limits(tmp_path: Path) -> None:
    with labs.on_http("handshake") as handshake:
        servers = {"modern": labs.on_stdio("modern"), "handshake": {"url": handshake}}
        file = tmp_path / "toolgate.yaml"
        file.write_text(json.dumps({"mcpServers": servers, "approval": {"mode": "never"}}))

        async def call(url: str, era: str, owner: str) -> None:
            reports: list[float] = []

            async def count(progress: float, total: float | None, message: str | None) -> None:
                reports.append(progress)

            async with over_http(url, era, patience=1500) as client:
                arguments = {"steps": 120, "pause": 5}
                result = await client.call_tool(f"{owner}__count", arguments, progress_callback=count)
            assert (text(result), reports) == ('"counted"', [*range(1, 121)])

        with on_http(tmp_path, "--config", str(file)) as running:
            async with anyio.create_task_group() as calls:
                for era, owner in product(ERAS, servers):
                    calls.start_soon(call, running.url, era, owner)


@pytest.mark.parametrize("era", ERAS)
async def test_toolset_reports_reach_the_client_and_count_where_it_did_not_ask(gateway: Listening, era: str) -> None:
    await require_sandbox()
    reports: list[float] = []

    async def count(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)

    async with over_http(gateway.url, era) as client:
        await client.call_tool("counter__count", {"steps": 2000}, progress_callback=count)
        assert reports == [*range(1, 2001)]
        result = await client.call_tool("counter__count", {"steps": 30, "pause": TIMEOUT / 16})
        assert text(result) == '"counted"'


def test_client_that_is_killed_resumes_its_call_in_another_process(gateway: Listening) -> None:
    session = open_session(gateway.url)
    arguments = {"steps": 1000, "pause": 0.005}
    params = {"name": "handshake__count", "arguments": arguments, "_meta": {"progressToken": "t"}}
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    headers = {**session, "accept": "application/json, text/event-stream", "content-type": "application/json"}
    address = urlsplit(gateway.url).netloc
    argv = [sys.executable, "-c", KILLED, address, json.dumps(headers), json.dumps(message)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        seen = read_events(client.stdout, until=lambda event: b'"progress":20,' in event["data"])
        client.send_signal(signal.SIGKILL)
    resumed = read_stream(address, {**session, "accept": "text/event-stream", "last-event-id": seen[-1]["id"].decode()})
    messages = [json.loads(event["data"]) for event in (*seen, *resumed) if event["data"]]
    *reports, answer = messages
    assert [report["params"]["progress"] for report in reports] == [*range(1, 1001)]
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (7, '"counted"')


@pytest.mark.parametrize("era", ERAS)
def test_client_that_reads_late_gets_every_report(gateway: Listening, era: str) -> None:
    params = {"name": "modern__count", "arguments": {"steps": 9000}, "_meta": {"progressToken": "t"}}
    message = request(era, 7, "tools/call", params)
    headers = open_session(gateway.url) if era == HANDSHAKE else routing_of(message)
    headers |= {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=PATIENCE)
    try:
        connection.request("POST", "/mcp", json.dumps(message), headers)
        time.sleep(1)  # meanwhile more is sent than fits into the buffers of the connection
        events = read_events(connection.getresponse())
    finally:
        connection.close()
    *reports, answer = [json.loads(event["data"]) for event in events if event["data"]]
    assert [report["params"]["progress"] for report in reports] == [*range(1, 9001)]
    assert answer["result"]["content"][0]["text"] == '"counted"'


def read_stream(address: str, headers: dict[str, str]) -> list[dict[str, bytes]]:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        connection.request("GET", "/mcp", headers=headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return read_events(response)
    finally:
        connection.close()


def read_events(lines: Any, until: Any = lambda event: False) -> list[dict[str, bytes]]:
    """The events of a stream, comments left out, to its end or the first for which `until` is true."""
    events: list[dict[str, bytes]] = [{}]
    for line in lines:
        name, _, value = line.rstrip(b"\r\n").partition(b": ")
        if name:
            events[-1][name.decode()] = value
        elif "data" in events[-1]:
            if until(events[-1]):
                return events
            events.append({})
    return [event for event in events if "data" in event]


async def test_sdk_client_resumes_a_call_whose_connection_breaks(gateway: Listening) -> None:
    reports: list[float] = []
    begun = anyio.Event()

    async def count(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)
        begun.set()

    async with breakable(gateway.url) as proxy, over_http(proxy.url, HANDSHAKE) as client:
        call = asyncio.ensure_future(_count(client, count))
        with anyio.fail_after(PATIENCE):
            await begun.wait()
        proxy.cut()
        assert text(await call) == '"counted"'
        assert proxy.cuts > 0
    assert reports == [*range(1, 201)]


async def _count(client: Client, count: Any) -> Any:
    return await client.call_tool("modern__count", {"steps": 200, "pause": 0.01}, progress_callback=count)


class Proxy:
    """A relay between client and gateway whose connections can be cut."""

    def __init__(self, url: str) -> None:
        self.cuts = 0
        self._target = urlsplit(url)
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._writers |= {writer, forth}
        await asyncio.gather(self._copy(reader, forth), self._copy(back, writer))

    def cut(self) -> None:
        for writer in self._writers:
            self.cuts += not writer.is_closing()
            writer.transport.abort()
        self._writers.clear()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def breakable(url: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(url)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
