"""Servers that are our children: how they start, what they may do to us, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from amounts import amount
from eventually import TIMEOUT, async_eventually

from gateway.errors import Timeout
from gateway.mcp_client import (
    ConnectionLost,
    ConnectTimeout,
    McpClient,
    StdioEndpoint,
    Unreachable,
    connect,
    open_client,
    process,
    stdio,
)
from gateway.mcp_client.process import INHERITED, start_process
from gateway.mcp_client.stdio import PipeGauge
from gateway.protocol.jsonrpc import RpcError
from gateway.secrets import KNOWN

from .conftest import CLIENT_IDENTITY, HANDSHAKE, MODERN, SERVERS, server

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a server little time to leave."""
    monkeypatch.setattr(process, "END_SECONDS", 0.3)
    monkeypatch.setattr(stdio, "EXIT_SECONDS", 0.2)


async def gone(*pids: int) -> None:
    await async_eventually(lambda: not any(alive(pid) for pid in pids))


async def call(client: McpClient, tool: str, **arguments: Any) -> dict[str, Any]:
    return await client.request("tools/call", {"name": tool, "arguments": arguments}, timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("habits", "version"), [("refuses", HANDSHAKE), ("dies", HANDSHAKE), ("ancient", "2024-11-05")]
)
async def test_a_server_of_the_handshake_era_is_found_out_at_once(
    monkeypatch: pytest.MonkeyPatch, habits: str, version: str
) -> None:
    monkeypatch.setattr(connect, "PROBE_SECONDS", 2 * TIMEOUT)
    client = await open_client(server("old.py", habits), identity=CLIENT_IDENTITY, timeout=TIMEOUT)
    assert (client.protocol_version, client.modern) == (version, False)
    assert client.server_info == {"name": "old", "version": "1"}
    await client.close()


async def test_a_server_that_ignores_what_it_does_not_know_is_not_waited_for() -> None:
    client = await open_client(server("old.py", "ignores"), identity=CLIENT_IDENTITY, timeout=TIMEOUT)
    assert client.protocol_version == HANDSHAKE
    await client.close()


async def test_a_remembered_era_spares_the_probing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "PROBE_SECONDS", 2 * TIMEOUT)
    client = await open_client(
        server("old.py", "ignores"), identity=CLIENT_IDENTITY, version=HANDSHAKE, timeout=TIMEOUT
    )
    await client.close()


@pytest.mark.slow
async def test_a_modern_server_that_starts_slowly_is_still_met_as_modern(tmp_path: Path) -> None:
    late = tmp_path / "late.sh"
    late.write_text(f"#!/bin/sh\nsleep 2.5\nexec {sys.executable} {SERVERS / 'everything.py'} stdio\n")
    late.chmod(0o755)
    for era in (None, HANDSHAKE):
        client = await open_client(StdioEndpoint(str(late)), identity=CLIENT_IDENTITY, version=era)
        assert client.protocol_version == (era or MODERN)
        assert (await call(client, "echo", text="x"))["content"][0]["text"] == "x"
        await client.close()


async def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(Unreachable, match="'no-such-program' was not found"):
        await open_client(StdioEndpoint("no-such-program"), identity=CLIENT_IDENTITY)


async def test_a_program_that_cannot_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(ConnectionLost, match=r"did not start.*No such file"):
        await open_client(StdioEndpoint(str(broken)), identity=CLIENT_IDENTITY)
    with pytest.raises(Unreachable, match=r"cannot be started: its working directory .* does not exist"):
        await open_client(StdioEndpoint(sys.executable, cwd=str(tmp_path / "nowhere")), identity=CLIENT_IDENTITY)


async def test_a_program_that_ends_at_once_tells_how() -> None:
    endpoint = StdioEndpoint(sys.executable, ("-c", "import sys; sys.exit('no licence')"))
    with pytest.raises(ConnectionLost, match="ended with exit code 1") as lost:
        await open_client(endpoint, identity=CLIENT_IDENTITY)
    assert (lost.value.code, lost.value.exit_code, lost.value.stderr) == ("UPSTREAM_LOST", 1, "no licence")
    assert "licence" not in str(lost.value.to_dict())


async def test_a_program_that_prints_and_ends_is_started_once_and_quoted(tmp_path: Path) -> None:
    program = f"open({str(tmp_path / 'starts')!r}, 'a').write('x'); print('usage: tool', flush=True)"
    with pytest.raises(ConnectionLost, match="exit code 0; it wrote 'usage: tool' to stdout, which is no MCP"):
        await open_client(StdioEndpoint(sys.executable, ("-c", program)), identity=CLIENT_IDENTITY)
    assert (tmp_path / "starts").read_text() == "x"


