"""The process: how it is started by hand, how it stops, and what it says."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from eventually import TIMEOUT, eventually

TOOLGATE = [sys.executable, "-m", "gateway"]
SLOW = """
import anyio
from pathlib import Path
from gateway.extensions import Extension

class Slow(Extension):
    def __init__(self, seconds, sign):
        self.seconds, self.sign = seconds, Path(sign)
    async def before_execute(self, call):
        self.sign.touch()
        await anyio.sleep(self.seconds)
"""


def settings(tmp_path: Path, seconds: float, grace: float) -> list[str]:
    """Settings under which every call takes `seconds`, told by a file when it has begun."""
    (tmp_path / "slow.py").write_text(SLOW)
    config = {
        "data_dir": str(tmp_path / "data"),
        "server": {"shutdown_grace": grace},
        "extensions": [
            {"use": "slow:Slow", "priority": 99, "options": {"seconds": seconds, "sign": str(tmp_path / "begun")}}
        ],
    }
    (tmp_path / "toolgate.yaml").write_text(json.dumps(config))
    return ["--config", str(tmp_path / "toolgate.yaml")]


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}


@contextmanager
def http(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [*TOOLGATE, "serve", "--transport", "http", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(tmp_path))
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        yield process, first.split(" at ")[1].split()[0]
    finally:
        process.kill()
        process.communicate()


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 1, **body, "params": {**body.get("params", {}), "_meta": meta}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": body["method"],
    }
    if "name" in body["params"]:
        headers["Mcp-Name"] = body["params"]["name"]
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=TIMEOUT
    ) as answer:
        result: dict[str, Any] = json.loads(answer.read())["result"]
        return result


def record(tmp_path: Path, *arguments: str) -> Any:
    command = [*TOOLGATE, "call", "list", "--json", *arguments]
    return json.loads(subprocess.run(command, capture_output=True, check=True, env=environment(tmp_path)).stdout)


CALL = {"method": "tools/call", "params": {"name": "list_directory", "arguments": {"path": "."}}}


@pytest.mark.promise("G3", "G7")
def test_serve_prints_its_url_answers_health_checks_and_stops_on_sigterm(tmp_path: Path) -> None:
    with http(tmp_path, "--data-dir", str(tmp_path)) as (process, url):
        for path in ("/healthz", "/readyz"):
            with urllib.request.urlopen(url.removesuffix("/mcp") + path, timeout=TIMEOUT) as answer:
                assert json.loads(answer.read())["ok"] is True
        assert "list_directory" in {tool["name"] for tool in post(url, {"method": "tools/list"})["tools"]}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        for request, status, advice in (
            (urllib.request.Request(url, body, headers), 400, "Missing session ID: send initialize first"),
            (url.removesuffix("cp") + "pc", 404, "there is no /mpc: MCP is at /mcp, REST at /api/docs"),
            (url.removesuffix("mcp") + "tools", 404, "tools are listed at /tools/tools and /api/tools"),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=TIMEOUT)
            assert (refused.value.code, advice in refused.value.read().decode()) == (status, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
        assert process.stderr is not None
        errors = process.stderr.read()
    for client in ("Claude Desktop", "Claude Code", "Cursor", "VS Code", "lm-studio", "/mcp?chat=NAME"):
        assert client in errors
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.promise("G3", "X2")
@pytest.mark.parametrize(("seconds", "expected"), [(0.5, "success"), (600, "SHUTTING_DOWN")])
def test_call_in_progress_at_stop_is_finished_or_answered_and_recorded(
    tmp_path: Path, seconds: float, expected: str
) -> None:
    options = settings(tmp_path, seconds, grace=0.2 if seconds > 1 else TIMEOUT)
    with http(tmp_path, *options) as (process, url):
        command = [sys.executable, "-c", ASK, url]
        folders = os.pathsep.join(map(str, Path(__file__).parents[:2]))
        asking = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": folders})
        eventually((tmp_path / "begun").exists)
        process.send_signal(signal.SIGTERM)
        answer, _ = asking.communicate(timeout=TIMEOUT)
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0
    result = json.loads(answer)
    error_code = result["_meta"].get("dev.toolgate/error", {}).get("code", "success")
    [row] = record(tmp_path, *options)
    assert (error_code, row["error_code"] or row["status"]) == (expected, expected)


ASK = "import sys, json, test_process as t; print(json.dumps(t.post(sys.argv[1], t.CALL)))"


@pytest.mark.promise("G3")
@pytest.mark.slow
def test_serve_on_a_terminal_explains_that_it_waits_for_a_client(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*TOOLGATE, "serve", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert "waiting for an MCP client on stdin" in process.stderr.readline()
        assert "toolgate client install" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.wait(TIMEOUT)
    finally:
        process.kill()
        out, _ = process.communicate()
        os.close(ours)
        os.close(theirs)
    assert out == ""


@pytest.mark.promise("G7")
@pytest.mark.parametrize(
    ("arguments", "code", "status"),
    [
        (["serve", "--transport", "http", "--host", "0.0.0.0"], "REMOTE_REFUSED", 1),
        pytest.param(["serve", "--prot", "1"], "USAGE", 2, marks=pytest.mark.slow),
        pytest.param(["serve", "--config", "nope.yaml"], "CONFIG_NOT_FOUND", 1, marks=pytest.mark.slow),
        (["tool", "show", "raed_file"], "UNKNOWN_TOOL", 1),
        pytest.param(["tool", "call", "read_file", "path=/etc/passwd"], "INVALID_PATH", 1, marks=pytest.mark.slow),
        pytest.param(["tool", "call", "read_file", "--json-args", "{"], "INVALID_ARGUMENTS", 1, marks=pytest.mark.slow),
        (["nonsense"], "USAGE", 2),
    ],
)
def test_an_error_is_one_line_with_a_code_and_the_right_status(
    tmp_path: Path, arguments: list[str], code: str, status: int
) -> None:
    data = [] if arguments == ["nonsense"] else ["--data-dir", str(tmp_path)]
    run = subprocess.run([*TOOLGATE, *arguments, *data], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (run.returncode, run.stdout) == (status, "")
    assert run.stderr.startswith(f"toolgate: {code}: ")
    assert run.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_port_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*TOOLGATE, "serve", "--transport", "http", "--port", port, "--data-dir", str(tmp_path)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert run.returncode == 1
    assert run.stderr.startswith(f"toolgate: PORT_IN_USE: port {port} of 127.0.0.1 is in use; stop what uses it or")
    with http(tmp_path, "--data-dir", str(tmp_path / "first")) as (_, url):
        command[command.index("--port") + 1] = port = url.rpartition(":")[2].partition("/")[0]
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert f"port {port} of 127.0.0.1 is in use; a Toolgate serves there already: stop it or choose" in run.stderr
