"""Settings of upstream servers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from ..tools import Permission
from .section import Section


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


class UpstreamSettings(Section):
    """One upstream server, in Claude Desktop's shape, with Toolgate's own keys beside it.

    `trusted` believes the server's annotations about what its tools do. `sharing` says who shares one
    connection to a server that may keep state. `pinning` says whether its first words are believed;
    with `off` all its later ones are too.
    """

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
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
    pinning: Literal["trust", "hold", "off"] = "trust"
    tools: ToolFilter = ToolFilter()
    overrides: dict[str, ToolOverrideSettings] = {}

    @model_validator(mode="after")
    def _is_started_or_reached(self) -> UpstreamSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server has either a 'command' to start or a 'url' to reach")
        return self
