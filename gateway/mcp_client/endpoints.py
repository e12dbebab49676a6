"""Endpoints of upstream servers and the identity of the client: what a connection is opened with."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path, PurePath
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from gateway.config import SandboxSettings
from gateway.value import Value

TransportName = Literal["auto", "sse", "streamable-http"]


class Confinement(Value):
    """The rights of a server in the sandbox, besides its own program.

    `home` is its own folder in `data_dir`, which outlives it. `paths` are absolute, or relative to `toolset`, the
    directory of the toolset that brings the server; they are read-only unless they end in `:rw`. `network` are hosts,
    at private addresses only with `allow_private`.
    """

    home: Path
    data_dir: Path
    settings: SandboxSettings
    paths: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    allow_private: bool = False
    toolset: Path | None = None


class StdioEndpoint(Value):
    """A program that speaks MCP over stdin and stdout. Its environment is `env` and a few variables every program
    needs. It starts in `cwd`, or in the gateway's working directory. With `sandbox` it runs in one. Its stderr is kept
    in the file `log`, if there is one. With `is_typed` its command was typed, else it stands in a file: advice fits."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    sandbox: Confinement | None = field(default=None, repr=False)
    log: Path | None = field(default=None, repr=False, compare=False)
    is_typed: bool = field(default=True, repr=False, compare=False)

    @property
    def label(self) -> str:
        return PurePath(self.command).name


class Authorizer(Protocol):
    """Provides the authorization header of requests, which changes with time."""

    @property
    def header(self) -> bytes | None:
        """The header line, which may be empty; None when `refresh_header` must be called."""

    async def refresh_header(self) -> bytes: ...

    async def handle_refusal(self, header: bytes, status: int, challenge: str) -> bool:
        """Return whether a request that the server refused should be sent again. `Unauthorized` when only a person can
        help; false when the refusal is not about a login."""


class HttpEndpoint(Value):
    """A URL. `auto` uses streamable HTTP, and the old HTTP+SSE with a server that knows only that. `tls` replaces the
    system's trusted certificates."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    transport: TransportName = "auto"
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    authorizer: Authorizer | None = field(default=None, repr=False, compare=False)

    @property
    def label(self) -> str:
        """The URL without the parts that may be secret."""
        try:
            parts = urlsplit(self.url)
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            return "an invalid URL"
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


Endpoint = StdioEndpoint | HttpEndpoint


class ClientIdentity(Value):
    """Name, version and capabilities of the client. In the handshake versions `capabilities` hold for the whole
    connection; in the modern one they are those of requests that have none of their own."""

    name: str
    version: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    @property
    def info(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version}
