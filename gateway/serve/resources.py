"""A chat's files and their versions as MCP resources: listed, read and completed."""

from __future__ import annotations

import base64
import mimetypes
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, BinaryIO

import orjson

from ..errors import Forbidden, GatewayError, Invalid, NotFound
from ..workspace.beneath import Parts
from ..workspace.entries import Entry, Walk, modified
from ..workspace.paths import Root
from ..workspace.refusals import is_directory, is_link, shown
from ..workspace.tree import LINK, Tree, changes, diff, encode, locate
from ..workspace.versions import Versions
from .uris import SPAN_LIMIT, Address, FileAddress, ManifestAddress, Span, file_uri, parse

PAGE = 500
SIZE = "dev.toolgate/size"
"""In the `_meta` of what was read: how many bytes the whole has, so that a reader of ranges knows the end."""

PASSED_OVER = frozenset({".git", "node_modules", "__pycache__"})
"""Directories whose files are not listed; by its URI each of them is read like any other."""

VERSION_SECONDS = 3600
"""How long a client may keep what it read of a version, which never changes."""

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
        "description": "Every file of a version with its SHA-256, where the version comes from, and what it changed.",
        "mimeType": "application/json",
    },
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
    principal: str


@dataclass(frozen=True)
class Piece:
    """Some bytes of a content that has `size` of them."""

    content: bytes
    size: int


