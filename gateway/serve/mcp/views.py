"""Views of MCP Apps: the `ui://` resources that show outcomes in a host, and what tools say about them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import anyio.to_thread

from gateway.catalog import Catalog, CatalogEntry
from gateway.errors import GatewayError, NotFound
from gateway.executor import Executor
from gateway.protocol import UI_FLAT_KEY, UI_MIME_TYPE
from gateway.render.interpolate import artifact_path, frame_origins
from gateway.render.renderers import embed
from gateway.serve.mcp.render_resources import ResourceReader, read_artifact
from gateway.serve.mcp.uris import VIEW_ROOT
from gateway.serve.web.inline import read_editor, read_view, view_version
from gateway.tools import Permission, Renderer, Tool

# The `id` of the script element that holds a toolset's page, in the view that shows it.
ARTIFACT_ID = "toolgate-artifact"

# How long a client may cache a view whose URI names its version.
VIEW_SECONDS = 86_400

# Views for all tools; `auto` is that of tools which call others. Other renderers have a view for each tool, with
# its own content security policy.
_SHARED = ("code", "document", "auto", "diff", "table", "image")


# Words in the names of tools that return images.
_IMAGES = frozenset({"chart", "diagram", "image", "photo", "picture", "plot", "screenshot", "thumbnail"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def view_uri(entry: CatalogEntry) -> str | None:
    """Return the URI of the view of a tool's outcomes; None for a tool without a renderer. Hosts cache by URI, so it
    changes with the view."""
    renderer = entry.tool.renderer
    if renderer is None:
        return None
    if renderer.kind in _SHARED:
        return _shared_uri(renderer.kind)
    parts = (view_version(renderer.kind), str(frame_origins(renderer.config)), _stamp_of_artifact(entry.tool, renderer))
    return f"{VIEW_ROOT}{renderer.kind}/{entry.name}?v={hashlib.sha256('|'.join(parts).encode()).hexdigest()[:8]}"


def result_view(tool: Tool) -> str | None:
    """Return the view that fits the results of a tool without a renderer, as far as its declaration tells: `diff` for
    what changes files, `table` for a list of records, `image` for a tool named for one, as no schema declares images.
    The working tools of models are read often, and have none."""
    if tool.renderer is not None or tool.has_own_view or tool.app_only:
        return None
    properties = (tool.output_schema or {}).get("properties", {})
    changes_files = bool(tool.path_arguments or tool.patch_argument) and tool.permission is Permission.READ_WRITE
    if "diff" in properties or changes_files:
        return "diff"
    lists = [schema for schema in properties.values() if isinstance(schema, Mapping) and schema.get("type") == "array"]
    if tool.kind == "builtin":
        return None
    if len(lists) == 1 and _is_record(lists[0].get("items"), tool.output_schema or {}):
        return "table"
    words = {word.lower() for word in _WORD.findall(tool.id.rpartition(":")[2])}
    return "image" if words & _IMAGES and not properties else None


def _is_record(schema: Any, whole: Mapping[str, Any]) -> bool:
    if isinstance(schema, Mapping) and str(schema.get("$ref")).startswith("#/$defs/"):
        schema = whole.get("$defs", {}).get(schema["$ref"].removeprefix("#/$defs/"))
    return isinstance(schema, Mapping) and schema.get("type") == "object" and bool(schema.get("properties"))


def describe_views(tools: Iterable[dict[str, Any]], catalog: Catalog, apps: bool) -> list[dict[str, Any]]:
    """Return tools as listed, each with the URI of its view, under both keys that hosts read. A client that shows views
    (`apps`) also gets who may call each tool; any other gets no tool that is for views alone."""
    servers = frozenset(entry.tool.owner for entry in catalog if entry.tool.has_own_view)
    described = []
    for listed in tools:
        entry = catalog.get(listed["name"])
        if entry is not None and entry.tool.app_only and not apps:
            continue
        meta = dict(listed.get("_meta") or {})
        ui = dict(meta["ui"]) if isinstance(meta.get("ui"), Mapping) else {}
        uri = view_uri(entry) if entry is not None else None
        if uri is None and apps and (kind := "auto" if entry is None else result_view(entry.tool)):
            uri = _shared_uri(kind)
        if uri is not None:
            ui["resourceUri"] = meta[UI_FLAT_KEY] = uri
        # By default every view could call every tool: one that does not say otherwise is for models alone, unless its
        # server has views of its own.
        is_of_views = entry is not None and entry.tool.kind == "mcp" and entry.tool.owner in servers
        if apps and not is_of_views and not isinstance(ui.get("visibility"), list):
            ui["visibility"] = ["model"]
        described.append({**listed, "_meta": {**meta, "ui": ui}} if ui else listed)
    return described


class ViewResources:
    """The views of the tools that a reader may call, as resources."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def list(self, reader: ResourceReader) -> list[dict[str, Any]]:
        """Return one resource for each view."""
        catalog = self._executor.catalog.for_principal(reader.caller.access)
        found: dict[str, dict[str, Any]] = {}
        for entry in catalog:
            uri, renderer = view_uri(entry), entry.tool.renderer
            if uri is not None and renderer is not None and uri not in found:
                name = renderer.kind if renderer.kind in _SHARED else entry.name
                found[uri] = _describe_resource(uri, name, entry.tool.title, renderer)
        shared = {kind for entry in catalog if (kind := result_view(entry.tool))}
        for kind in sorted(shared | ({"auto"} if catalog.lists.mode != "full" else set())):
            uri = _shared_uri(kind)
            found[uri] = _describe_resource(uri, kind, None, Renderer(kind, {}))
        return list(found.values())

    async def read(self, reader: ResourceReader, uri: str) -> dict[str, Any]:
        """Return a view. Any version of its URI gives the newest: a host may have kept an old one."""
        kind, _, name = uri.removeprefix(VIEW_ROOT).partition("?")[0].partition("/")
        if kind == "view" and name in _SHARED:
            text = await anyio.to_thread.run_sync(read_view, name)
            is_current = uri == _shared_uri(name)
            return _view_result(uri, text, _view_meta(Renderer(name, {})), is_current, "public")
        if kind == "editor" and (editor := await anyio.to_thread.run_sync(read_editor)) is not None:
            contents = {"uri": uri, "mimeType": "text/javascript", "text": editor[1]}
            return {"resultType": "complete", "contents": [contents], **_lifetime(uri == editor[0], "public")}
        entry = self._executor.catalog.for_principal(reader.caller.access).get(name)
        renderer = None if entry is None else entry.tool.renderer
        if entry is None or renderer is None or renderer.kind != kind or kind in _SHARED:
            raise NotFound(f"there is no view {uri[:200]!r}; list the tools again for the views there are")
        text = await anyio.to_thread.run_sync(_read_own_view, entry.tool, renderer)
        return _view_result(uri, text, _view_meta(renderer), uri == view_uri(entry), "private")