async def test_output_that_arrives_before_the_start_returns_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    listen = process.ServerProcess.listen

    async def listen_and_wait(self: process.ServerProcess, on_output: Any) -> None:
        await listen(self, on_output)
        await self.output_ended.wait()  # as on a busy machine: everything arrives first

    monkeypatch.setattr(process.ServerProcess, "listen", listen_and_wait)
    with pytest.raises(ConnectionLost, match="it wrote 'hello' to stdout"):
        await open_client(StdioEndpoint(sys.executable, ("-c", "print('hello')")), identity=CLIENT_IDENTITY)


async def test_a_program_that_never_answers_is_ended_in_time(impatient: None) -> None:
    endpoint = StdioEndpoint(sys.executable, ("-c", "import os, time; print(os.getpid()); time.sleep(300)"))
    with pytest.raises(ConnectTimeout, match=r"did not answer within 0\.5 seconds"):
        await open_client(endpoint, identity=CLIENT_IDENTITY, timeout=0.5)
    assert not [pid for pid in children() if "time.sleep(300)" in cmdline(pid)]


async def test_a_child_gets_little_of_our_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOOLGATE_SECRET", "ours")
    monkeypatch.setenv("UV_SYSTEM_CERTS", "1")
    endpoint = StdioEndpoint(
        sys.executable, (str(SERVERS / "old.py"),), env={"TOKEN": "theirs", "HOME": "/other"}, cwd=str(tmp_path)
    )
    client = await open_client(endpoint, identity=CLIENT_IDENTITY, version=HANDSHAKE)
    seen = await call(client, "environment")
    await client.close()
    assert (seen["env"]["TOKEN"], seen["env"]["HOME"], seen["cwd"]) == ("theirs", "/other", str(tmp_path))
    assert seen["env"]["UV_SYSTEM_CERTS"] == "1"
    assert set(seen["env"]) <= {*INHERITED, "TOKEN", "LC_CTYPE"}
    assert not {"TOOLGATE_SECRET", "HTTPS_PROXY"} & {*INHERITED}


async def test_what_is_no_message_is_passed_over() -> None:
    client = await open_client(server("old.py"), identity=CLIENT_IDENTITY)
    assert (await call(client, "garbage", text="fine"))["content"] == [{"type": "text", "text": "fine"}]
    assert await call(client, "nan") == {"value": None, "text": "?"}
    await client.close()


async def test_an_answer_over_the_limit_fails_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "MESSAGE_LIMIT", 2 * 1024 * 1024)
    client = await open_client(server("old.py"), identity=CLIENT_IDENTITY)
    with pytest.raises(RpcError, match="more than 2097152 bytes"):
        await call(client, "long", mebibytes=5)
    assert len((await call(client, "long", mebibytes=1))["text"]) == 1024 * 1024
    await client.close()


async def test_a_crash_fails_what_is_under_way_and_tells_how_it_ended() -> None:
    client = await open_client(server("old.py"), identity=CLIENT_IDENTITY)
    waiting = [asyncio.ensure_future(call(client, "crash")), asyncio.ensure_future(call(client, "echo"))]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], ConnectionLost)
    assert isinstance(results[1], ConnectionLost)
    reason = await client.wait_closed()
    assert (reason.exit_code, reason.stderr) == (7, "last words")
    assert str(reason).endswith("ended with exit code 7")
    with pytest.raises(ConnectionLost, match="exit code 7"):
        await call(client, "echo")
    await client.close()


def test_a_server_that_ends_before_the_first_request_is_lost_on_uvloop_too() -> None:
    async def main() -> None:
        opening = [open_client(StdioEndpoint("false"), identity=CLIENT_IDENTITY) for _ in range(12)]
        for error in await asyncio.gather(*opening, return_exceptions=True):
            assert isinstance(error, ConnectionLost) and "exit code 1" in error.message, repr(error)

    anyio.run(main, backend_options={"use_uvloop": True})


async def test_server_that_ends_while_it_starts_is_known_to_have_read_nothing() -> None:
    process = await start_process(StdioEndpoint("false"))
    await async_eventually(lambda: process.stdin.transport.get_extra_info("pipe").closed)
    gauge = PipeGauge(process.stdin)
    gauge.write(b"{}\n")
    assert not gauge.was_read
    await process.end()


async def test_a_child_that_closes_its_output_is_lost_and_ended(impatient: None) -> None:
    client = await open_client(server("old.py"), identity=CLIENT_IDENTITY)
    pid = (await call(client, "environment"))["pid"]
    with pytest.raises(ConnectionLost, match="closed its output"):
        await call(client, "hush")
    await client.close()
    await gone(pid)


