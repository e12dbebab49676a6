"""API keys: the CPU of a call over HTTP with a key and a role, against the same call on a gateway without keys.

Two gateways run side by side and are measured in turns, over one kept-alive connection each, so that what neighbours on
the machine do disturbs both alike. Also the time to make the views of 5,000 tools for 100 roles. Exits 1 above a limit.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._gateway_processes import Processes, Running
from gateway.access import AccessPolicy, AccessRule
from gateway.catalog import Catalog, CatalogEntry
from gateway.tools import Tool

CALLS = 1500
ROUNDS = 9
LIMIT_RATIO = 1.05
TOOLS, ROLES, LIMIT_SECONDS = 5000, 100, 1.0
SETTINGS = {
    "approval": {"mode": "never"},
    "roles": {"agent": {"tools": {"allow": ["*"], "deny": ["*__delete_*"]}}},
}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}


def encode_request(key: str | None) -> bytes:
    params = {"name": "list_directory", "arguments": {}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = {
        "Host": "127.0.0.1",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": "2026-07-28",
        "MCP-Method": "tools/call",
        "MCP-Name": "list_directory",
        **({} if key is None else {"Authorization": f"Bearer {key}"}),
        "Content-Length": str(len(body)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body


def measure(gateway: Running, key: str | None) -> float:
    """Return the microseconds of CPU that the gateway takes for a call."""
    port, request = int(gateway.origin.rpartition(":")[2]), encode_request(key)
    with socket.create_connection(("127.0.0.1", port)) as line:
        before = gateway.cpu()
        for _ in range(CALLS):
            line.sendall(request)
            answer = line.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200") and b'"isError":false' in answer, answer
        return (gateway.cpu() - before) / CALLS * 1e6


def make_views() -> float:
    """Return the seconds of CPU for the views of all roles."""
    tools = [Tool(f"s{n % 50}:tool_{n}", "", kind="mcp", owner=f"s{n % 50}") for n in range(TOOLS)]
    source = object()
    whole = Catalog(CatalogEntry(tool.id.replace(":", "__"), tool, source) for tool in tools)  # type: ignore[arg-type]
    rules = [AccessRule(tools=["s1*", f"*_{n}*"], denied=["*__delete_*", f"*_{n}"]) for n in range(ROLES)]
    policies = [AccessPolicy([rule]) for rule in rules]
    began = time.process_time()
    for policy in policies:
        whole.for_principal(policy)
    return time.process_time() - began


def main() -> int:
    toolgate = [sys.executable, "-m", "gateway"]
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        file = Path(folder, "toolgate.yaml")
        file.write_text(json.dumps(SETTINGS))
        keyed = ["--config", str(file), "--data-dir", f"{folder}/keyed"]
        command = [*toolgate, "key", "create", "bench", "--role", "agent", "--json", *keyed]
        key = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["key"]
        serve = [*toolgate, "serve", "--transport", "http", "--port", "0"]
        plain = ["--config", str(file), "--data-dir", f"{folder}/plain"]
        without, with_key = (processes.start([*serve, *options], Path(folder)) for options in (plain, keyed))
        pairs = [(measure(without, None), measure(with_key, key)) for _ in range(ROUNDS)]
    ratio = statistics.median(second / first for first, second in pairs)
    cheapest = [min(times) for times in zip(*pairs, strict=True)]
    print(f"CPU per call: {cheapest[0]:.0f} µs without keys, {cheapest[1]:.0f} µs with key and role, {ratio:.3f} times")
    seconds = min(make_views() for _ in range(3))
    print(f"views of {TOOLS} tools for {ROLES} roles: {seconds:.2f} s")
    return int(ratio > LIMIT_RATIO or seconds > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
