"""The tools that reach the web: none until the settings name hosts or a search provider."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from ...config.web import WebSettings
from ...workspace import Workspaces
from ...workspace.versions import Versions
from .. import Source


def web_sources(settings: WebSettings, workspaces: Workspaces, versions: Versions) -> Sequence[Source]:
    """The source of the web tools, where the settings let them reach anything; refused when they name what is
    no host."""
    if not settings.allowed_hosts and settings.search is None:
        return ()
    # Loaded only then: most processes start without.
    files = importlib.import_module("gateway.sources.web.outside").Files(workspaces, versions)
    return (importlib.import_module("gateway.sources.web.source").WebSource(settings, files),)
