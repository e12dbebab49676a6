"""Cold start: from starting the process to the answer of `tools/list` over stdio, against a minimal SDK server.

Prints both times and their ratio; exits 1 above the limit.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 10
LIMIT = 0.6
HERE = Path(__file__).parent

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


def time_to_tools(command: list[str]) -> float:
    started = time.perf_counter()
    # As after an install: compiled modules are kept.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        for message in (INITIALIZE, INITIALIZED, LIST):
            server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
        while json.loads(server.stdout.readline()).get("id") != 2:
            pass
        elapsed = time.perf_counter() - started
        server.stdin.close()
        server.wait(10)
    return elapsed


def main() -> int:
    with tempfile.TemporaryDirectory() as data:
        commands = {
            "minimal SDK server": [sys.executable, str(HERE / "_minimal_server.py")],
            "toolgate serve": [sys.executable, "-m", "gateway", "serve", "--data-dir", data],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                times[name].append(time_to_tools(command))
        for values in times.values():
            del values[0]  # modules are compiled in the first round
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        print(f"{name:20} median {median * 1000:7.0f} ms   best {min(times[name]) * 1000:7.0f} ms")
    ratio = medians["toolgate serve"] / medians["minimal SDK server"]
    print(f"ratio of medians     {ratio:.2f}   (limit {LIMIT})")
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