async def test_a_ping_is_answered_by_the_link_itself() -> None:
    client = await open_client(server("old.py"), identity=CLIENT_IDENTITY)
    assert await call(client, "ping") == {"got": {"jsonrpc": "2.0", "id": "p-1", "result": {}}}
    assert not client.asks_mid_call
    await client.close()


async def test_a_child_that_does_not_read_holds_up_nobody_for_ever(impatient: None) -> None:
    client = await open_client(server("old.py"), identity=CLIENT_IDENTITY)
    deaf = asyncio.ensure_future(call(client, "deaf"))
    await asyncio.sleep(0)
    with pytest.raises(Timeout):
        await client.request("tools/call", {"name": "x", "arguments": {"text": "y" * 5_000_000}}, timeout=0.3)
    async with asyncio.timeout(TIMEOUT):
        await client.close()
    with pytest.raises(ConnectionLost, match="was closed"):
        await deaf


async def test_closing_ends_the_child_and_all_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "END_SECONDS", 2 * TIMEOUT)  # it leaves when its input ends, without a signal
    command = f"sleep 300 & exec {sys.executable} {SERVERS / 'old.py'}"
    client = await open_client(StdioEndpoint("sh", ("-c", command)), identity=CLIENT_IDENTITY)
    pids = await call(client, "child")
    sleeping = [pid for pid in children() if cmdline(pid) == "sleep 300"]
    assert len(sleeping) == 1
    async with asyncio.timeout(TIMEOUT):
        await client.close()
    await gone(pids["pid"], pids["own"], *sleeping)
    assert await client.wait_closed()


async def test_a_crash_ends_what_the_child_had_started() -> None:
    client = await open_client(server("old.py"), identity=CLIENT_IDENTITY)
    pids = await call(client, "child")
    with pytest.raises(ConnectionLost):
        await call(client, "crash")
    await gone(pids["pid"], pids["own"])
    await client.close()


@pytest.mark.slow
async def test_a_child_that_will_not_leave_is_killed_in_bounded_time() -> None:
    client = await open_client(server("old.py", "stubborn"), identity=CLIENT_IDENTITY)
    pid = (await call(client, "child"))["own"]
    async with asyncio.timeout(TIMEOUT):
        await client.close()
    assert not alive(pid)


async def test_a_child_that_listens_to_sigterm_only_gets_it(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye', file=sys.stderr, flush=True), sys.exit(0)))\n"
        f"exec(open({str(SERVERS / 'old.py')!r}).read())\n"
        "while True: time.sleep(1)\n"
    )
    client = await open_client(StdioEndpoint(sys.executable, ("-c", program)), identity=CLIENT_IDENTITY)
    ending = client.transport._process  # type: ignore[attr-defined]
    terminate = ending._process.terminate

    def terminate_and_wait() -> None:
        monkeypatch.setattr(process, "END_SECONDS", TIMEOUT)  # a busy machine may need long to deliver a signal
        terminate()

    monkeypatch.setattr(ending._process, "terminate", terminate_and_wait)
    await client.close()
    assert ending.stderr.tail == "bye"


@pytest.mark.parametrize("delays", [(), (0,), (0, 0), (0, 0, 0), (0.01,), (0.05,), (0.2,)], ids=str)
async def test_a_cancelled_opening_leaves_nothing(impatient: None, delays: tuple[float, ...]) -> None:
    before = children()
    opening = asyncio.ensure_future(open_client(server("old.py", "ignores"), identity=CLIENT_IDENTITY))
    for delay in delays:
        await asyncio.sleep(delay)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert set(children()) <= set(before)


