"""Resources over MCP: a chat's files, their versions and render plans, listed, read and completed, and upstreams'."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import orjson

from gateway.calls import Call, Caller, ClientInfo, check_chat
from gateway.errors import Forbidden, GatewayError, Invalid, NotFound
from gateway.executor import Executor
from gateway.serve.mcp.render_resources import (
    COMPLETED,
    PLAN,
    RENDER_TEMPLATES,
    VIEW,
    Renders,
    cut,
    denied,
    read_file,
    read_result,
)
from gateway.serve.mcp.uris import (
    SPAN_LIMIT,
    Address,
    FileAddress,
    ManifestAddress,
    RenderAddress,
    file_uri,
    parse,
    path_text,
    template_value,
)
from gateway.tools import LIST_RESOURCES, READ_RESOURCE, Hides
from gateway.workspace.openat import Parts
from gateway.workspace.os_errors import show_path
from gateway.workspace.paths import Root
from gateway.workspace.tree import Tree, changes, diff, encode, locate
from gateway.workspace.versions import Versions
from gateway.workspace.walk import Entry, Walk, modified_at

# Files on one page of `resources/list`.
PAGE = 500

# Directories whose files are not listed; by its URI each of them is read like any other.
PASSED_OVER = frozenset({".git", "node_modules", "__pycache__"})

# How long a client may keep what it read of a version, which never changes.
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
    ".ts": "text/x-typescript",  # to some tables it is a video
    ".tsx": "text/x-typescript",
    ".webp": "image/webp",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
_KNOWN = mimetypes.MimeTypes()  # the same on every machine: it reads no table of the system
_PACKED = {"gzip": "application/gzip", "bzip2": "application/x-bzip2", "xz": "application/x-xz"}


@dataclass(frozen=True)
class Reader:
    """Who asks, and the chat they stand in."""

    chat: str
    caller: Caller

    @property
    def principal(self) -> str:
        return self.caller.principal

    def call(self, method: str, chat: str, arguments: Mapping[str, Any], confirmed: bool = False) -> Call:
        """A request as the call it is checked and recorded as."""
        return Call(name=method, arguments=arguments, chat=chat, caller=self.caller, confirmed=confirmed)


class Resources:
    """Every verb refuses with a `GatewayError`, and shows nobody a chat that is someone else's.

    A file is read behind the extensions of the executor, as if `read_file` were called, and a list or a version as if
    `list_directory` were; in a chat nobody has used there is nothing to read, and looking does not make one.
    """

    def __init__(self, executor: Executor, versions: Versions, renders: Renders) -> None:
        self._executor = executor
        self._hides = executor.hides(READ_RESOURCE)
        self._versions = versions
        self._renders = renders

    async def page(self, reader: Reader, cursor: str | None) -> dict[str, Any]:
        """The files after the one the cursor names, so that a change elsewhere shifts no page; after
        the last of them the latest render plans."""
        after = _after(cursor)
        page: dict[str, Any] = {"resultType": "complete", "resources": [], "ttlMs": 0, "cacheScope": "private"}
        if not await self._versions.may_read(reader.chat, reader.principal):
            return page
        call = reader.call("resources/list", reader.chat, {}, confirmed=True)
        work = partial(self._versions.in_thread, _first_files, self._versions, reader.chat, after, self._refuses)
        with suppress(Forbidden):  # who may not list files still has render plans
            page |= await self._executor.request(call, LIST_RESOURCES, work)
        if "nextCursor" not in page:
            page["resources"] = [*page["resources"], *await self._renders.latest(reader.chat)]
        return page

    def templates(self) -> list[dict[str, Any]]:
        """How addresses are written, without those that no rule lets anyone read."""
        refused = self._executor.refuses(READ_RESOURCE, {})
        return [each for each in TEMPLATES if not (refused and each["uriTemplate"] in (FILE, VERSION))]

    def _refuses(self, path: str) -> bool:
        return self._executor.refuses(READ_RESOURCE, {"path": path})

    async def read(self, reader: Reader, uri: str) -> dict[str, Any]:
        address = parse(uri)
        if isinstance(address, RenderAddress):
            return await self._renders.read(reader.principal, uri, address)
        if isinstance(address, ManifestAddress):
            return await self._manifest(reader, uri, address)
        if not await self._is_used(address.chat, reader.principal):
            raise NotFound(f"chat {address.chat!r} has no files yet", code="FILE_NOT_FOUND")
        call = reader.call("resources/read", address.chat, _arguments(address))
        return await self._executor.request(call, READ_RESOURCE, partial(self._file, uri, address))

    async def followed(self, reader: Reader, uri: str) -> Address:
        """What a subscription to `uri` is about. It need not be there yet."""
        address = parse(uri)
        if isinstance(address, FileAddress):
            if await self._is_used(address.chat, reader.principal):
                call = reader.call("resources/subscribe", address.chat, _arguments(address))
                await self._executor.request(call, READ_RESOURCE, partial(asyncio.sleep, 0))  # nothing to do yet
            elif self._hides(address.path):
                raise denied(address.path)
        return address

    async def followable(self, reader: Reader, uris: Iterable[str]) -> dict[str, Address]:
        """Those of the URIs the reader may subscribe to."""
        found: dict[str, Address] = {}
        for uri in uris:
            with suppress(GatewayError):
                found[uri] = await self.followed(reader, uri)
        return found

    async def _is_used(self, chat: str, principal: str) -> bool:
        """Return whether anybody has used a chat; someone else's is refused by the executor, which records that."""
        try:
            return await self._versions.may_read(chat, principal)
        except Forbidden:
            return True

    async def _file(self, uri: str, address: FileAddress) -> dict[str, Any]:
        seconds = 0 if address.manifest is None else VERSION_SECONDS
        return read_result(uri, media_type(address.path), await read_file(self._versions, address), seconds)

    async def _manifest(self, reader: Reader, uri: str, address: ManifestAddress) -> dict[str, Any]:
        row = await self._versions.manifests.find(address.id)
        mine = False
        with suppress(Forbidden):  # that it exists is nobody else's business
            mine = await self._versions.may_read(row.chat_id, reader.principal)
        if not mine:
            raise NotFound(f"there is no manifest {address.id!r}", code="MANIFEST_NOT_FOUND")
        about = {
            "id": row.id,
            "chat": row.chat_id,
            "parent": row.parent_id,
            "source": row.source,
            "source_ref": row.source_ref,
            "created_at": row.created_at,
        }

        async def read() -> dict[str, Any]:
            new = await self._versions.tree(row.chat_id, row.id)
            old = await self._versions.tree(row.chat_id, row.parent_id)
            content = await self._versions.in_thread(_manifest_json, about, old, new, self._hides)
            piece = cut(content, f"manifest {row.id}", address.span)
            return read_result(uri, "application/json", piece, VERSION_SECONDS)

        call = reader.call("resources/read", row.chat_id, {"manifest": row.id}, confirmed=True)
        return await self._executor.request(call, LIST_RESOURCES, read)


