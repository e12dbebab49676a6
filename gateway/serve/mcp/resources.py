"""Resources over MCP: a chat's files, their versions and render plans, listed, read and completed, and upstreams'."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any, Protocol

import orjson

from gateway.calls import Caller, ClientInfo, check_chat
from gateway.errors import Forbidden, GatewayError, Invalid, NotFound
from gateway.executor import Executor
from gateway.serve.mcp.render_resources import (
    COMPLETED,
    PLAN,
    RENDER_TEMPLATES,
    VIEW,
    RenderResources,
    ResourceReader,
    path_denied,
    read_file,
    read_result,
    slice_content,
)
from gateway.serve.mcp.results import unknown_cursor
from gateway.serve.mcp.uris import (
    SPAN_LIMIT,
    VIEW_ROOT,
    Address,
    FileAddress,
    ManifestAddress,
    RenderAddress,
    file_uri,
    parse,
    path_text,
    template_value,
)
from gateway.serve.mcp.views import ViewResources
from gateway.tools import LIST_RESOURCES, READ_RENDER, READ_RESOURCE, Hides
from gateway.workspace.openat import Parts
from gateway.workspace.os_errors import show_path
from gateway.workspace.paths import Root
from gateway.workspace.tree import Tree, changes, diff, encode, locate
from gateway.workspace.versions import Versions
from gateway.workspace.walk import Entry, Walk, modified_at

# Files on one page of `resources/list`.
PAGE = 500

# The beginning of a cursor, which continues with a path.
_AFTER = "after:"

# Directories whose files are not listed; each of them can still be read by its URI.
UNLISTED = frozenset({".git", "node_modules", "__pycache__"})

# How long a client may cache a version, which never changes.
VERSION_SECONDS = 3600

_RANGES = f"A file over {SPAN_LIMIT} bytes is read in ranges: add ?offset=0&length={SPAN_LIMIT}, counted in bytes."
FILE, VERSION, MANIFEST = "workspace://{chat}/{+path}", "workspace://{chat}/{+path}{?manifest}", "manifest://{id}"
TEMPLATES: list[dict[str, Any]] = [
    {
        "uriTemplate": FILE,
        "name": "file",
        "title": "File of a chat",
        "description": f"The content of a file of the chat's workspace as it is now. {_RANGES}",
    },
    {
        "uriTemplate": VERSION,
        "name": "file-version",
        "title": "Earlier version of a file",
        "description": "The content of a file as it was in a manifest, named by its id or a unique beginning of it. "
        f"{_RANGES.replace('?offset', '&offset')}",
    },
    {
        "uriTemplate": MANIFEST,
        "name": "manifest",
        "title": "Version of a chat's files",
        "description": "Every file of a version with its SHA-256, where the version comes from, and what it changed. "
        "Files that the operator's rules keep from being read are counted in left_out.",
        "mimeType": "application/json",
    },
    *RENDER_TEMPLATES,
]

_TYPES = {
    ".js": "text/javascript",
    ".jsonl": "application/jsonl",
    ".jsx": "text/javascript",
    ".log": "text/plain",
    ".md": "text/markdown",
    ".mjs": "text/javascript",
    ".toml": "application/toml",
    ".ts": "text/x-typescript",  # a video in some tables
    ".tsx": "text/x-typescript",
    ".webp": "image/webp",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
_MIME_TYPES = mimetypes.MimeTypes()  # without the system's tables, so that it is the same on every machine
_COMPRESSED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


class Resources:
    """A chat's files, versions and render plans. Methods raise a `GatewayError`, also for somebody else's chat.

    Requests pass the extensions of the executor: reading a file like a call of `read_file`, a list or a version like
    `list_directory`; for a caller that may not call these, there are no files. A chat that nobody has used has no
    files, and reading does not create it.
    """

    def __init__(self, executor: Executor, versions: Versions, renders: RenderResources) -> None:
        self._executor = executor
        self._hides = executor.hides(READ_RESOURCE)
        self._versions = versions
        self._renders = renders
        self.views = ViewResources(executor)

    async def page(self, reader: ResourceReader, cursor: str | None) -> dict[str, Any]:
        """Return the files after the one named by the cursor, so that other changes do not shift pages; after the last
        file the latest render plans."""
        after = _after(cursor)
        page: dict[str, Any] = {"resultType": "complete", "resources": [], "ttlMs": 0, "cacheScope": "private"}
        if not await self._versions.may_read(reader.chat, reader.principal):
            return page
        call = reader.call("resources/list", reader.chat, {}, confirmed=True)
        work = partial(self._versions.in_thread, _list_files, self._versions, reader.chat, after, self._refuses)
        if reader.allows(LIST_RESOURCES):
            with suppress(Forbidden):  # render plans are listed also where files may not be
                page |= await self._executor.request(call, LIST_RESOURCES, work)
        if "nextCursor" not in page:
            page["resources"] = [*page["resources"], *await self._renders.latest(reader)]
        return page

    def templates(self, reader: ResourceReader) -> list[dict[str, Any]]:
        """Return the URI templates, without those of files if the rules deny reading any."""
        refused = [] if reader.allows(LIST_RESOURCES) else [MANIFEST]
        if not reader.allows(READ_RESOURCE) or self._executor.refuses(READ_RESOURCE, {}):
            refused += [FILE, VERSION]
        return [template for template in TEMPLATES if template["uriTemplate"] not in refused]

    def _refuses(self, path: str) -> bool:
        return self._executor.refuses(READ_RESOURCE, {"path": path})

    async def read(self, reader: ResourceReader, uri: str) -> dict[str, Any]:
        if uri.startswith(VIEW_ROOT):
            return await self.views.read(reader, uri)
        address = parse(uri)
        if isinstance(address, RenderAddress):
            return await self._renders.read(reader, uri, address)
        if isinstance(address, ManifestAddress):
            return await self._request_manifest(reader, "resources/read", uri, address)
        if not reader.allows(READ_RESOURCE) or not await self._is_used(address.chat, reader.principal):
            raise _no_files(address.chat)
        call = reader.call("resources/read", address.chat, _arguments(address))
        return await self._executor.request(call, READ_RESOURCE, partial(self._read_file, uri, address))

    async def resolve_subscription(self, reader: ResourceReader, uri: str) -> Address:
        """Return the address of a resource that the reader may subscribe to, which is checked and recorded like
        reading it. A file need not exist yet."""
        address, method = parse(uri), "resources/subscribe"
        if isinstance(address, RenderAddress):
            await self._renders.request(reader, method, address, lambda _: asyncio.sleep(0))
        elif isinstance(address, ManifestAddress):
            await self._request_manifest(reader, method, uri, address)
        elif not reader.allows(READ_RESOURCE):
            raise _no_files(address.chat)
        elif await self._is_used(address.chat, reader.principal):
            call = reader.call(method, address.chat, _arguments(address))
            await self._executor.request(call, READ_RESOURCE, partial(asyncio.sleep, 0))
        elif self._hides(address.path):
            raise path_denied(address.path)
        return address

    async def find_subscribable(self, reader: ResourceReader, uris: Iterable[str]) -> dict[str, Address]:
        """Return the URIs that the reader may subscribe to, with their addresses."""
        addresses: dict[str, Address] = {}
        for uri in uris:
            with suppress(GatewayError):
                addresses[uri] = await self.resolve_subscription(reader, uri)
        return addresses

    async def _is_used(self, chat: str, principal: str) -> bool:
        """Return whether a chat has been used; the executor refuses somebody else's, and records that."""
        try:
            return await self._versions.may_read(chat, principal)
        except Forbidden:
            return True

    async def _read_file(self, uri: str, address: FileAddress) -> dict[str, Any]:
        seconds = 0 if address.manifest is None else VERSION_SECONDS
        return read_result(uri, media_type(address.path), await read_file(self._versions, address), seconds)

    async def _request_manifest(
        self, reader: ResourceReader, method: str, uri: str, address: ManifestAddress
    ) -> dict[str, Any]:
        """Read a manifest, or only check and record a request of another method."""
        row = await self._versions.manifests.find(address.id)
        is_own = False
        with suppress(Forbidden):  # others must not learn that it exists
            is_own = reader.allows(LIST_RESOURCES) and await self._versions.may_read(row.chat_id, reader.principal)
        if not is_own:
            raise NotFound(f"there is no manifest {address.id!r}", code="MANIFEST_NOT_FOUND")
        metadata = {
            "id": row.id,
            "chat": row.chat_id,
            "parent": row.parent_id,
            "source": row.source,
            "source_ref": row.source_ref,
            "created_at": row.created_at,
        }

        async def read() -> dict[str, Any]:
            if method != "resources/read":
                return {}
            new = await self._versions.tree(row.chat_id, row.id)
            old = await self._versions.tree(row.chat_id, row.parent_id)
            content = await self._versions.in_thread(_manifest_json, metadata, old, new, self._hides)
            piece = slice_content(content, f"manifest {row.id}", address.span)
            return read_result(uri, "application/json", piece, VERSION_SECONDS)

        call = reader.call(method, row.chat_id, {"manifest": row.id}, confirmed=True)
        return await self._executor.request(call, LIST_RESOURCES, read)


