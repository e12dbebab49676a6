"""Where an upstream server is, and who we say we are: the two things a link is opened with."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from gateway.config import SandboxSettings

Transport = Literal["auto", "sse", "streamable-http"]


@dataclass(frozen=True)
class Confinement:
    """What a server in the sandbox is given beside its own program.

    `home` is a folder of its own in `data_dir` that outlives it. `paths` are absolute, or relative to `toolset`, the
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


@dataclass(frozen=True)
class StdioEndpoint:
    """A program that speaks over its stdin and stdout. It gets `env` and a few variables every program
    needs, and starts in `cwd` or else where the gateway did. With `sandbox` it runs in one."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    sandbox: Confinement | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        return PurePath(self.command).name


class Login(Protocol):
    """Proves to a server who we are, by a header that changes with time."""

    @property
    def line(self) -> bytes | None:
        """The header as it is sent, or nothing; None when `fresh` must be asked for it."""

    async def fresh(self) -> bytes: ...

    async def refused(self, line: bytes, status: int, challenge: str) -> bool:
        """Whether a request the server refused is worth another try; raises `Unauthorized` when only a person can
        help, and leaves to others what is not about a login."""


@dataclass(frozen=True)
class HttpEndpoint:
    """A URL. `auto` speaks streamable HTTP, and the old HTTP+SSE to a server that knows only that.
    `tls` replaces the system's trusted certificates."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    transport: Transport = "auto"
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    login: Login | None = field(default=None, repr=False, compare=False)

    @property
    def label(self) -> str:
        """The URL without what may be secret in it."""
        try:
            parts = urlsplit(self.url)
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            return "an invalid URL"
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


Endpoint = StdioEndpoint | HttpEndpoint


@dataclass(frozen=True)
class ClientFace:
    """Who we are to the server. In the handshake eras `capabilities` hold for the whole link; in the modern
    one each request says its own, and these are said where it says none."""

    name: str
    version: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    @property
    def info(self) -> dict[str, str]:
        return {"name": self.name, "version": self.version}
