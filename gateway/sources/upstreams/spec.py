"""The configuration of an upstream server from any origin: the settings, added by hand, or a toolset."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gateway.config import ServerSandboxSettings, Settings, UpstreamSettings, resolve_variables
from gateway.mcp_client import Confinement, Endpoint, HttpEndpoint, StdioEndpoint
from gateway.sources.upstreams.pinning import PinPolicy
from gateway.sources.upstreams.tools import Override, Terms
from gateway.value import Value

# Origins of servers that the operator configured. Servers of any other origin run in the sandbox by default.
SETTINGS, ADDED = "the settings", "added by hand"
# How a server's tools are offered; the connection to it does not depend on these.
_OFFER_SETTINGS = ("overrides", "tools", "category", "permission", "requires_confirmation")


def bundle_folder(data_dir: Path, digest: str) -> Path:
    """The folder of an unpacked `.mcpb` file."""
    return data_dir / "mcpb" / digest[:32]


class Spec(Value):
    """One server. `origin` says where it was configured; `${VAR}`s are resolved when connecting, never before.
    `folder` is that of an unpacked `.mcpb` file, which its program may read."""

    name: str
    settings: UpstreamSettings
    origin: str
    terms: Terms
    folder: Path | None = None
    unplaced: UpstreamSettings | None = None

    @classmethod
    def configured(cls, name: str, settings: UpstreamSettings, origin: str, data_dir: Path) -> Spec:
        """A server of the operator. One of an `.mcpb` file runs from the unpacked folder."""
        spec = cls.of(name, settings, origin)
        if settings.bundle is None:
            return spec
        folder = bundle_folder(data_dir, settings.bundle)
        places = {"${__dirname}": str(folder), "${__home}": str(spec.home(data_dir))}

        def place(text: str) -> str:
            for reference, path in places.items():
                text = text.replace(reference, path)
            return text

        placed = {
            "command": place(settings.command or ""),
            "args": list(map(place, settings.args)),
            "env": {variable: place(value) for variable, value in settings.env.items()},
            "cwd": place(settings.cwd) if settings.cwd is not None else None,
        }
        return replace(spec, settings=settings.model_copy(update=placed), folder=folder, unplaced=settings)

    @classmethod
    def of(
        cls,
        name: str,
        settings: UpstreamSettings,
        origin: str,
        overrides: Mapping[str, Override] | None = None,
        home: Path | None = None,
    ) -> Spec:
        """`overrides` come from a toolset; those of the settings win. `home` is the toolset's folder."""
        own = {tool: Override(**vars(override)) for tool, override in settings.overrides.items()}
        terms = Terms(
            server=name,
            prefix=settings.prefix,
            category=settings.category,
            permission=settings.permission,
            trusted=settings.trusted,
            requires_confirmation=settings.requires_confirmation,
            timeout=settings.timeout,
            allow=tuple(settings.tools.allow),
            deny=tuple(settings.tools.deny),
            overrides={**(overrides or {}), **own},
            home=home,
        )
        return cls(name, settings, origin, terms)

    def connects_like(self, other: Spec) -> bool:
        """Return whether a connection made for this configuration serves the other one: they differ at most in how the
        server's tools are offered."""
        return self == other or self._as_connected() == other._as_connected()

    def _as_connected(self) -> Spec:
        settings = self.settings.model_copy(update=dict.fromkeys(_OFFER_SETTINGS))
        return replace(self, settings=settings, terms=Terms(self.name, home=self.terms.home), unplaced=None)

    @property
    def stored(self) -> UpstreamSettings:
        """The settings as they were written, with `${__dirname}`."""
        return self.unplaced or self.settings

    @property
    def policy(self) -> PinPolicy:
        return PinPolicy(trust_first=self.settings.pinning == "trust")

    @property
    def sandbox(self) -> ServerSandboxSettings | None:
        """The sandbox settings of the server; None if it runs outside the sandbox or is reached by a URL."""
        sandbox = self.settings.sandbox
        if sandbox is None:
            sandbox = self.origin not in (SETTINGS, ADDED)
        if self.settings.command is None or sandbox is False:
            return None
        return ServerSandboxSettings() if sandbox is True else sandbox

    def home(self, data_dir: Path) -> Path:
        """The server's own folder in the sandbox; servers of the same name and another origin have another."""
        digest = hashlib.sha256(f"{self.origin}\0{self.name}".encode()).hexdigest()[:12]
        return data_dir / "servers" / f"{re.sub('[^A-Za-z0-9_-]', '_', self.name)[:64]}-{digest}"

    def log(self, data_dir: Path) -> Path:
        """The file that keeps the stderr of the server's program."""
        return data_dir / "logs" / "upstreams" / f"{self.home(data_dir).name}.log"

    def confinement(self, environment: Mapping[str, str], settings: Settings) -> Confinement | None:
        """The sandbox of the server's process, with variables resolved."""
        if (sandbox := self.sandbox) is None:
            return None
        return Confinement(
            home=self.home(settings.data_dir),
            data_dir=settings.data_dir,
            settings=settings.sandbox,
            paths=tuple(resolve_variables(path, environment) for path in sandbox.paths),
            network=tuple(sandbox.network),
            allow_private=settings.http.allow_private,
            toolset=self.terms.home or self.folder,
        )

    def endpoint(self, environment: Mapping[str, str] = os.environ) -> Endpoint:
        """The server's endpoint, with variables resolved; refused when one is not set."""

        def resolve(text: str, field: str = "") -> str:
            return resolve_variables(text, environment, field)

        settings = self.settings
        if settings.url is not None:
            headers = {name: resolve(value, name) for name, value in settings.headers.items()}
            # Clients write `http` for both transports: such a server may be streamable HTTP or SSE.
            transport = settings.type if settings.type in ("sse", "streamable-http") else "auto"
            return HttpEndpoint(resolve(settings.url), headers, transport)
        assert settings.command is not None  # noqa: S101 - the settings have one of the two
        return StdioEndpoint(
            command=resolve(settings.command),
            args=tuple(map(resolve, settings.args)),
            env={name: resolve(value, name) for name, value in settings.env.items()},
            cwd=self._directory(resolve(settings.cwd) if settings.cwd is not None else None),
            is_typed=self.origin == ADDED,
        )

    def _directory(self, cwd: str | None) -> str | None:
        """The working directory of a program; that of a toolset or bundle is relative to its folder."""
        folder = self.terms.home or self.folder
        return cwd if folder is None else str(folder / (cwd or ""))