def _no_files(chat: str) -> NotFound:
    return NotFound(f"chat {chat!r} has no files yet", code="FILE_NOT_FOUND")


def walk_files(root: Root, enter: Callable[[Entry], bool]) -> Walk:
    """Return a walk over the files that are listed, in the order of their paths."""
    return root.walk(enter=lambda entry: entry.name not in UNLISTED and enter(entry))


def path_of(entry: Entry) -> str:
    """Return the path as trees spell it."""
    return encode("/".join(entry.parts))


def media_type(path: str) -> str | None:
    """Return the media type by the file's name, None if it is unknown."""
    _, dot, extension = path.rpartition(".")
    if known := _TYPES.get(f"{dot}{extension.lower()}"):
        return known
    guessed, compression = _MIME_TYPES.guess_type(f"name{dot}{extension}")
    return _COMPRESSED.get(compression, "application/octet-stream") if compression else guessed


def _arguments(address: FileAddress) -> dict[str, Any]:
    """Return the requested file as the arguments of a call."""
    arguments: dict[str, Any] = {"path": address.path}
    if address.manifest is not None:
        arguments["manifest"] = address.manifest
    return arguments if address.span is None else arguments | asdict(address.span)


def _after(cursor: str | None) -> Parts:
    if not cursor:
        return ()
    try:
        if cursor.startswith(_AFTER):
            return locate(cursor.removeprefix(_AFTER))
    except Invalid:
        pass
    raise unknown_cursor()