def _describe_resource(uri: str, name: str, title: str | None, renderer: Renderer) -> dict[str, Any]:
    shown = title if title is not None and renderer.kind not in _SHARED else name
    resource = {"uri": uri, "name": f"view-{name}", "title": f"View of {shown}", "mimeType": UI_MIME_TYPE}
    return {**resource, "_meta": _view_meta(renderer)}


def _shared_uri(name: str) -> str:
    return f"{VIEW_ROOT}view/{name}?v={view_version(name)}"


def _read_own_view(tool: Tool, renderer: Renderer) -> str:
    """Return the view of one tool: with the toolset's page in it, if there is one."""
    text = read_view(renderer.kind)
    if renderer.kind != "html" or tool.home is None:
        return text
    page = read_artifact(tool.home, artifact_path(renderer.config["artifact"])).content.decode("utf-8", "replace")
    return embed(text, ARTIFACT_ID, page)


def _view_meta(renderer: Renderer) -> dict[str, Any]:
    """Return the `_meta` of a view: nothing is loaded from elsewhere but the frames that its renderer names."""
    origins = frame_origins(renderer.config) if renderer.kind == "frame" else []
    return {"ui": {"csp": {"frameDomains": origins} if origins else {}, "prefersBorder": True}}


def _view_result(uri: str, text: str, meta: dict[str, Any], is_current: bool, scope: str) -> dict[str, Any]:
    contents = {"uri": uri, "mimeType": UI_MIME_TYPE, "text": text, "_meta": meta}
    return {"resultType": "complete", "contents": [contents], **_lifetime(is_current, scope)}


def _lifetime(is_current: bool, scope: str) -> dict[str, Any]:
    return {"ttlMs": VIEW_SECONDS * 1000 if is_current else 0, "cacheScope": scope}


def _stamp_of_artifact(tool: Tool, renderer: Renderer) -> str:
    """Return what changes with a toolset's page, which is read again only when its file was written."""
    if renderer.kind != "html" or tool.home is None:
        return ""
    try:
        path = artifact_path(renderer.config["artifact"])
        found = Path(tool.home, path).stat()
        return _digest_artifact(tool.home, path, (found.st_size, found.st_mtime_ns))
    except (OSError, ValueError, GatewayError):
        return ""


@lru_cache(maxsize=1024)
def _digest_artifact(home: Path, path: str, _written: tuple[int, int]) -> str:
    return hashlib.sha256(read_artifact(home, path).content).hexdigest()
