"""Contents: what is read of a resource, whole or in ranges, and how MCP carries it."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from gateway.errors import Forbidden, Invalid, NotFound
from gateway.serve.mcp.uris import SPAN_LIMIT, FileAddress, Span
from gateway.workspace.os_errors import is_directory, is_link
from gateway.workspace.tree import LINK, Tree, locate
from gateway.workspace.versions import Versions

# In the `_meta` of what was read: how many bytes the whole has, so that a reader of ranges knows the end.
SIZE = "dev.toolgate/size"


@dataclass(frozen=True)
class Piece:
    """Some bytes of a content that has `size` of them."""

    content: bytes
    size: int

    @property
    def text(self) -> str | None:
        """None for what is no text."""
        if b"\0" in self.content:
            return None
        with suppress(UnicodeDecodeError):
            return self.content.decode()
        return None


async def read_file(versions: Versions, address: FileAddress) -> Piece:
    """A file as it is now, or as it was in a manifest; the caller knows that its reader may."""
    if address.manifest is None:
        return await versions.in_thread(_read_now, versions, address)
    manifest = await versions.find(address.chat, address.manifest)
    tree = await versions.tree(address.chat, manifest.id)
    digest = _digest(tree, address.path, manifest.id)
    content = await versions.open_blob(address.chat, digest)
    return await versions.in_thread(_read, content, address.path, address.span)


def denied(path: str) -> Forbidden:
    return Forbidden(
        f"read_file: the operator does not allow this (approval.rules, path {path!r})", code="DENIED_BY_RULE"
    )


def cut(content: bytes, named: str, span: Span | None) -> Piece:
    """The range asked for; without one the whole, refused when that is too much at once."""
    if span is not None:
        return Piece(content[span.offset : span.offset + span.length], len(content))
    if len(content) > SPAN_LIMIT:
        raise _too_large(named, len(content))
    return Piece(content, len(content))


def read_result(
    uri: str, known_type: str | None, piece: Piece, seconds: int, meta: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The answer to `resources/read`; a client may keep it for so many seconds."""
    contents: dict[str, Any] = {"uri": uri, "_meta": {SIZE: piece.size, **(meta or {})}}
    text = piece.text
    if text is not None:
        contents |= {"mimeType": known_type or "text/plain", "text": text}
    else:
        blob = base64.b64encode(piece.content).decode()
        contents |= {"mimeType": known_type or "application/octet-stream", "blob": blob}
    return {"resultType": "complete", "contents": [contents], "ttlMs": seconds * 1000, "cacheScope": "private"}


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
        return cut(file.read(SPAN_LIMIT + 1), repr(path), None)  # it may have grown meanwhile


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