def _list_files(versions: Versions, chat: str, after: Parts, hides: Callable[[str], object]) -> dict[str, Any]:
    """Return a page of files, without entering directories before it."""
    with versions.root(chat) as root, walk_files(root, lambda entry: entry.parts >= after[: len(entry.parts)]) as walk:
        later = (entry for entry in walk if entry.kind == "file" and entry.parts > after and not hides(path_of(entry)))
        found = list(islice(later, PAGE + 1))
    page: dict[str, Any] = {"resources": [_resource(chat, entry) for entry in found[:PAGE]]}
    return page if len(found) <= PAGE else page | {"nextCursor": f"{_AFTER}{path_of(found[PAGE - 1])}"}


def _resource(chat: str, entry: Entry) -> dict[str, Any]:
    resource: dict[str, Any] = {
        "uri": file_uri(chat, path_of(entry)),
        "name": show_path(entry.parts[-1:]),
        "title": entry.path,
        "size": entry.stat.st_size,
        "annotations": {"lastModified": modified_at(entry.stat)},
    }
    if known := media_type(entry.name):
        resource["mimeType"] = known
    return resource


def _manifest_json(metadata: dict[str, Any], old: Tree, new: Tree, hides: Hides) -> bytes:
    # The content of a short file can be guessed from its digest.
    files = {path: digest for path, digest in new.files.items() if not hides(path)}
    if len(files) < len(new.files):
        metadata = metadata | {"left_out": len(new.files) - len(files)}
    content = {"files": files, "meta": dict(new.meta), "changes": asdict(changes(old, diff(old, new)))}
    return orjson.dumps({**metadata, **content})


# The protocol's maximum of values in one completion.
LIMIT = 100

_HISTORY = 1000
_VARIABLES = {
    FILE: ("chat", "path"),
    VERSION: ("chat", "path", "manifest"),
    MANIFEST: ("id",),
    PLAN: ("call_id",),
    VIEW: ("call_id",),
}