class Resources:
    """Every verb refuses with a `GatewayError`, and shows nobody a chat that is someone else's."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    async def page(self, reader: Reader, cursor: str | None) -> dict[str, Any]:
        """The files after the one the cursor names, so that a change elsewhere shifts no page."""
        after = _after(cursor)
        found: list[Entry] = []
        if await self._versions.may_read(reader.chat, reader.principal):
            found = await self._versions.in_thread(_first_files, self._versions, reader.chat, after)
        listed = [_resource(reader.chat, entry) for entry in found[:PAGE]]
        page: dict[str, Any] = {"resultType": "complete", "resources": listed, "ttlMs": 0, "cacheScope": "private"}
        if len(found) > PAGE:
            page["nextCursor"] = path_of(found[PAGE - 1])
        return page

    async def read(self, reader: Reader, uri: str) -> dict[str, Any]:
        address = parse(uri)
        if isinstance(address, ManifestAddress):
            return _result(uri, "application/json", await self._manifest(address, reader.principal), VERSION_SECONDS)
        if not await self._versions.may_read(address.chat, reader.principal):
            raise NotFound(f"chat {address.chat!r} has no files yet", code="FILE_NOT_FOUND")
        if address.manifest is None:
            piece, seconds = await self._versions.in_thread(_read_now, self._versions, address), 0
        else:
            piece, seconds = await self._read_version(address, address.manifest), VERSION_SECONDS
        return _result(uri, media_type(address.path), piece, seconds)

    async def followed(self, reader: Reader, uri: str) -> Address:
        """What a subscription to `uri` is about. It need not be there yet."""
        address = parse(uri)
        if isinstance(address, FileAddress):
            await self._versions.may_read(address.chat, reader.principal)
        return address

    async def followable(self, reader: Reader, uris: Iterable[str]) -> dict[str, Address]:
        """Those of the URIs the reader may subscribe to."""
        found: dict[str, Address] = {}
        for uri in uris:
            with suppress(GatewayError):
                found[uri] = await self.followed(reader, uri)
        return found

    async def _read_version(self, address: FileAddress, id_or_prefix: str) -> Piece:
        manifest = await self._versions.find(address.chat, id_or_prefix)
        tree = await self._versions.tree(address.chat, manifest.id)
        digest = _digest(tree, address.path, manifest.id)
        content = await self._versions.open_blob(address.chat, digest)
        return await self._versions.in_thread(_read, content, address.path, address.span)

    async def _manifest(self, address: ManifestAddress, principal: str) -> Piece:
        row = await self._versions.manifests.find(address.id)
        mine = False
        with suppress(Forbidden):  # that it exists is nobody else's business
            mine = await self._versions.may_read(row.chat_id, principal)
        if not mine:
            raise NotFound(f"there is no manifest {address.id!r}", code="MANIFEST_NOT_FOUND")
        new = await self._versions.tree(row.chat_id, row.id)
        old = await self._versions.tree(row.chat_id, row.parent_id)
        about = {
            "id": row.id,
            "chat": row.chat_id,
            "parent": row.parent_id,
            "source": row.source,
            "source_ref": row.source_ref,
            "created_at": row.created_at,
        }
        content = await self._versions.in_thread(_manifest_json, about, old, new)
        return _cut(content, f"manifest {row.id}", address.span)


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


def _after(cursor: str | None) -> Parts:
    if cursor is None:
        return ()
    try:
        return locate(cursor)
    except Invalid:
        raise Invalid("the cursor is none of ours; list from the beginning") from None


def _first_files(versions: Versions, chat: str, after: Parts) -> list[Entry]:
    """A page and one more, without entering directories that lie before it."""
    with versions.root(chat) as root, walk_files(root, lambda entry: entry.parts >= after[: len(entry.parts)]) as walk:
        later = (entry for entry in walk if entry.kind == "file" and entry.parts > after)
        return list(islice(later, PAGE + 1))


def _resource(chat: str, entry: Entry) -> dict[str, Any]:
    resource: dict[str, Any] = {
        "uri": file_uri(chat, path_of(entry)),
        "name": shown(entry.parts[-1:]),
        "title": entry.path,
        "size": entry.stat.st_size,
        "annotations": {"lastModified": modified(entry.stat)},
    }
    if known := media_type(entry.name):
        resource["mimeType"] = known
    return resource


def _read_now(versions: Versions, address: FileAddress) -> Piece:
    with versions.root(address.chat) as root:
        return _read(root.open(locate(address.path)), address.path, address.span)


def _read(file: BinaryIO, path: str, span: Span | None) -> Piece:
    with file:
        size = os.fstat(file.fileno()).st_size
        if span is not None:
            # Past the check of a stored content: that would read all of it for every range.
            return Piece(os.pread(file.fileno(), span.length, span.offset), size)
        if size > SPAN_LIMIT:
            raise _too_large(repr(path), size)
        return _cut(file.read(SPAN_LIMIT + 1), repr(path), None)  # it may have grown meanwhile


def _cut(content: bytes, named: str, span: Span | None) -> Piece:
    if span is not None:
        return Piece(content[span.offset : span.offset + span.length], len(content))
    if len(content) > SPAN_LIMIT:
        raise _too_large(named, len(content))
    return Piece(content, len(content))


def _too_large(named: str, size: int) -> Invalid:
    return Invalid(
        f"{named} has {size} bytes, more than the {SPAN_LIMIT} that are read at once; "
        f"read it in ranges: offset=0&length={SPAN_LIMIT} in the query, and on from there",
        code="RESOURCE_TOO_LARGE",
        size=size,
        limit=SPAN_LIMIT,
    )


def _digest(tree: Tree, path: str, manifest: str) -> str:
    if tree.meta.get(path) == LINK:
        raise is_link(repr(path))
    digest = tree.files.get(path)
    if digest is None:
        if path in tree.meta or any(file.startswith(f"{path}/") for file in tree.files):
            raise is_directory(repr(path))
        raise NotFound(f"manifest {manifest} has no file {path!r}", code="FILE_NOT_FOUND")
    return digest


def _manifest_json(about: dict[str, Any], old: Tree, new: Tree) -> bytes:
    what = {"files": dict(new.files), "meta": dict(new.meta), "changes": asdict(changes(old, diff(old, new)))}
    return orjson.dumps({**about, **what})


def _result(uri: str, known_type: str | None, piece: Piece, seconds: int) -> dict[str, Any]:
    contents: dict[str, Any] = {"uri": uri, "_meta": {SIZE: piece.size}}
    text = _text(piece.content)
    if text is not None:
        contents |= {"mimeType": known_type or "text/plain", "text": text}
    else:
        blob = base64.b64encode(piece.content).decode()
        contents |= {"mimeType": known_type or "application/octet-stream", "blob": blob}
    return {"resultType": "complete", "contents": [contents], "ttlMs": seconds * 1000, "cacheScope": "private"}


def _text(content: bytes) -> str | None:
    if b"\0" in content:
        return None
    with suppress(UnicodeDecodeError):
        return content.decode()
    return None
