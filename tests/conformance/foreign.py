"""Servers nobody here wrote, for the suite: the Python SDK's, FastMCP's, and the reference `server-everything`."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from journeys.servers import wild

from .processes import listening


@dataclass(frozen=True)
class ForeignServer:
    """One server: its entry of `mcpServers`, which starts it over stdio, and the command that starts it over HTTP, at
    the port `{port}`, which is also its variable PORT."""

    over_stdio: dict[str, Any]
    command: list[str]

    @contextmanager
    def over_http(self, directory: Path) -> Iterator[str]:
        """The server as a process; its URL."""
        port = str(_free_port())
        command = [part.format(port=port) for part in self.command]
        variables = {**self.over_stdio.get("env", {}), "PORT": port}
        with listening(command, directory, variables, f"http://127.0.0.1:{port}/mcp") as url:
            yield url


def foreign_servers(node: str) -> dict[str, ForeignServer]:
    entries = wild.conformance_servers(node)
    python, script = entries["sdk"]["command"], entries["everything"]["args"][0]
    commands = {
        "sdk": [python, "-m", "mcp_everything_server", "--port", "{port}", "--log-level", "WARNING"],
        "fastmcp": [python, str(wild.FASTMCP), "{port}"],
        "everything": [node, script, "streamableHttp"],
    }
    return {name: ForeignServer(entries[name], command) for name, command in commands.items()}


def _free_port() -> int:
    """A port nobody listens on: these servers do not say which one they took if told to take any. The system gives none
    of this range to anybody else meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
