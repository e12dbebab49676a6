"""REST against the MCP fast path: CPU of the server for a list of 1,000 tools and for a call of a trivial tool.

Both are asked over one connection, in turns. Prints the CPU of each and the ratio; exits 1 above the limit.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import anyio

from benchmarks._gateway_processes import Running
from gateway import Gateway
from gateway.calls import Call, Outcome
from gateway.serve.http.app import HttpApp, RequestGuard, bind, serve_http
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.serve.rest.routes import build_rest_app
from gateway.tools import Permission, Tool

ROUNDS = 25
REQUESTS = {"invoke": 300, "list": 300}
LIMIT = 1.5
BODY_LIMIT = 2**25
VERSION = "2026-07-28"


class Thousand:
    """A source of 1,000 tools that do nothing."""

    name = "thousand"

    def __init__(self) -> None:
        schema = {"type": "object", "properties": {"path": {"type": "string", "description": "A path."}}}
        self.tools = [
            Tool(f"many:tool_{number}", "Do nothing with a path. " * 5, schema, permission=Permission.READ_ONLY)
            for number in range(1000)
        ]

    async def list_tools(self) -> Sequence[Tool]:
        return self.tools

    async def call_tool(self, call: Call) -> Outcome:
        return Outcome(value={"path": call.arguments["path"]})


async def serve(directory: str) -> None:
    """Serve until the process is killed; the port is printed."""
    settings = {"data_dir": directory, "tools": {"enable": True}}
    async with Gateway.open(settings, sources=[Thousand()]) as gateway:
        handlers = Handlers(gateway.executor, gateway.versions, None, gateway.records, caller=gateway.approval_flow)
        web = HttpApp(
            McpServer(handlers),
            gateway.check_parts,
            RequestGuard(BODY_LIMIT),
            build_rest=lambda: build_rest_app(gateway, BODY_LIMIT),
        )
        listening = bind("127.0.0.1", 0)
        listening.listen()
        print(listening.getsockname()[1], flush=True)
        await serve_http(web.app, web.fast_path, listening, anyio.Event(), gateway.drain)


def rest(method: str, path: str, body: object = None) -> bytes:
    document = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(document)}\r\n\r\n".encode() + document


def mcp(method: str, **params: object) -> bytes:
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    document = json.dumps(message).encode()
    name = f"mcp-name: {params['name']}\r\n" if "name" in params else ""
    head = (
        f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"accept: application/json, text/event-stream\r\nmcp-protocol-version: {VERSION}\r\nmcp-method: {method}\r\n"
        f"{name}content-length: {len(document)}\r\n\r\n"
    )
    return head.encode() + document


CASES = {
    "invoke": (
        rest("POST", "/api/tools/many__tool_7/invoke", {"args": {"path": "a.txt"}}),
        mcp("tools/call", name="many__tool_7", arguments={"path": "a.txt"}),
    ),
    "list": (rest("GET", "/api/tools?limit=1000"), mcp("tools/list")),
}


def ask(connection: socket.socket, request: bytes) -> bytes:
    """Send a request and return the whole response."""
    connection.sendall(request)
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1 << 20)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], received[:500]
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    )
    parts, size = [body], len(body)
    while size < length:
        parts.append(connection.recv(1 << 20))
        size += len(parts[-1])
    return b"".join(parts)


def measure(process: Running, connection: socket.socket, request: bytes, count: int) -> float:
    started = process.cpu()
    for _ in range(count):
        ask(connection, request)
    return (process.cpu() - started) / count * 1e6


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "benchmarks.rest", "--serve", directory]
        served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert served.stdout is not None
            port = int(served.stdout.readline())
            with socket.create_connection(("127.0.0.1", port)) as connection:
                return report(Running("", served.pid), connection)
        finally:
            served.kill()
            served.wait()


def report(process: Running, connection: socket.socket) -> int:
    worst = 0.0
    for name, requests in CASES.items():
        for request in requests:
            measure(process, connection, request, 50)
        rounds = [
            [measure(process, connection, request, REQUESTS[name]) for request in requests] for _ in range(ROUNDS)
        ]
        ours, anchor = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratio = statistics.median(ours / anchor for ours, anchor in rounds)
        worst = max(worst, ratio)
        print(f"{name:8} REST {ours:7.0f} µs  MCP {anchor:7.0f} µs  {ratio:.2f} times (limit {LIMIT})")
    return int(worst > LIMIT)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        anyio.run(serve, sys.argv[2], backend_options={"use_uvloop": True})
    else:
        sys.exit(main())
