"""A server without the SDK that does what it is told: reads, writes, connects, uses memory, waits."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEPT: list[bytes] = []


def wait(_: Any) -> None:
    time.sleep(300)


def write(given: dict[str, str]) -> int:
    return Path(given["path"]).write_text(given["text"])


def connect(given: dict[str, Any]) -> str:
    with socket.create_connection(("127.0.0.1", given["port"]), timeout=10):
        return "connected"


def fetch(given: dict[str, str]) -> str:
    try:
        with urllib.request.urlopen(given["url"], timeout=30) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"


def use_memory(given: dict[str, int]) -> int:
    for _ in range(given["mebibytes"]):
        KEPT.append(os.urandom(1024 * 1024))
    time.sleep(300)
    return len(KEPT)


def see(_: Any) -> dict[str, Any]:
    return {"env": dict(os.environ), "cwd": str(Path.cwd())}


TOOLS: dict[str, Callable[[Any], Any]] = {
    "read": lambda given: Path(given["path"]).read_text(),
    "list": lambda given: sorted(os.listdir(given["path"])),
    "echo": lambda given: given["text"],
    "write": write,
    "connect": connect,
    "fetch": fetch,
    "use_memory": use_memory,
    "see": see,
    "wait": wait,
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    params = request.get("params") or {}
    if request["method"] == "initialize":
        info = {"name": "reaching", "version": "1"}
        return {
            "result": {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        }
    if request["method"] == "tools/list":
        return {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}}
    if request["method"] != "tools/call":
        return {"error": {"code": -32601, "message": "Method not found"}}
    try:
        value = TOOLS[params["name"]](params.get("arguments") or {})
    except OSError as error:
        return {"result": {"content": [{"type": "text", "text": f"refused: {error}"}], "isError": True}}
    return {"result": {"content": [{"type": "text", "text": json.dumps(value)}]}}


if __name__ == "__main__":
    if "terminates" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: (print("bye", file=sys.stderr, flush=True), os._exit(0)))
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer(request)}), flush=True)
    while "terminates" in sys.argv:
        time.sleep(1)