def walk_files(root: Root, enter: Callable[[Entry], bool]) -> Walk:
    """The walk on which the listed files are, in the order of their paths."""
    return root.walk(enter=lambda entry: entry.name not in PASSED_OVER and enter(entry))


def path_of(entry: Entry) -> str:
    """The path as trees spell it."""
    return encode("/".join(entry.parts))


def media_type(path: str) -> str | None:
    """What the name says; None when it says nothing."""
    _, dot, extension = path.rpartition(".")
    if known := _TYPES.get(f"{dot}{extension.lower()}"):
        return known
    guessed, packed = _KNOWN.guess_type(f"name{dot}{extension}")
    return _PACKED.get(packed, "application/octet-stream") if packed else guessed


def _arguments(address: FileAddress) -> dict[str, Any]:
    """The requested file as the arguments of a call."""
    arguments: dict[str, Any] = {"path": address.path}
    if address.manifest is not None:
        arguments["manifest"] = address.manifest
    return arguments if address.span is None else arguments | asdict(address.span)


def _after(cursor: str | None) -> Parts:
    if cursor is None:
        return ()
    try:
        return locate(cursor)
    except Invalid:
        raise Invalid("the cursor is none of ours; list from the beginning") from None


def _first_files(versions: Versions, chat: str, after: Parts, hides: Callable[[str], object]) -> dict[str, Any]:
    """A page, without entering directories that lie before it."""
    with versions.root(chat) as root, walk_files(root, lambda entry: entry.parts >= after[: len(entry.parts)]) as walk:
        later = (entry for entry in walk if entry.kind == "file" and entry.parts > after and not hides(path_of(entry)))
        found = list(islice(later, PAGE + 1))
    page: dict[str, Any] = {"resources": [_resource(chat, entry) for entry in found[:PAGE]]}
    return page if len(found) <= PAGE else page | {"nextCursor": path_of(found[PAGE - 1])}


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


def _manifest_json(about: dict[str, Any], old: Tree, new: Tree, hides: Hides) -> bytes:
    # The digest of a short file lets its content be guessed.
    files = {path: digest for path, digest in new.files.items() if not hides(path)}
    if len(files) < len(new.files):
        about = about | {"left_out": len(new.files) - len(files)}
    what = {"files": files, "meta": dict(new.meta), "changes": asdict(changes(old, diff(old, new)))}
    return orjson.dumps({**about, **what})


