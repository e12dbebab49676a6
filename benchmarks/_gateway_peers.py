"""Other gateways, each installed into a virtual environment of its own, outside this repository.

Not among them are mcp-hub, whose endpoint speaks only the transport of 2024-11-05, for which a client would have to be
written, and which listens to the whole network; and mcpo, which serves OpenAPI, where a call has no session and no
JSON-RPC, and whose 0.0.20 starts neither with the SDK nor with the FastAPI that it installs.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import socket
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from benchmarks._gateway_gates import Address, Gate, Servers, joined
from benchmarks._gateway_processes import Processes, Running

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "toolgate-benchmarks"
INSTALL_SECONDS, START_SECONDS = 240.0, 90.0

FASTMCP = """
import asyncio, json, sys
from contextlib import AsyncExitStack
import uvicorn
from fastmcp import Client, FastMCP
from fastmcp.server.providers.proxy import FastMCPProxy

async def main(servers):
    gate = FastMCP("gate")
    async with AsyncExitStack() as stack:
        for name, said in servers.items():
            # Connected once: its default, a new connection for each request, is many times slower.
            client = await stack.enter_async_context(Client({"mcpServers": {name: said}}))
            gate.mount(FastMCPProxy(client_factory=lambda client=client: client), namespace=name)
        config = uvicorn.Config(gate.http_app(), port=0, access_log=False, timeout_keep_alive=75)
        await uvicorn.Server(config).serve()

asyncio.run(main(json.load(open(sys.argv[1]))["mcpServers"]))
"""

CONTEXTFORGE = """
import asyncio
import uvicorn

class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        # Its own command says where it listens only together with lines for every call.
        print("http://127.0.0.1:%d" % self.servers[0].sockets[0].getsockname()[1], flush=True)

config = uvicorn.Config("mcpgateway.main:app", port=0, access_log=False, timeout_keep_alive=75)
asyncio.run(Server(config).serve())
"""


def _nothing_more(_: Running, __: Servers) -> None:
    """It knows its upstreams from the start."""


@dataclass(frozen=True)
class Peer:
    """A gateway from PyPI: what installs it, how it is started in a folder, where it then is, and what is left to do
    before it is called."""

    name: str
    package: str
    command: Callable[[Path, Path, Servers], list[str]]
    address: Callable[[Running], Address]
    variables: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Running, Servers], None] = _nothing_more

    @property
    def distribution(self) -> str:
        return re.split(r"[\[>]", self.package)[0]


def _fastmcp(environment: Path, directory: Path, servers: Servers) -> list[str]:
    (directory / "gate.py").write_text(FASTMCP)
    (directory / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    return [str(environment / "bin/python"), str(directory / "gate.py"), str(directory / "servers.json")]


def _mcp_proxy(environment: Path, _: Path, servers: Servers) -> list[str]:
    # It starts servers of the handshake era, and reaches none by a URL when it serves.
    said = servers["stdio_handshake"]
    started = shlex.join([said["command"], *said["args"]])
    options = ["--port", "0", "--pass-environment", "--named-server", "stdio_handshake", started]
    return [str(environment / "bin/mcp-proxy"), *options]


def _litellm(environment: Path, directory: Path, servers: Servers) -> list[str]:
    # It reaches servers of the handshake era by URL, and starts none unless told to at length.
    reached = {
        name: {"url": said["url"], "transport": "http", "auth_type": "none", "allow_all_keys": True}
        for name, said in servers.items()
        if "url" in said
    }
    (directory / "config.yaml").write_text(json.dumps({"mcp_servers": reached}))
    options = ["--config", str(directory / "config.yaml"), "--host", "127.0.0.1", "--port", str(_free_port())]
    return [str(environment / "bin/litellm"), *options]


def _contextforge(environment: Path, directory: Path, _: Servers) -> list[str]:
    (directory / "gate.py").write_text(CONTEXTFORGE)
    return [str(environment / "bin/python"), str(directory / "gate.py")]


def _register(running: Running, servers: Servers) -> None:
    """ContextForge reaches servers by URL, starts none, and takes only those it can speak to."""
    for name, said in servers.items():
        if "url" in said:
            asked = json.dumps({"name": name, "url": said["url"], "transport": "STREAMABLEHTTP"})
            with closing(HTTPConnection(running.origin.removeprefix("http://"), timeout=START_SECONDS)) as connection:
                connection.request("POST", "/gateways", asked, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                if answer.status >= 300:
                    print(f"ContextForge does without {name}: {answer.read(300)!r}", file=sys.stderr)


def _free_port() -> int:
    """A port nobody has now and no client is given: below those the system hands out."""
    for port in range(21_000, 30_000):
        with socket.socket() as trying, suppress(OSError):
            trying.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


PEERS = [
    Peer("FastMCP", "fastmcp>=4", _fastmcp, lambda running: joined(running, "_")),
    Peer(
        "mcp-proxy",
        "mcp-proxy",
        _mcp_proxy,
        lambda running: lambda upstream: (f"{running.origin}/servers/{upstream}/mcp", "echo"),
    ),
    Peer(
        "LiteLLM",
        "litellm[proxy]",
        _litellm,
        lambda running: joined(running, "-"),
        {
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # on loopback, for the time of a benchmark
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    ),
    Peer(
        "ContextForge",
        "mcp-contextforge-gateway",
        _contextforge,
        lambda running: lambda upstream: (f"{running.origin}/mcp", f"{upstream.replace('_', '-')}-echo"),
        {
            "DATABASE_URL": "sqlite:///./contextforge.db",
            "JWT_SECRET_KEY": secrets.token_hex(32),
            "AUTH_ENCRYPTION_SECRET": secrets.token_hex(32),
            "AUTH_REQUIRED": "false",
            "ALLOW_UNAUTHENTICATED_ADMIN": "true",  # on loopback, for the time of a benchmark
            "SSRF_ALLOW_LOCALHOST": "true",
            "RATE_LIMITING_ENABLED": "false",
            "USE_STATEFUL_SESSIONS": "true",  # its default, a new connection for each call, is many times slower
        },
        _register,
    ),
]


def start(processes: Processes, directory: Path, servers: Servers, cache: Path) -> Iterator[Gate]:
    """Those that install and start; of the others it is said why they are left out."""
    for peer in PEERS:
        try:
            environment = _installed(peer, cache)
            place = directory / peer.name
            place.mkdir(exist_ok=True)
            command = peer.command(environment, place, servers)
            running = processes.start(command, place, peer.variables, within=START_SECONDS)
            with ExitStack() as unready:
                unready.callback(processes.stop, running)
                peer.prepare(running, servers)
                unready.pop_all()
        except (OSError, RuntimeError, HTTPException, subprocess.SubprocessError) as reason:
            print(f"{peer.name} is left out: {reason}", file=sys.stderr)
            continue
        yield Gate(f"{peer.name} {_version(environment, peer)}", running, peer.address(running))


def _installed(peer: Peer, cache: Path) -> Path:
    environment = cache / peer.name
    done = environment / "installed"
    if not done.exists():
        print(f"installing {peer.package} into {environment}", file=sys.stderr)
        venv.create(environment, with_pip=True, clear=True)
        command = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet", peer.package]
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        if outcome.returncode:
            raise RuntimeError(f"it does not install: {outcome.stderr.strip()[-300:]}")
        done.touch()
    return environment


def _version(environment: Path, peer: Peer) -> str:
    code = f"import importlib.metadata; print(importlib.metadata.version({peer.distribution!r}))"
    return subprocess.run(
        [str(environment / "bin/python"), "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
