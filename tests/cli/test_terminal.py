"""Journeys of a person at a terminal, on a real pseudo-terminal: what is shown while something is going on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pexpect
import pytest
from eventually import eventually
from mcp import Client
from serve.test_process import CALL, post, settings
from sources.toolset.writing import require_sandbox

# Seconds for one step on a machine that is busy with other work.
PATIENCE = 120

SLOW_SERVER = """
import sys, time
from mcp.server.mcpserver import Context, MCPServer

print("loading the model", file=sys.stderr, flush=True)
time.sleep(1.5)
server = MCPServer("slow")

@server.tool()
async def count(to: int, ctx: Context) -> int:
    "Count slowly."
    for number in range(to):
        await ctx.report_progress(number, to, f"at number {number}")
        time.sleep(0.5)
    return to

@server.tool()
def leave() -> None:
    "End the server."
    import os
    os._exit(7)

server.run()
"""


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a person whose home is a test's folder."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), "TERM": "xterm", **more}


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored if the tests run in the background


@contextmanager
def terminal(home: Path, *arguments: str, **more: str) -> Iterator[Any]:
    """Run a command on a terminal of its own."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "gateway", *arguments],
        cwd=home,
        env=environment(home, **more),
        encoding="utf-8",
        timeout=PATIENCE,
        dimensions=(40, 100),
        preexec_fn=_heed_ctrl_c,
    )
    try:
        yield child
    finally:
        child.close(force=True)


def piped(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def finish(child: Any) -> str:
    """Wait for the end of a command; return what it showed since the last expectation."""
    child.expect(pexpect.EOF)
    child.wait()
    return str(child.before)


def visible_screen(text: str) -> str:
    """The text that is left on a screen: a line that was rewritten shows what was written last."""
    lines = [re.split(r"\r\x1b\[K", line)[-1].rstrip("\r") for line in text.split("\n")]
    return "\n".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in lines)


@pytest.fixture
def slow(tmp_path: Path) -> list[str]:
    (tmp_path / "slow.py").write_text(SLOW_SERVER)
    return [sys.executable, str(tmp_path / "slow.py")]


@pytest.mark.slow
def test_adding_a_slow_server_shows_what_is_being_done(tmp_path: Path, slow: list[str]) -> None:
    with terminal(tmp_path, "upstream", "add", "slow", "--", *slow) as child:
        child.expect(r"slow: starting python\S*, and waiting for its answer  \d+ s")
        child.expect("slow is added")
        assert "starting" not in visible_screen(finish(child))
    plain = piped(tmp_path, "upstream", "test", "slow")
    assert re.match(
        r"… slow: starting python\S*, and waiting for its answer\n… slow: listing its tools\n", plain.stderr
    )
    assert piped(tmp_path, "upstream", "test", "slow", "--json").stderr == ""
    assert piped(tmp_path, "upstream", "test", "slow", "--quiet").stderr == ""
    log = piped(tmp_path, "upstream", "logs", "slow", "-n", "3").stdout.splitlines()
    assert [line.partition(" ")[2] for line in log][-2:] == ["loading the model", "[toolgate] ended with exit code 0"]


@pytest.mark.slow
def test_a_call_shows_the_progress_that_its_tool_reports(tmp_path: Path, slow: list[str]) -> None:
    assert piped(tmp_path, "upstream", "add", "slow", "--pinning", "off", "--", *slow).returncode == 0
    with terminal(tmp_path, "tool", "call", "slow__count", "to=4", "--yes") as child:
        child.expect(r"\[#+-+\]\s+\d+%  at number [123]  \d+ s")
        assert visible_screen(finish(child)).split() == ["4"]
    plain = piped(tmp_path, "tool", "call", "slow__count", "to=3", "--yes")
    assert re.match(r"… at number 0 \(0%\)\n", plain.stderr)
    assert piped(tmp_path, "tool", "call", "slow__count", "to=1", "--yes", "-q").stderr == ""


