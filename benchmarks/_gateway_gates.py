"""The upstreams, and the gateways that stand in front of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._gateway_client import Client, Era, Pipe
from benchmarks._gateway_processes import Processes, Running

HERE = Path(__file__).parent
UPSTREAM = [sys.executable, str(HERE / "_gateway_upstream.py")]
RELAY = [sys.executable, "-m", "benchmarks._gateway_bare"]
DIRECT, BARE = "direct", "bare relay"

Servers = Mapping[str, Mapping[str, Any]]
# For the name of an upstream: where it is called, and the name of its tool `echo` there.
Address = Callable[[str], tuple[str, str]]


@dataclass(frozen=True)
class Gate:
    """What a client calls: a gateway, or the server itself."""

    name: str
    running: Running
    address: Address
    pipe: Pipe | None = None
    # The only one it can be spoken to in.
    era: Era | None = None

    def client(self, case: Case) -> Client | Pipe:
        return self.pipe or Client(self.address(case.upstream)[0], self.era or case.era)


@dataclass(frozen=True)
class Case:
    """Who speaks what to whom."""

    title: str
    era: Era
    upstream: str

    @property
    def piped(self) -> bool:
        return self.upstream.startswith("stdio")

    @property
    def upstream_era(self) -> Era:
        return "modern" if self.upstream.endswith("modern") else "handshake"


CASES = [
    Case("modern → HTTP modern", "modern", "http_modern"),
    Case("handshake → HTTP handshake", "handshake", "http_handshake"),
    Case("modern → HTTP handshake", "modern", "http_handshake"),
    Case("handshake → HTTP modern", "handshake", "http_modern"),
    Case("modern → stdio modern", "modern", "stdio_modern"),
    Case("handshake → stdio handshake", "handshake", "stdio_handshake"),
]


@dataclass(frozen=True)
class Upstreams:
    """The same small server in either era, over HTTP running already, over stdio for each gateway to start."""

    by_era: Mapping[Era, Running]
    relayed: Mapping[Era, Running]
    piped: Mapping[Era, subprocess.Popen[bytes]]

    @classmethod
    def start(cls, processes: Processes, directory: Path) -> Upstreams:
        eras: tuple[Era, ...] = ("modern", "handshake")
        commands = {era: [*UPSTREAM, "--era", era, "--transport"] for era in eras}
        by_era = {era: processes.start([*command, "http"], directory) for era, command in commands.items()}
        return cls(
            by_era,
            {
                era: processes.start([*RELAY, *running.origin[7:].split(":")], HERE.parent)
                for era, running in by_era.items()
            },
            {era: processes.piped([*command, "stdio"], directory) for era, command in commands.items()},
        )

    def direct(self, case: Case) -> list[Gate]:
        """The server that the gateways have behind them, by itself and, over HTTP, behind a bare relay; over the wire
        by which they reach it, and in its own era, since it knows no other."""
        era = case.upstream_era
        if case.piped:
            server = self.piped[era]
            return [Gate(DIRECT, Running("", server.pid), lambda _: ("", "echo"), Pipe(server, era))]
        return [_server(DIRECT, self.by_era[era], era), _server(BARE, self.relayed[era], era)]

    def servers(self) -> dict[str, dict[str, Any]]:
        over_http = {f"http_{era}": {"url": f"{running.origin}/mcp"} for era, running in self.by_era.items()}
        return {**over_http, **{f"stdio_{era}": stdio(era) for era in self.by_era}}

    def many(self, servers: int, tools: int) -> dict[str, dict[str, Any]]:
        """So many servers with so many tools each."""
        origin = self.by_era["modern"].origin
        return {f"s{number}": {"url": f"{origin}/mcp/tools/{tools}/{number}"} for number in range(servers)}


def _server(name: str, running: Running, era: Era) -> Gate:
    return Gate(name, running, lambda _: (f"{running.origin}/mcp", "echo"), era=era)


def stdio(era: Era = "modern") -> dict[str, Any]:
    command, *arguments = [*UPSTREAM, "--transport", "stdio", "--era", era]
    return {"command": command, "args": arguments}


def toolgate(processes: Processes, directory: Path, servers: Servers) -> Gate:
    """Everything on: what is called is checked, permitted, counted and recorded, and the record is on disk."""
    directory.mkdir(exist_ok=True)
    settings = {
        # What the server says of its tools is believed, so that reading needs nobody's consent.
        "mcpServers": {name: {**said, "trusted": True} for name, said in servers.items()},
        "categories": {"upstream": {"calls_per_minute": 1_000_000_000}},
    }
    config = directory / "toolgate.yaml"
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "gateway", "serve", "--transport", "http", "--port", "0"]
    running = processes.start([*command, "--config", str(config), "--data-dir", str(directory / "data")], directory)
    return Gate("Toolgate", running, joined(running, "__"))


def composition(processes: Processes, directory: Path, servers: Servers) -> Gate:
    directory.mkdir(exist_ok=True)
    config = directory / "servers.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    command = [sys.executable, "-m", "benchmarks._gateway_composition", str(config)]
    running = processes.start(command, HERE.parent)
    return Gate("SDK composition", running, joined(running, "__"))


def joined(running: Running, by: str) -> Address:
    """One endpoint for all; tools are told apart by their names."""
    return lambda upstream: (f"{running.origin}/mcp", f"{upstream}{by}echo")