# What the protocol allows in one answer.
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
    def __init__(self, executor: Executor, versions: Versions, renders: Renders) -> None:
        self._executor = executor
        self._versions = versions
        self._renders = renders

    async def complete(
        self, reader: Reader, template: str, variable: str, begun: str, given: Mapping[str, str]
    ) -> dict[str, Any]:
        """Values for a variable that begin as `begun` does; `given` are the variables chosen already."""
        if variable not in _VARIABLES.get(template, ()):
            known = "; ".join(f"{', '.join(names)} of {known}" for known, names in _VARIABLES.items())
            raise Invalid(f"there is nothing to complete {variable!r} of {template!r} with; there is {known}")
        chat = check_chat(given.get("chat") or reader.chat)
        if variable == "chat":
            return _answer([reader.chat] if reader.chat.startswith(begun) else [], whole=True)
        if not await self._versions.may_read(chat, reader.principal):
            return _answer([], whole=True)
        if variable == "path":
            # What was begun is not among the arguments: a rule that refuses it leaves it out, and refuses nothing else.
            call = reader.call("completion/complete", chat, {"argument": variable}, confirmed=True)
            hides = self._executor.hides(READ_RESOURCE)
            work = partial(self._versions.in_thread, _paths, self._versions, chat, begun, hides)
            return await self._executor.request(call, LIST_RESOURCES, work)
        if variable == "call_id":
            ids = await self._renders.latest_ids(chat)
            return _answer([call_id for call_id in ids if call_id.startswith(begun)], whole=len(ids) < COMPLETED)
        return await self._manifests(chat, begun)

    async def _manifests(self, chat: str, begun: str) -> dict[str, Any]:
        """The latest first; only the last thousand are looked at."""
        rows = await self._versions.manifests.history(chat, limit=_HISTORY)
        return _answer([row.id for row in rows if row.id.startswith(begun)], whole=len(rows) < _HISTORY)


def _paths(versions: Versions, chat: str, begun: str, hides: Hides) -> dict[str, Any]:
    beginnings = {begun, path_text(begun)}  # typed by a person, or taken from an earlier answer

    def leads_on(directory: Entry) -> bool:
        inside = f"{path_of(directory)}/"
        return any(inside.startswith(beginning) or beginning.startswith(inside) for beginning in beginnings)

    with versions.root(chat) as root, walk_files(root, leads_on) as walk:
        paths = [path_of(entry) for entry in walk if entry.kind == "file"]
    found = [template_value(path) for path in paths if any(map(path.startswith, beginnings)) and not hides(path)]
    return _answer(found, whole=not walk.truncated)


def _answer(values: list[str], whole: bool) -> dict[str, Any]:
    completion: dict[str, Any] = {"values": values[:LIMIT], "hasMore": len(values) > LIMIT or not whole}
    if whole:
        completion["total"] = len(values)
    return {"resultType": "complete", "completion": completion}


class Relay(Protocol):
    """Prompts, resources and completions of upstreams under public names; each verb refuses with a `GatewayError`."""

    def prompts(self) -> list[dict[str, Any]]: ...

    def templates(self) -> list[dict[str, Any]]: ...

    def instructions(self) -> str | None: ...

    async def resources(self, caller: Caller, chat: str) -> list[dict[str, Any]]: ...

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any], caller: Caller, chat: str, client: ClientInfo
    ) -> dict[str, Any]: ...

    def owns(self, uri: str) -> bool: ...

    async def read(self, uri: str, caller: Caller, chat: str, client: ClientInfo) -> dict[str, Any]: ...

    async def follow(self, uri: str, told: Callable[[], None], caller: Caller, chat: str) -> Callable[[], None]: ...

    async def complete(
        self, params: Mapping[str, Any], caller: Caller, chat: str, client: ClientInfo
    ) -> dict[str, Any] | None: ...


class NoRelay:
    """For a gateway without upstreams."""

    def prompts(self) -> list[dict[str, Any]]:
        return []

    def templates(self) -> list[dict[str, Any]]:
        return []

    def instructions(self) -> str | None:
        return None

    async def resources(self, caller: Caller, chat: str) -> list[dict[str, Any]]:
        return []

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any], caller: Caller, chat: str, client: ClientInfo
    ) -> dict[str, Any]:
        raise NotFound(f"no prompt is named {name!r}", code="UNKNOWN_PROMPT")

    def owns(self, uri: str) -> bool:
        return False

    async def read(self, uri: str, caller: Caller, chat: str, client: ClientInfo) -> dict[str, Any]:
        raise NotFound(f"no upstream has the resource {uri[:200]!r}", code="RESOURCE_NOT_FOUND")

    async def follow(self, uri: str, told: Callable[[], None], caller: Caller, chat: str) -> Callable[[], None]:
        raise NotFound(f"no upstream has the resource {uri[:200]!r}", code="RESOURCE_NOT_FOUND")

    async def complete(
        self, params: Mapping[str, Any], caller: Caller, chat: str, client: ClientInfo
    ) -> dict[str, Any] | None:
        return None