@pytest.mark.slow
def test_a_first_scan_shows_how_many_files_were_read(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    for number in range(6000):
        path = folder / str(number % 60) / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    home = tmp_path / "home"
    home.mkdir()
    # A fast machine would be done before there is something to show.
    (tmp_path / "sitecustomize.py").write_text("from gateway.cli import progress\nprogress.DELAY_SECONDS = 0\n")
    imported = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    call = ("tool", "call", "write_file", "path=new.txt", "content=x", "--workspace", str(folder))
    with terminal(home, *call, PYTHONPATH=imported) as child:
        child.expect(r"reading the folder into its first version: \d+ files  \d+ s")
        child.expect("Created new.txt")


@pytest.mark.slow
def test_ctrl_c_says_at_once_which_call_the_gateway_waits_for(tmp_path: Path) -> None:
    options = settings(tmp_path, 600, grace=1)
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    with terminal(tmp_path, "serve", "--transport", "http", "--port", "0", *options, PYTHONPATH=paths) as serving:
        serving.expect(r"tools at (http://\S+/mcp)")
        calling = threading.Thread(target=post, args=(serving.match[1], CALL))
        calling.start()
        eventually((tmp_path / "begun").exists)
        serving.sendintr()
        serving.expect(r"stopping: waits up to 1 s for 1 call \(list_directory\); Ctrl-C again ends it now")
        serving.expect(r"stopped\r\n")
        serving.expect(pexpect.EOF)
        calling.join(PATIENCE)
        serving.wait()
        assert serving.exitstatus == 0


@pytest.mark.slow
def test_a_serving_terminal_shows_clients_calls_questions_and_servers(tmp_path: Path, slow: list[str]) -> None:
    (tmp_path / "toolgate.yaml").write_text(
        "data_dir: data\n"
        "approval: {without_elicitation: queue, queue_wait: 60}\n"
        f"mcpServers: {{slow: {{command: {slow[0]}, args: [{slow[1]}], pinning: 'off', lazy: false, trusted: true}}}}\n"
    )
    arguments = ["serve", "--transport", "http", "--port", "0", "--log-file", "--enable-tools"]
    with terminal(tmp_path, *arguments) as serving:
        serving.expect(r"tools at (http://\S+)/mcp")
        address = serving.match[1]
        serving.expect("Press Ctrl-C to stop it")

        async def use(mode: str, tool: str, arguments: dict[str, Any]) -> None:
            async with Client(f"{address}/mcp?chat=here", mode=mode) as client:
                await client.call_tool(tool, arguments)

        def start(*what: Any) -> threading.Thread:
            thread = threading.Thread(target=anyio.run, args=(use, *what))
            thread.start()
            return thread

        start("legacy", "write_file", {"path": "a.txt", "content": "x"}).join(PATIENCE)
        serving.expect(r"\d\d:\d\d:\d\d client connected: \S+ \S+ \(protocol 2025-11-25\)")
        serving.expect(r'call \S+ write_file \{"path":"a.txt","content":"x"\}: ok in')
        serving.expect("client left: ")
        waiting = start("auto", "write_file", {"path": "a.txt", "content": "y"})
        serving.expect(r"client seen: \S+ \S+ \(protocol 2026-07-28\)")
        serving.expect(r"write_file waits for a person: .* answer with:\s+toolgate (approval\s+allow\s+\S+), or")
        with terminal(tmp_path, *serving.match[1].split()) as answering:
            finish(answering)
        waiting.join(PATIENCE)
        serving.expect("write_file .*: ok in")
        start("auto", "slow__leave", {}).join(PATIENCE)
        serving.expect(r"upstream slow was lost after .*ended with exit code 7")
        serving.expect("upstream slow is connected again")
        assert piped(tmp_path, "upstream", "restart", "slow").returncode == 0
        serving.expect("upstream slow is being restarted")
        serving.expect(r"upstream slow is connected \(protocol")
        assert_console(address)
        serving.sendintr()
        finish(serving)
    log = (tmp_path / "data/logs/toolgate.log").read_text()
    assert "INFO gateway.clients: client connected" in log
    assert (tmp_path / "data/logs/toolgate.log").stat().st_mode & 0o077 == 0
    assert f"{tmp_path / 'data/logs'}: stderr of servers" in piped(tmp_path, "doctor").stdout


def assert_console(address: str) -> None:
    """The page at `/` is for browsers, and can load nothing from elsewhere."""
    plain = httpx2.get(f"{address}/")
    assert (plain.status_code, plain.json()["error"]["code"]) == (404, "NOT_FOUND")
    page = httpx2.get(f"{address}/", headers={"accept": "text/html,*/*"})
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert "Toolgate" in page.text


def test_a_page_of_a_call_or_file_is_shown_in_the_browser(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {seen}\n')
    browser.chmod(0o755)

    def opened(*arguments: str) -> str:
        with terminal(tmp_path, *arguments, BROWSER=str(browser)) as child:
            finish(child)
        [address] = eventually(lambda: seen.read_text().split() if seen.exists() else [])
        seen.unlink()
        return Path(address.removeprefix("file://")).read_text()

    content = "# Title <script>alert(1)</script>"
    assert piped(tmp_path, "tool", "call", "write_file", "path=a.md", f"content={content}").returncode == 0
    page = opened("workspace", "cat", "a.md", "--open")
    assert r"\u003ch1&gt;Title" in page
    assert '<iframe sandbox="' in page
    assert "allow-same-origin" not in page
    [short] = re.findall(r"^([0-9a-f]{8}) ", piped(tmp_path, "call", "list").stdout, re.MULTILINE)
    [call] = json.loads(piped(tmp_path, "call", "list", "--json").stdout)
    for call_id in (short, call["id"][:12]):
        assert "write_file" in opened("call", "show", call_id, "--open")


def test_a_call_whose_result_is_a_page_names_the_command_that_shows_it(tmp_path: Path) -> None:
    anyio.run(require_sandbox)
    (tmp_path / "browser").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "browser").chmod(0o755)
    for arguments in (("toolset", "new", "mine"), ("toolset", "install", "mine")):
        assert piped(tmp_path, *arguments).returncode == 0
    assert piped(tmp_path, "tool", "call", "write_file", "path=a.txt", "content=one two").returncode == 0
    call = ("tool", "call", "mine__count_words", "path=a.txt")
    with terminal(tmp_path, *call) as child:
        child.expect(r"its page: toolgate (call show [0-9a-f]{8} --open)\s")
        recommended = child.match[1].split()
        finish(child)
    with terminal(tmp_path, *recommended, BROWSER=str(tmp_path / "browser")) as child:
        assert "opened file://" in visible_screen(finish(child))
    assert "its page" not in piped(tmp_path, *call).stderr


def test_a_log_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import sys; print('first words', file=sys.stderr)"]
    assert piped(tmp_path, "upstream", "add", "brief", "--no-test", "--", *program).returncode == 0
    assert "brief was not started yet; start it with: toolgate upstream test brief" in (
        piped(tmp_path, "upstream", "logs", "brief").stderr
    )
    with terminal(tmp_path, "upstream", "logs", "brief", "--follow") as following:
        assert piped(tmp_path, "upstream", "test", "brief").returncode == 1
        following.expect("started python")
        following.expect("first words")
        following.expect("ended with exit code 0")
        following.sendintr()
        finish(following)
    assert following.exitstatus == 130


def test_ctrl_c_at_a_question_ends_the_command(tmp_path: Path) -> None:
    write = ["tool", "call", "write_file", "path=a.txt"]
    assert piped(tmp_path, *write, "content=x").returncode == 0
    with terminal(tmp_path, *write, "content=y") as child:
        child.expect(r"\[n\]o: ")
        child.sendintr()
        assert "interrupted; the call was cancelled" in visible_screen(finish(child))
    assert child.exitstatus == 130
    assert "x" in piped(tmp_path, "tool", "call", "read_file", "path=a.txt").stdout


def test_nothing_for_a_terminal_is_imported_by_a_start_over_stdio(tmp_path: Path) -> None:
    script = (
        "import sys, atexit, runpy\n"
        "atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))\n"
        f"sys.argv = ['toolgate', 'serve', '--data-dir', {str(tmp_path / 'data')!r}]\n"
        "runpy.run_module('gateway', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    loaded = set(done.stderr.split())
    assert "gateway.serve.stdio" in loaded
    ours = {f"gateway.cli.{name}" for name in ("progress", "logs", "browser", "prompt")}
    assert not loaded & {*ours, "logging.handlers", "webbrowser", "gateway.serve.web.static"}