async def test_kill_minus_nine_of_the_gateway_ends_the_children_and_theirs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, sys\n"
        "from gateway.mcp_client import ClientIdentity, StdioEndpoint, open_client\n"
        "async def main():\n"
        "    command = 'sleep 300 & echo $! >&2; ' + sys.executable + ' ' + sys.argv[1]\n"
        "    client = await open_client(StdioEndpoint('sh', ('-c', command)), identity=ClientIdentity('t', '1'))\n"
        "    pids = await client.request('tools/call', {'name': 'child'})\n"
        "    print(pids['pid'], pids['own'], client.transport._process.stderr.tail, flush=True)\n"
        "    await asyncio.sleep(300)\n"
        "asyncio.run(main())\n"
    )
    argv = [sys.executable, str(program), str(SERVERS / "old.py")]
    gateway = subprocess.Popen(argv, stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert gateway.stdout is not None
    pids = [int(pid) for pid in (await asyncio.to_thread(gateway.stdout.readline)).split()]
    assert (len(pids), all(alive(pid) for pid in pids)) == (3, True)
    gateway.send_signal(signal.SIGKILL)
    gateway.wait()
    gateway.stdout.close()
    await gone(*pids)


@pytest.mark.slow
async def test_many_links_leave_no_descriptor_task_or_process() -> None:
    for _ in range(3):
        await (await open_client(server("old.py"), identity=CLIENT_IDENTITY, version=HANDSHAKE)).close()
    await asyncio.sleep(1.2)  # the sandbox keeps pipes a moment for last words
    before = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), len(children())
    for number in range(amount(60, nightly=200)):
        client = await open_client(server("old.py"), identity=CLIENT_IDENTITY, version=HANDSHAKE)
        if number % 3 == 0:
            with pytest.raises(ConnectionLost):
                await call(client, "crash")
        await client.close()
    await async_eventually(lambda: len(os.listdir("/proc/self/fd")) <= before[0])
    await async_eventually(lambda: len(asyncio.all_tasks()) <= before[1])
    await async_eventually(lambda: len(children()) <= before[2])


@pytest.mark.skipif(importlib.util.find_spec("mcp_server_time") is None, reason="mcp-server-time is not installed")
async def test_a_server_of_the_wild_is_understood() -> None:
    endpoint = StdioEndpoint(sys.executable, ("-m", "mcp_server_time", "--local-timezone", "UTC"))
    client = await open_client(endpoint, identity=CLIENT_IDENTITY)
    tools = (await client.request("tools/list"))["tools"]
    assert {tool["name"] for tool in tools} == {"get_current_time", "convert_time"}
    assert "UTC" in (await call(client, "get_current_time", timezone="UTC"))["content"][0]["text"]
    await client.close()


def children() -> list[int]:
    """All processes below this one."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(parent, []).append(int(entry.parent.name))
    found, queue = [], [os.getpid()]
    while queue:
        below = parents.get(queue.pop(), [])
        found += below
        queue += below
    return [pid for pid in found if alive(pid)]


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_lines_are_the_same_however_they_are_cut(size: int) -> None:
    text = (
        b"one\n\ntwo words\n"
        + b"x" * 90
        + b'\n{"jsonrpc": "2.0", "id": 7, "result": "'
        + b"y" * 200
        + b'"}\nlast\nrest'
    )
    splitter = stdio.LineSplitter(100)
    found = [line for at in range(0, len(text), size) for line in splitter.feed(text[at : at + size])]
    kept = [line if isinstance(line, bytes) else line.request_number for line in found]
    assert kept == [b"one", b"", b"two words", b"x" * 90, 7, b"last"]


async def test_a_program_that_sends_back_what_it_is_sent_is_no_server() -> None:
    with pytest.raises(ConnectionLost, match="cat is not an MCP server: it sends back what it is sent"):
        await open_client(StdioEndpoint("cat"), identity=CLIENT_IDENTITY, timeout=TIMEOUT)


async def test_what_a_silent_program_wrote_is_in_the_timeout() -> None:
    script = "import sys, time; print('loading', file=sys.stderr); print('hello there', flush=True); time.sleep(600)"
    program = StdioEndpoint(sys.executable, ("-c", script))
    for seconds in (1, 5, 50):
        with pytest.raises(ConnectTimeout) as refused:
            await open_client(program, identity=CLIENT_IDENTITY, timeout=seconds)
        if "stdout" in refused.value.message:
            break
    assert "it wrote 'hello there' to stdout, which is no MCP message" in refused.value.message
    assert refused.value.stderr == "loading"  # for whoever probes: it may be private


async def test_the_kept_stderr_of_a_server_is_private_bounded_and_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_LIMIT", 5000)
    KNOWN.add("hunter2-and-more")
    path = tmp_path / "logs/server.log"
    log = process.StderrLog("server", path)
    log.note("started server")
    log.feed(b"password is hunter2-and-more\nhalf a ")
    log.feed(b"line\x1b[2J\n")
    lines = [line.partition(" ")[2] for line in path.read_text().splitlines()]
    assert lines == ["[toolgate] started server", "password is [redacted]", "half a line<U+001B>[2J"]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    for number in range(500):
        log.feed(b"%d %s\n" % (number, b"x" * 40))
    older = path.with_suffix(".log.1")
    assert path.stat().st_size + older.stat().st_size < 11_000
    assert older.exists()


async def test_a_server_runs_although_its_log_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    log = process.StderrLog("server", tmp_path / "logs/server.log")
    log.feed(b"a line\n")
    assert log.tail == "a line"
