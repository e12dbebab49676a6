"""Kills gateways while they start programs, background processes, workers, servers and prestarted sandboxes, and counts
what is left.

`python -m tests.sandbox.killed_gateway BACKEND DIRECTORY ROUNDS [GATEWAYS]` prints a `Report` as JSON. `DIRECTORY` is
empty but for `libraries`, where `covalt_toolset` is. `GATEWAYS` is how many rounds are played at the same time.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from gateway import Gateway
from gateway.sandbox.process_tree import usage
from gateway.sources.builtin.code.python_runner import SandboxedRunner
from gateway.sources.builtin.code.tools import CodeTools

from .busy_machine import use_sandbox

# A gateway is killed after its first process when it opens or makes its calls, or after some of its programs run.
OPENING, CALLING, RUNNING = "opening", "calling", "running"
# Seconds after that.
LATEST_KILL = 0.2

# Seconds a busy machine may take to end what was killed.
_PATIENCE = 120.0

_BIN = 0.04
# Processes by a part of their command line.
_KINDS = {
    "bwrap --args": "bubblewrap",
    "marshal.load(file)": "supervisor",
    "P_PID, leader": "guard",
    "/server.py": "server",
    "toolgate_worker": "worker",
}

_PR_SET_CHILD_SUBREAPER = 36

_STAY = "import pathlib, time; pathlib.Path('{name}.started').touch(); time.sleep(300)"

_LISTEN = "touch published.started; exec python3 -m http.server $PORT --bind 127.0.0.1"

_MANIFEST = """
id: lab
name: Lab
version: 1.0.0
tools:
  - {id: stay, entrypoint: staying:stay}
  - {id: sleep, type: shell, command: [sh, -c, "touch shell.started; sleep 300"]}
"""

_TOOLS = """
import time
from covalt_toolset import get_context, tool

@tool(access="write")
def stay() -> int:
    '''Stay for long.'''
    (get_context().workspace / "worker.started").touch()
    time.sleep(300)
    return 1
"""

_SERVER = """
import json, subprocess, sys, time
subprocess.Popen(["sleep", "300"])
for line in sys.stdin:
    request = json.loads(line)
    result = {}
    if request.get("method") == "initialize":
        result = {"capabilities": {"tools": {}}, "serverInfo": {"name": "slow", "version": "1"}}
        result["protocolVersion"] = request["params"]["protocolVersion"]
    elif request.get("method") == "tools/list":
        result = {"tools": [{"name": "stay", "description": "Stay", "inputSchema": {"type": "object"}}]}
    elif request.get("method") == "tools/call":
        time.sleep(300)
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""

# A name, a tool, its arguments and a chat: the gateway has a prestarted sandbox for the first one.
_CALLS: list[tuple[str, str, dict[str, Any], str]] = [
    ("prestarted", "run_code", {"language": "python", "code": _STAY.format(name="prestarted")}, "first"),
    ("cold", "run_code", {"language": "python", "code": _STAY.format(name="cold")}, "second"),
    ("command", "run_command", {"command": "touch command.started; sleep 300"}, "third"),
    ("shell", "lab__sleep", {}, "fourth"),
    ("worker", "lab__stay", {}, "fifth"),
    ("server", "slow__stay", {}, "sixth"),
    ("process", "start_process", {"command": "touch process.started; sleep 300", "wait": 0}, "seventh"),
    ("published", "start_process", {"command": _LISTEN, "port": 8000, "wait": 30}, "eighth"),
]
# What a program creates in its chat's folder; and the number of programs that start in every sandbox.
_STARTED = "data/**/*.started"
_CERTAIN = 6


@dataclass(frozen=True)
class Round:
    """One kill. So many `processes` were there when the gateway was killed, of these `kinds`; `started` are the calls
    whose program ran by then, `left` the command lines of what did not end, and `seconds` passed until the last process
    had ended."""

    moment: str
    delay: float
    processes: int
    kinds: list[str]
    started: list[str]
    left: list[str]
    seconds: float


@dataclass(frozen=True)
class Report:
    rounds: int
    left: list[str]
    slowest: float
    over_a_second: int
    rounds_with: dict[str, int]
    histogram: dict[str, str]


# The gateway


def _become_gateway(backend: str, directory: Path, announce: int) -> NoReturn:
    try:
        asyncio.run(start_all(backend, directory, announce))
    except BaseException:
        traceback.print_exc()
    os._exit(1)


async def start_all(backend: str, directory: Path, announce: int) -> None:
    settings = {
        "data_dir": directory / "data",
        "categories": {"development": {"enabled": True}},
        "toolsets": [str(directory / "lab")],
        "mcpServers": {"slow": {"command": sys.executable, "args": [str(directory / "server.py")]}},
    }
    os.write(announce, f"{OPENING}\n".encode())
    use_sandbox(backend)
    async with Gateway.open(settings) as gateway:
        _, tool, arguments, chat = _CALLS[0]
        warm = await gateway.call(tool, arguments | {"code": "pass"}, chat=chat, confirmed=True)
        assert warm.error is None, warm.error
        pythons = next(kind.python for kind in gateway.builtins._kinds if isinstance(kind, CodeTools))
        assert isinstance(pythons, SandboxedRunner)
        while not pythons._prestarted.waiting:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        imported = [name for name in sys.modules if name.startswith(("gateway.", "mcp", "pydantic", "httpx"))]
        os.write(announce, f"{CALLING} {' '.join(imported)}\n".encode())
        async with asyncio.TaskGroup() as group:
            for _, tool, arguments, chat in random.sample(_CALLS, len(_CALLS)):
                group.create_task(_call(gateway, tool, arguments, chat))


