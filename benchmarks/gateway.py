"""The whole gateway in front of upstream servers, against the server itself and a gateway composed of SDK parts.

One client speaks to all over HTTP, in windows of one run that take turns; other gateways join with `--peers`.
The server itself is spoken to in its own era, whatever the client's. CPU is that of the called process alone; for the
server itself, that is the server's; a bare relay, which passes bytes on unread, says what the machine gives. Prints
tables in Markdown; exits 1 above a limit.

`python -m benchmarks.gateway [--quick] [--peers] [--markdown FILE]`
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import uvloop

from benchmarks import _gateway_peers as peers
from benchmarks._gateway_client import Refused
from benchmarks._gateway_gates import CASES, DIRECT, Gate, Servers, Upstreams, composition, stdio, toolgate
from benchmarks._gateway_measures import (
    Figures,
    Pace,
    Start,
    cold_start,
    idle_memory,
    large_calls,
    listings,
    small_calls,
)
from benchmarks._gateway_processes import Processes
from benchmarks._gateway_report import ANCHOR, OURS, Report

FULL, QUICK = Pace(10, 0.4), Pace(3, 0.25)
SIZES = {"100 KB": 100_000, "1 MB": 1_000_000}
SERVERS, TOOLS_EACH = 20, 50
STARTED = 10
SESSIONS = 200
STARTS: dict[str, Start] = {OURS: toolgate, ANCHOR: composition}


async def calls(report: Report, upstreams: Upstreams, gates: Sequence[Gate], pace: Pace) -> None:
    for case in CASES:
        routes = [*upstreams.direct(case), *gates]
        say(f"small calls, {case.title}")
        found = told(*await small_calls(case, routes, pace))
        report.add_small(case, found)
        if case.title in ("modern → HTTP modern", "modern → stdio modern"):
            routes = [route for route in routes if route.name in found]
            for size, count in SIZES.items():
                say(f"{size} results, {case.title}")
                report.add_large(case, size, told(*await large_calls(case, routes, pace, count)))


def told(found: dict[str, Figures], reasons: dict[str, str]) -> dict[str, Figures]:
    """The figures, after saying of whom there are none; there must be some of us and of the anchors."""
    for name, reason in reasons.items():
        if name in (DIRECT, OURS, ANCHOR):
            raise Refused(f"{name}: {reason}")
        say(f"  not through {name}: {reason}")
    return found


async def lists(report: Report, processes: Processes, place: Path, upstreams: Upstreams, pace: Pace) -> None:
    say(f"tools/list of {SERVERS * TOOLS_EACH} tools")
    servers = upstreams.many(SERVERS, TOOLS_EACH)
    gates = [start(processes, place / f"list-{name}", servers) for name, start in STARTS.items()]
    server = upstreams.by_era["modern"]
    routes = {gate.name: (gate.running, f"{gate.running.origin}/mcp") for gate in gates}
    routes[DIRECT] = server, f"{server.origin}/mcp/tools/{SERVERS * TOOLS_EACH}"
    report.add_listing(await listings(SERVERS * TOOLS_EACH, routes, pace))
    for gate in gates:
        processes.stop(gate.running)


async def starts(report: Report, processes: Processes, place: Path, upstreams: Upstreams, quick: bool) -> None:
    over_http = upstreams.many(STARTED, 10)
    say(f"cold start with {STARTED} upstreams")
    first, again = await _starts(processes, place / "http", over_http, STARTED * 10, 3 if quick else 7)
    report.add_start(f"cold start, {STARTED} HTTP upstreams", first, limited=True)
    report.add_start(f"start again, {STARTED} HTTP upstreams", again, limited=False)
    if not quick:
        say(f"cold start with {STARTED} upstreams over stdio")
        over_stdio = {f"s{number}": stdio() for number in range(STARTED)}
        first, again = await _starts(processes, place / "stdio", over_stdio, STARTED, 3)
        report.add_start(f"cold start, {STARTED} stdio upstreams", first, limited=False)
        report.add_start(f"start again, {STARTED} stdio upstreams", again, limited=False)


async def _starts(
    processes: Processes, place: Path, servers: Servers, tools: int, rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Medians of first starts, and of second ones with what the first has left."""
    place.mkdir()
    times: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        for name, start in STARTS.items():
            for which in range(2):
                took, gate = await cold_start(processes, start, place / f"{name}{number}", servers, tools)
                times.setdefault((name, which), []).append(took)
                processes.stop(gate.running)
    first, again = ({name: statistics.median(times[name, which]) for name in STARTS} for which in range(2))
    return first, again


def check_recorded(report: Report, data: Path) -> None:
    """The figures count only if what the gateway promises was done: a record on disk of every call."""
    with closing(sqlite3.connect(f"file:{data / 'toolgate.db'}?mode=ro", uri=True)) as db:
        [(recorded,)] = db.execute("SELECT COUNT(*) FROM tool_calls")
    made = sum(found[OURS].calls for found in report.small.values())
    if recorded < made:
        raise RuntimeError(f"of {made} calls, only {recorded} were recorded")


async def memory(report: Report, gates: Sequence[Gate]) -> None:
    say(f"memory of {SESSIONS} idle sessions")
    found = {gate.name: await idle_memory(gate, "http_modern", SESSIONS) for gate in gates if gate.name in STARTS}
    report.add_memory("one idle session", found)


async def measure(report: Report, processes: Processes, place: Path, given: argparse.Namespace) -> None:
    pace = QUICK if given.quick else FULL
    upstreams = Upstreams.start(processes, place)
    servers = upstreams.servers()
    gates = [start(processes, place / name, servers) for name, start in STARTS.items()]
    if given.peers:
        gates += peers.start(processes, place, servers, given.peer_cache)
    await calls(report, upstreams, gates, pace)
    check_recorded(report, place / OURS / "data")
    await memory(report, gates)
    for gate in gates:
        processes.stop(gate.running)
    await lists(report, processes, place, upstreams, pace)
    await starts(report, processes, place, upstreams, given.quick)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter windows, fewer of them: ratios, roughly")
    parser.add_argument("--peers", action="store_true", help="install other gateways and measure them too")
    parser.add_argument("--peer-cache", type=Path, default=peers.CACHE, help="where they are installed")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables here too")
    given = parser.parse_args()
    if platform.system() != "Linux":
        say("only Linux tells what another process uses: nothing is measured here")
        return 0
    report, started = Report(), time.monotonic()
    with _ended_by_signals(), tempfile.TemporaryDirectory() as place, Processes() as processes:
        uvloop.run(measure(report, processes, Path(place), given))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    report.notes.append(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, load average {load}, "
        f"{time.monotonic() - started:.0f} s{', --quick' if given.quick else ''}"
    )
    text = "\n".join(report.lines())
    print(text)
    if given.markdown:
        given.markdown.write_text(text + "\n")
    return int(not report.kept)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Being asked to end is being interrupted: every process we started ends first."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
