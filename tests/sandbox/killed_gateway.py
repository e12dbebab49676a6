"""Kills gateways while they start programs, workers, servers and prestarted sandboxes, and counts what is left.

`python -m tests.sandbox.killed_gateway BACKEND DIRECTORY ROUNDS [GATEWAYS]` prints a `Report` as JSON. `DIRECTORY` is
empty but for `libraries`, where `covalt_toolset` is. `GATEWAYS` is how many rounds are played at the same time.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway import Gateway
from gateway.sandbox.process_tree import usage

from .busy_machine import use_sandbox

OPENING, CALLING = "opening", "calling"
LATEST_KILL = {OPENING: 0.6, CALLING: 0.2}
"""Seconds after a gateway begins to open, which takes longer, or to make its calls."""

_PATIENCE = 30.0
"""Seconds a busy machine may take to end what was killed."""

_BIN = 0.04
_PR_SET_CHILD_SUBREAPER = 36

_STAY = "import pathlib, time; pathlib.Path('{name}.started').touch(); time.sleep(300)"

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
        version = request["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif request.get("method") == "tools/list":
        result = {"tools": [{"name": "stay", "description": "Stay", "inputSchema": {"type": "object"}}]}
    elif request.get("method") == "tools/call":
        time.sleep(300)
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""

# A name, a tool, its arguments and a chat: the gateway has a prestarted sandbox for the first one.
_CALLS = [
    ("prestarted", "run_code", {"language": "python", "code": _STAY.format(name="prestarted")}, "first"),
    ("cold", "run_code", {"language": "python", "code": _STAY.format(name="cold")}, "second"),
    ("command", "run_command", {"command": "touch command.started; sleep 300"}, "third"),
    ("shell", "lab__sleep", {}, "fourth"),
    ("worker", "lab__stay", {}, "fifth"),
    ("server", "slow__stay", {}, "sixth"),
]


@dataclass(frozen=True)
class Round:
    """One kill. `processes` were there when the gateway was killed, `started` are the calls whose program ran by then,
    `left` the command lines of what did not end, and `seconds` passed until the last process had ended."""

    moment: str
    delay: float
    processes: int
    started: list[str]
    left: list[str]
    seconds: float


@dataclass(frozen=True)
class Report:
    rounds: int
    left: list[str]
    slowest: float
    started: dict[str, int]
    histogram: dict[str, str]


# The gateway


async def start_all(backend: str, directory: Path) -> None:
    settings = {
        "data_dir": directory / "data",
        "categories": {"development": {"enabled": True}},
        "toolsets": [str(directory / "lab")],
        "mcpServers": {"slow": {"command": sys.executable, "args": [str(directory / "server.py")]}},
    }
    _announce(OPENING)
    use_sandbox(backend)
    async with Gateway.open(settings) as gateway:
        _, tool, arguments, chat = _CALLS[0]
        warm = await gateway.call(tool, arguments | {"code": "pass"}, chat=chat, confirmed=True)
        assert warm.error is None, warm.error
        pythons = (await gateway.development._workbench())._pythons
        while not pythons._spares.waiting:
            await asyncio.sleep(0.01)
        _announce(CALLING)
        async with asyncio.TaskGroup() as group:
            for _, tool, arguments, chat in _CALLS:
                group.create_task(_call(gateway, tool, arguments, chat))


async def _call(gateway: Gateway, tool: str, arguments: dict[str, str], chat: str) -> None:
    outcome = await gateway.call(tool, arguments, chat=chat, confirmed=True)
    print(f"{tool} ended: {outcome}", file=sys.stderr, flush=True)


def _announce(moment: str) -> None:
    print(moment, flush=True)


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
        yield _play_round(backend, directory, (CALLING, CALLING, CALLING, OPENING)[number % 4])


def _play_round(backend: str, directory: Path, moment: str) -> Round:
    for marker in directory.glob("data/**/*.started"):
        marker.unlink()
    argv = [sys.executable, "-B", "-m", "tests.sandbox.killed_gateway", "start", backend, str(directory)]
    delay = random.uniform(0, LATEST_KILL[moment])
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        while (line := gateway.stdout.readline().decode().strip()) != moment:
            assert line, "the gateway ended by itself"
        time.sleep(delay)
        processes = len(usage(os.getpid()).processes)
        gateway.kill()
    killed = time.monotonic()
    started = sorted(path.stem for path in directory.glob("data/**/*.started"))
    while (left := _descendants()) and time.monotonic() < killed + _PATIENCE:
        time.sleep(0.005)
    seconds = time.monotonic() - killed
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return Round(moment, delay, processes, started, [_command_line(pid) for pid in left], seconds)


def _descendants() -> tuple[int, ...]:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return usage(os.getpid()).processes


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
        started=dict(Counter(name for each in rounds for name in each.started)),
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
    if action == "start":
        backend, directory = arguments
        sys.path.append(f"{Path(directory).parent}/libraries")
        asyncio.run(start_all(backend, Path(directory)))
    elif action == "play":
        backend, directory, rounds = arguments
        for each in play(backend, Path(directory), int(rounds)):
            print(json.dumps(asdict(each)), flush=True)
            print(each, file=sys.stderr, flush=True)
    else:
        directory, rounds, *gateways = arguments
        played = play_at_once(action, Path(directory), int(rounds), int(gateways[0]) if gateways else 1)
        print(json.dumps(asdict(summarize(played)), indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
