"""The tools that reach the web: none until the settings name hosts or a search provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.calls import Call, Outcome
from gateway.config.settings import WebSettings
from gateway.errors import NotFound
from gateway.sources import Source
from gateway.tools import Permission, Tool
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions

_HOSTS = "nothing of the web is reachable until web.allowed_hosts names hosts ('*' for every public one)"
_SEARCH = "the web is searched once web.search names a provider (searxng, brave, tavily, duckduckgo)"


def web_sources(settings: WebSettings, workspaces: Workspaces, versions: Versions) -> Sequence[Source]:
    """The web tools, where the settings let them reach anything, and the names of the others; refused when the
    settings name what is no host."""
    lacks = {} if settings.allowed_hosts else {"web_fetch": _HOSTS, "web_download": _HOSTS}
    if settings.search is None:
        lacks["web_search"] = _SEARCH
    unreached = Unreached(lacks)
    if not settings.allowed_hosts and settings.search is None:
        return (unreached,)
    # Imported only then: most processes start without.
    from gateway.sources.builtin.web.context import Files
    from gateway.sources.builtin.web.source import WebSource

    return (WebSource(settings, Files(workspaces, versions)), unreached)


class Unreached:
    """Tools whose settings are missing: known by name, so that whoever calls one is told what to set."""

    name = "web, not set up"

    def __init__(self, lacks: Mapping[str, str]) -> None:
        self._lacks = lacks

    async def list_tools(self) -> Sequence[Tool]:
        return [
            Tool(name, "", category="web", permission=Permission.READ_ONLY, withheld=lack)
            for name, lack in self._lacks.items()
        ]

    async def call_tool(self, call: Call) -> Outcome:
        raise NotFound(f"{call.name} is not offered", code="UNKNOWN_TOOL")
