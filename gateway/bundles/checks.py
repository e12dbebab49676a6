"""What a bundle must be beyond well-formed before it is taken in, and which of its tools may be gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gateway.bundles import spec
from gateway.bundles.archive import Bundle
from gateway.bundles.inspection import has_vanished
from gateway.bundles.kinds import PythonTool
from gateway.db.toolsets import StoredToolset
from gateway.errors import Conflict, Invalid


@dataclass(frozen=True)
class Rules:
    """What is decided elsewhere about a toolset: `renderer` refuses a renderer or its config with `Invalid`."""

    renderer: Callable[[str, Mapping[str, Any]], object]


def check(bundle: Bundle, rules: Rules) -> None:
    """Refuse what can be judged without the bundle's code: its renderers."""
    spec.load(spec.dump(bundle.spec))  # what could not be exported is not taken in
    for index, tool in enumerate(bundle.spec.tools):
        if tool.renderer is not None:
            with _at(bundle, "tools", index, "renderer"):
                rules.renderer(tool.renderer.type, tool.renderer.config)
    for index, override in enumerate(bundle.spec.tool_overrides):
        if override.renderer is not None:
            with _at(bundle, "tool_overrides", index, "renderer_config"):
                rules.renderer(override.renderer, override.renderer_config or {})


def check_names(bundle: Bundle, toolsets: Mapping[str, str], servers: Mapping[str, str]) -> None:
    """Refuse an id under which another toolset (`{id: digest}`) or its server (`{id: toolset}`) already has
    tools: the tools of the two would meet."""
    own = bundle.spec.id
    if servers.get(own, own) != own:
        raise _taken(f"toolset {servers[own]!r} brings a server with the id {own!r}")
    for server in bundle.spec.mcp_servers:
        if servers.get(server.id, own) != own:
            raise _taken(f"toolset {servers[server.id]!r} brings a server with the id {server.id!r} too")
        if server.id in toolsets and server.id != own:
            raise _taken(f"the server {server.id!r} has the id of an installed toolset")


def missing(bundle: Bundle, problems: Mapping[str, str], previous: StoredToolset | None) -> Mapping[str, str]:
    """The tools that are gone, with the reason; refused when one was never there, or is there and broken."""
    known = {row.tool_id for row in previous.tools} if previous else set[str]()
    for index, tool in enumerate(bundle.spec.tools):
        if tool.id not in problems or not isinstance(tool, PythonTool):
            continue
        if bundle.spec.full_id(tool.id) not in known or not has_vanished(tool, bundle):
            raise bundle.refusal(problems[tool.id], "tools", index, "entrypoint")
    return problems


@contextmanager
def _at(bundle: Bundle, *place: str | int) -> Iterator[None]:
    """A refusal in here is about that place of `toolset.yaml`."""
    try:
        yield
    except Invalid as error:
        raise bundle.refusal(error.message, *place) from error


def _taken(reason: str) -> Conflict:
    return Conflict(f"{reason}; uninstall that toolset, or rename one of the two", code="ID_TAKEN")
