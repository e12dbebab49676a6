"""An upstream server as it is set up, wherever that was said: in the settings, by hand, or by a toolset."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.config import ServerSandbox, Settings, UpstreamSettings, resolve_variables
from gateway.mcp_client import Confinement, Endpoint, HttpEndpoint, StdioEndpoint
from gateway.sources.upstreams.pinning import PinPolicy
from gateway.sources.upstreams.tools import Override, Terms

# The origins of servers that a person here set up. Those of every other origin run in the sandbox by default.
SETTINGS, ADDED = "the settings", "added by hand"


@dataclass(frozen=True)
class Spec:
    """One server. `origin` says where it was set up; `${VAR}`s are resolved when it is reached, never before."""

    name: str
    settings: UpstreamSettings
    origin: str
    terms: Terms

    @classmethod
    def of(
        cls,
        name: str,
        settings: UpstreamSettings,
        origin: str,
        overrides: Mapping[str, Override] | None = None,
        home: Path | None = None,
    ) -> Spec:
        """`overrides` of a toolset stand below those of the settings; `home` is where its pages are."""
        own = {tool: Override(**vars(said)) for tool, said in settings.overrides.items()}
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

    @property
    def policy(self) -> PinPolicy:
        return PinPolicy(trust_first=self.settings.pinning == "trust")

    @property
    def sandbox(self) -> ServerSandbox | None:
        """What the server is given in the sandbox; None for one that runs outside of it, or is reached by a URL."""
        given = self.settings.sandbox
        if given is None:
            given = self.origin not in (SETTINGS, ADDED)
        if self.settings.command is None or given is False:
            return None
        return ServerSandbox() if given is True else given

    def home(self, data_dir: Path) -> Path:
        """The folder of its own that the server has in the sandbox; another for a stranger of the same name."""
        digest = hashlib.sha256(f"{self.origin}\0{self.name}".encode()).hexdigest()[:12]
        return data_dir / "servers" / f"{re.sub('[^A-Za-z0-9_-]', '_', self.name)[:64]}-{digest}"

    def confinement(self, environment: Mapping[str, str], settings: Settings) -> Confinement | None:
        """What the server is given in the sandbox, its variables resolved."""
        if (given := self.sandbox) is None:
            return None
        return Confinement(
            home=self.home(settings.data_dir),
            data_dir=settings.data_dir,
            settings=settings.sandbox,
            paths=tuple(resolve_variables(path, environment) for path in given.paths),
            network=tuple(given.network),
            allow_private=settings.http.allow_private,
            toolset=self.terms.home,
        )

    def endpoint(self, environment: Mapping[str, str] = os.environ) -> Endpoint:
        """Where the server is, its variables resolved; refused when one is not set."""

        def resolved(text: str, field: str = "") -> str:
            return resolve_variables(text, environment, field)

        said = self.settings
        if said.url is not None:
            headers = {name: resolved(value, name) for name, value in said.headers.items()}
            # `http` is what clients' own settings say for either: such a server may be of the old kind.
            transport = said.type if said.type in ("sse", "streamable-http") else "auto"
            return HttpEndpoint(resolved(said.url), headers, transport)
        assert said.command is not None  # noqa: S101 - the settings have one of the two
        return StdioEndpoint(
            command=resolved(said.command),
            args=tuple(map(resolved, said.args)),
            env={name: resolved(value, name) for name, value in said.env.items()},
            cwd=self._directory(resolved(said.cwd) if said.cwd is not None else None),
        )

    def _directory(self, said: str | None) -> str | None:
        """Where a program starts; a toolset's starts in the toolset, whatever place in it is said."""
        return said if self.terms.home is None else str(self.terms.home / (said or ""))