class Completions:
    """Values for the variables of resource templates."""

    def __init__(self, executor: Executor, versions: Versions, renders: RenderResources) -> None:
        self._executor = executor
        self._versions = versions
        self._renders = renders

    async def complete(
        self, reader: ResourceReader, template: str, variable: str, start: str, given: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return values for a variable that begin with `start`; `given` are the variables chosen already."""
        if variable not in _VARIABLES.get(template, ()):
            known = "; ".join(f"{', '.join(names)} of {known}" for known, names in _VARIABLES.items())
            raise Invalid(f"{variable!r} of {template!r} cannot be completed; these can: {known}")
        chat = check_chat(given.get("chat") or reader.chat)
        if variable == "chat":
            return _completion([reader.chat] if reader.chat.startswith(start) else [], True)
        is_hidden = variable != "call_id" and not reader.allows(READ_RESOURCE if variable == "path" else LIST_RESOURCES)
        if is_hidden or not await self._versions.may_read(chat, reader.principal):
            return _completion([], True)
        if variable == "path":
            hides = self._executor.hides(READ_RESOURCE)
            work = partial(self._versions.in_thread, _complete_path, self._versions, chat, start, hides)
        elif variable == "call_id":
            work = partial(self._complete_call_id, reader, chat, start)
        else:
            work = partial(self._complete_manifest, chat, start)
        # `start` is not among the arguments: a rule hides the paths it denies, and does not refuse the completion.
        call = reader.call("completion/complete", chat, {"argument": variable}, confirmed=True)
        return await self._executor.request(call, READ_RENDER if variable == "call_id" else LIST_RESOURCES, work)

    async def _complete_call_id(self, reader: ResourceReader, chat: str, start: str) -> dict[str, Any]:
        ids = await self._renders.latest_ids(reader, chat)
        return _completion([call_id for call_id in ids if call_id.startswith(start)], len(ids) < COMPLETED)

    async def _complete_manifest(self, chat: str, start: str) -> dict[str, Any]:
        """Complete the id of one of the latest thousand manifests, the latest first."""
        rows = await self._versions.manifests.history(chat, limit=_HISTORY)
        return _completion([row.id for row in rows if row.id.startswith(start)], len(rows) < _HISTORY)


def _complete_path(versions: Versions, chat: str, start: str, hides: Hides) -> dict[str, Any]:
    beginnings = {start, path_text(start)}  # typed by a person, or taken from an earlier completion

    def may_contain(directory: Entry) -> bool:
        inside = f"{path_of(directory)}/"
        return any(inside.startswith(beginning) or beginning.startswith(inside) for beginning in beginnings)

    with versions.root(chat) as root, walk_files(root, may_contain) as walk:
        paths = [path_of(entry) for entry in walk if entry.kind == "file"]
    found = [template_value(path) for path in paths if any(map(path.startswith, beginnings)) and not hides(path)]
    return _completion(found, not walk.truncated)


def _completion(values: list[str], is_complete: bool) -> dict[str, Any]:
    completion: dict[str, Any] = {"values": values[:LIMIT], "hasMore": len(values) > LIMIT or not is_complete}
    if is_complete:
        completion["total"] = len(values)
    return {"resultType": "complete", "completion": completion}


class Relay(Protocol):
    """Prompts, resources and completions of upstreams under public names. Methods raise a `GatewayError`."""

    def prompts(self, caller: Caller) -> list[dict[str, Any]]: ...

    def templates(self, caller: Caller) -> list[dict[str, Any]]: ...

    def instructions(self, caller: Caller) -> list[tuple[str, str, str]]: ...

    async def resources(self, caller: Caller, chat: str, client: ClientInfo) -> list[dict[str, Any]]: ...

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any], caller: Caller, chat: str, client: ClientInfo
    ) -> dict[str, Any]: ...

    def owns(self, uri: str, caller: Caller) -> bool: ...

    async def read(self, uri: str, caller: Caller, chat: str, client: ClientInfo) -> dict[str, Any]: ...

    async def follow(
        self, uri: str, on_change: Callable[[], None], caller: Caller, chat: str, /
    ) -> Callable[[], None]: ...

    async def complete(
        self, params: Mapping[str, Any], caller: Caller, chat: str, client: ClientInfo
    ) -> dict[str, Any] | None: ...


class NoRelay:
    """For a gateway without upstreams."""

    def prompts(self, caller: Caller) -> list[dict[str, Any]]:
        return []

    def templates(self, caller: Caller) -> list[dict[str, Any]]:
        return []

    def instructions(self, caller: Caller) -> list[tuple[str, str, str]]:
        return []

    async def resources(self, caller: Caller, chat: str, client: ClientInfo) -> list[dict[str, Any]]:
        return []

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any], caller: Caller, chat: str, client: ClientInfo
    ) -> dict[str, Any]:
        raise NotFound(f"no prompt is named {name!r}", code="UNKNOWN_PROMPT")

    def owns(self, uri: str, caller: Caller) -> bool:
        return False

    async def read(self, uri: str, caller: Caller, chat: str, client: ClientInfo) -> dict[str, Any]:
        raise NotFound(f"no upstream has the resource {uri[:200]!r}", code="RESOURCE_NOT_FOUND")

    async def follow(self, uri: str, on_change: Callable[[], None], caller: Caller, chat: str, /) -> Callable[[], None]:
        raise NotFound(f"no upstream has the resource {uri[:200]!r}", code="RESOURCE_NOT_FOUND")

    async def complete(
        self, params: Mapping[str, Any], caller: Caller, chat: str, client: ClientInfo
    ) -> dict[str, Any] | None:
        return None
