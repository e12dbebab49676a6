"""Settings of upstream servers."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from gateway.config.section import Section
from gateway.tools import Permission

# YAML reads `off` as False when nobody quotes it.
_UNQUOTED = BeforeValidator(lambda said: "off" if said is False else said)

_OR_OFF = BeforeValidator(lambda said: {"over": None} if said in (False, "off") else said)

_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


class ToolFilter(Section):
    allow: list[str] = []
    deny: list[str] = []


class ToolOverrideSettings(Section):
    """What you change about one tool of an upstream, by the server's own name for it."""

    name: str | None = None
    description: str | None = None
    requires_confirmation: bool | None = None
    category: str | None = None
    renderer: str | None = None
    renderer_config: dict[str, Any] | None = None
    enabled: bool | None = None


class LargeResultSettings(Section):
    """From how many bytes on a result is kept as a file, None for never. By default that is just below the 1 MiB at
    which clients begin to refuse one: nothing changes that would have arrived."""

    over: int | None = Field(default=1023 * 1024, ge=32 * 1024)


class OAuthSettings(Section):
    """How to sign in to a server that wants it, where what it says of itself does not suffice. `client_id` is who we
    are to its authorization server, if we were registered by hand; `client_metadata_url` is a document that says so.
    `issuer` is the only authorization server that will do: without it the server names one, which then gets the
    secret. With the grant `client_credentials` the gateway signs in by itself."""

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    client_id: str | None = Field(default=None, min_length=1)
    client_secret: str | None = None
    issuer: str | None = Field(default=None, pattern=r"^https?://[^\s?#]+$")
    scopes: list[Annotated[str, Field(pattern=r"^[!#-\[\]-~]+$")]] | None = None
    client_metadata_url: str | None = Field(default=None, pattern=r"^https://[^/\s]+/[^\s#]+$")

    @model_validator(mode="after")
    def _says_whom_it_means(self) -> OAuthSettings:
        if self.client_secret is not None and not _REFERENCE.fullmatch(self.client_secret):
            raise ValueError("'client_secret' is a secret; put it into the environment and write ${VARIABLE} here")
        if self.client_secret is not None and self.client_id is None:
            raise ValueError("a 'client_secret' belongs to a 'client_id'")
        if self.grant == "client_credentials" and self.client_secret is None:
            raise ValueError("the grant 'client_credentials' needs a 'client_id' and a 'client_secret'")
        return self


class ServerSandbox(Section):
    """What a server in the sandbox is given beside its own program: `paths`, read-only unless one ends in `:rw`, and
    the hosts of `network`, which it reaches by HTTP through a proxy."""

    paths: list[Annotated[str, Field(min_length=1, max_length=4096)]] = Field(default=[], max_length=100)
    network: list[Annotated[str, Field(min_length=1, max_length=300)]] = Field(default=[], max_length=100)


# Without a discriminator, a fault in one of the two would be reported as a fault of both.
SwitchOrRights = Annotated[
    Annotated[bool, Tag("<switch>")] | Annotated[ServerSandbox, Tag("<rights>")],
    Discriminator(lambda value: "<switch>" if isinstance(value, bool) else "<rights>"),
]


class UpstreamSettings(Section):
    """One upstream server, in Claude Desktop's shape, with Toolgate's own keys beside it.

    `trusted` believes the server's annotations about what its tools do. `sharing` says who shares one
    connection to a server that may keep state. `pinning` says whether its first words are believed;
    with `off` all its later ones are too. `large_results` says which results are kept as files in the
    chat's workspace; with `off` none is. `sandbox` says whether a command runs in the sandbox and what it
    is given there; None leaves that to where the server was set up.
    """

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    oauth: OAuthSettings | None = None
    type: Literal["stdio", "sse", "http", "streamable-http"] | None = None
    prefix: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{0,32}$")
    enabled: bool = True
    requires_confirmation: bool | None = None
    category: str = "upstream"
    permission: Permission | None = None
    trusted: bool = False
    timeout: float | None = Field(default=None, gt=0)
    lazy: bool = True
    sharing: Literal["principal", "chat", "all"] = "principal"
    pinning: Annotated[Literal["trust", "hold", "off"], _UNQUOTED] = "trust"
    large_results: Annotated[LargeResultSettings, _OR_OFF] = LargeResultSettings()
    sandbox: SwitchOrRights | None = None
    tools: ToolFilter = ToolFilter()
    overrides: dict[str, ToolOverrideSettings] = {}

    @model_validator(mode="after")
    def _is_started_or_reached(self) -> UpstreamSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server has either a 'command' to start or a 'url' to reach")
        if self.oauth is not None and self.url is None:
            raise ValueError("'oauth' is for a server with a 'url'")
        if self.sandbox is not None and self.command is None:
            raise ValueError("'sandbox' is for a server with a 'command'; remove it: a 'url' starts no program here")
        return self