async def _call(gateway: Gateway, tool: str, arguments: dict[str, Any], chat: str) -> None:
    outcome = await gateway.call(tool, arguments, chat=chat, confirmed=True)
    print(f"{tool} ended: {outcome}", file=sys.stderr, flush=True)


# Its end


def prepare(directory: Path) -> None:
    for name, content in {
        "lab/toolset.yaml": _MANIFEST,
        "lab/tools/staying.py": _TOOLS,
        "server.py": _SERVER,
    }.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def play(backend: str, directory: Path, rounds: int) -> Iterator[Round]:
    """Start and kill a gateway so often. What a killed gateway leaves becomes a child of this process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in range(rounds):
        yield _play_round(backend, directory, (CALLING, RUNNING, CALLING, OPENING)[number % 4])


def _play_round(backend: str, directory: Path, moment: str) -> Round:
    for marker in directory.glob(_STARTED):
        marker.unlink()
    delay = random.uniform(0, LATEST_KILL)
    read, write = os.pipe()
    gateway = os.fork()
    if gateway == 0:
        os.close(read)
        _become_gateway(backend, directory, write)
    os.close(write)
    with open(read) as announced:
        for line in announced:
            name, *modules = line.split()
            if name == (OPENING if moment == OPENING else CALLING):
                break
        else:
            raise AssertionError("the gateway ended by itself")
        before = len(usage(os.getpid()).processes)
        while len(usage(os.getpid()).processes) <= before:  # a busy machine takes its time until the first start
            time.sleep(0.001)
        programs = random.randint(1, _CERTAIN) if moment == RUNNING else 0
        while len(list(directory.glob(_STARTED))) < programs:
            time.sleep(0.001)
        time.sleep(delay)
        running = [_command_line(pid) for pid in usage(os.getpid()).processes]
        os.kill(gateway, signal.SIGKILL)
    os.waitpid(gateway, 0)
    killed = time.monotonic()
    started = sorted(f"{path.stem} runs" for path in directory.glob(_STARTED))
    while (left := _descendants()) and time.monotonic() < killed + _PATIENCE:
        time.sleep(0.005)
    seconds = time.monotonic() - killed
    for module in modules:  # else each gateway would import them again, and rounds would take far longer
        importlib.import_module(module)
    lines = [_command_line(pid) for pid in left]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return Round(moment, delay, len(running), _kinds(running), started, lines, seconds)


def _descendants() -> tuple[int, ...]:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return usage(os.getpid()).processes


def _kinds(command_lines: list[str]) -> list[str]:
    return sorted({kind for line in command_lines for part, kind in _KINDS.items() if part in line})


def _command_line(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:300]
    except OSError:
        return "ended"


def summarize(rounds: Iterable[Round]) -> Report:
    rounds = list(rounds)
    bins: dict[str, list[Round]] = {}
    for each in sorted(rounds, key=lambda each: (each.moment, each.delay)):
        start = int(each.delay / _BIN) * _BIN
        bins.setdefault(f"{each.moment} {1000 * start:3.0f} ms", []).append(each)
    return Report(
        rounds=len(rounds),
        left=[line for each in rounds for line in each.left],
        slowest=max(each.seconds for each in rounds),
        over_a_second=sum(each.seconds > 1 for each in rounds),
        rounds_with=dict(Counter(name for each in rounds for name in each.kinds + each.started)),
        histogram={name: _describe(chosen) for name, chosen in bins.items()},
    )


def _describe(rounds: list[Round]) -> str:
    processes = [each.processes for each in rounds]
    started = [len(each.started) for each in rounds]
    return (
        f"{len(rounds)} rounds, {min(processes)} to {max(processes)} processes, "
        f"{min(started)} to {max(started)} of {len(_CALLS) - 1} programs running"
    )


def play_at_once(backend: str, directory: Path, rounds: int, gateways: int) -> list[Round]:
    """Play the rounds in several processes, each with a directory of its own."""
    argv = [sys.executable, "-B", "-m", "tests.sandbox.killed_gateway", "play", backend]
    players = []
    for number in range(gateways):
        own = directory / str(number)
        prepare(own)
        share = rounds // gateways + (number < rounds % gateways)
        players.append(subprocess.Popen([*argv, str(own), str(share)], stdout=subprocess.PIPE))
    played = []
    for player in players:
        output, _ = player.communicate()
        assert player.returncode == 0, player.args
        played += [Round(**json.loads(line)) for line in output.splitlines()]
    return played


def main(action: str, *arguments: str) -> None:
    if action == "play":
        backend, directory, rounds = arguments
        sys.path.append(f"{Path(directory).parent}/libraries")
        for each in play(backend, Path(directory), int(rounds)):
            print(json.dumps(asdict(each)), flush=True)
            print(each, file=sys.stderr, flush=True)
    else:
        directory, rounds, *gateways = arguments
        played = play_at_once(action, Path(directory), int(rounds), int(gateways[0]) if gateways else 1)
        print(json.dumps(asdict(summarize(played)), indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
