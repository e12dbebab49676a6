"""An HTTP tool through the gateway against the same request by `httpx2` and by `curl`, in one run.

The server is a process of its own. Each client has one pooled connection and sends the same GET with a query and a
bearer token; the CPU of this process is measured in interleaved rounds, that of `curl`, which starts for each request,
with its own. Exits 1 if the gateway takes more than half the CPU of `httpx2`.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2

from gateway import Gateway

CALLS, ROUNDS, CURL_CALLS = 300, 9, 20
LIMIT = 0.5
TOKEN = "bench-t0ken-value"

SERVER = """
import asyncio
BODY = b'{"id": 7, "name": "Ada", "tags": ["a", "b"], "address": {"city": "London"}}'
REPLY = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(BODY) + BODY

class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(REPLY * data.count(b"\\r\\n\\r\\n"))

async def main():
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


def cpu() -> float:
    return time.process_time()


async def measure(send: Callable[[], Awaitable[object]]) -> float:
    """CPU seconds of this process per request, one after another."""
    before = cpu()
    for _ in range(CALLS):
        await send()
    return (cpu() - before) / CALLS


def measure_curl(url: str) -> float:
    """CPU seconds of `curl` per request, its start included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(CURL_CALLS):
        subprocess.run(
            ["curl", "-s", "-H", f"Authorization: Bearer {TOKEN}", url], check=True, stdout=subprocess.DEVNULL
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / CURL_CALLS


async def compare(port: int, directory: Path) -> float:
    """Print the rows; return the CPU of the gateway as a share of that of `httpx2`."""
    origin = f"http://127.0.0.1:{port}"
    os.environ["BENCH_TOKEN"] = TOKEN
    tool = {
        "id": "get",
        "type": "http",
        "url_template": f"{origin}/users/${{id}}",
        "query": {"full": "${full}"},
        "auth": {"type": "bearer", "token": "${BENCH_TOKEN}"},
        "input_schema": {"type": "object", "properties": {"id": {"type": "integer"}, "full": {"type": "boolean"}}},
    }
    manifest = {"id": "bench", "name": "Bench", "version": "1.0.0", "secrets": ["BENCH_TOKEN"], "tools": [tool]}
    (directory / "toolset").mkdir()
    (directory / "toolset/toolset.yaml").write_text(json.dumps(manifest))
    http = {"allowed_hosts": [f"127.0.0.1:{port}"], "allow_private": True}
    settings = {"data_dir": str(directory / "data"), "toolsets": [str(directory / "toolset")], "http": http}
    async with Gateway.open(settings) as gateway, httpx2.AsyncClient() as client:

        async def by_gateway() -> None:
            outcome = await gateway.call("bench:get", {"id": 7, "full": True})
            assert outcome.value["name"] == "Ada", outcome.error

        async def by_httpx2() -> None:
            response = await client.get(
                f"{origin}/users/7", params={"full": "true"}, headers={"authorization": f"Bearer {TOKEN}"}
            )
            assert response.json()["name"] == "Ada"

        await by_gateway()
        await by_httpx2()
        rows: dict[str, list[float]] = {"gateway": [], "httpx2": []}
        for _ in range(ROUNDS):
            rows["gateway"].append(await measure(by_gateway))
            rows["httpx2"].append(await measure(by_httpx2))
    share = statistics.median(ours / theirs for ours, theirs in zip(rows["gateway"], rows["httpx2"], strict=True))
    for name, seconds in rows.items():
        print(f"{name:8} {statistics.median(seconds) * 1e6:8.0f} µs of CPU per request")
    if shutil.which("curl"):
        print(
            f"{'curl':8} {measure_curl(f'{origin}/users/7?full=true') * 1e6:8.0f} µs of CPU per request, start included"
        )
    print(f"gateway / httpx2: {share:.2f} (limit {LIMIT})")
    return share


def main() -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        with tempfile.TemporaryDirectory() as directory:
            share = asyncio.run(compare(int(server.stdout.readline()), Path(directory)))
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    sys.exit(share > LIMIT)


if __name__ == "__main__":
    main()
