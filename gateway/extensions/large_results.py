"""Large results: a result above a limit is saved in the chat's workspace; the response has its beginning and a link."""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
import orjson

from gateway.calls import Call, Outcome, content_size, text_content, to_json, value_size
from gateway.config.settings import SMALLEST_LARGE_RESULT
from gateway.errors import GatewayError, InputRequired
from gateway.extensions import Extension
from gateway.tools import Access, Tool
from gateway.value import Value
from gateway.workspace.paths import parse
from gateway.workspace.versions import HeldChat, Versions

DIRECTORY = "results"
# A part of a large result up to this size stays in the response.
INLINE_BYTES = 16 * 1024

PREVIEW_LINES, PREVIEW_CHARACTERS = 40, 4000
# Files per result; a result with more large parts becomes one file.
FILE_LIMIT = 100

# Seconds a result may wait for the lock of the chat's files; then it is returned whole.
LOCK_SECONDS = 30.0

_SUFFIXES = {
    "plain": "txt",
    "markdown": "md",
    "jpeg": "jpg",
    "mpeg": "mp3",
    "octet-stream": "bin",
    "javascript": "js",
}
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_LIMIT = 64

log = logging.getLogger(__name__)

Block = Mapping[str, Any]
# Returns the limit in bytes above which the result of a call is saved; None for no limit.
GetLimit = Callable[[Call], int | None]


class LargeResults(Extension):
    """Saves large results of upstreams as files of the chat, in a version of their own. One that cannot be saved is
    returned whole; one above `maximum` bytes is left to the extension that refuses it.

    The structured content of a tool with an output schema stays whole, because clients refuse a result without it.
    `file_uri` returns the URI of a chat's file.
    """

    def __init__(
        self, versions: Versions, get_limit: GetLimit, maximum: int, file_uri: Callable[[str, str], str]
    ) -> None:
        self._versions = versions
        self._get_limit = get_limit
        self._maximum = maximum
        self._file_uri = file_uri

    def applies_to(self, tool: Tool) -> bool:
        return tool.kind == "mcp"

    def after_execute(self, call: Call, outcome: Outcome) -> Awaitable[Outcome] | None:
        if outcome.wire is None or outcome.size <= SMALLEST_LARGE_RESULT or isinstance(outcome.error, InputRequired):
            return None
        limit = self._get_limit(call)
        if limit is None or not limit < outcome.size <= self._maximum:
            return None
        return self._try_to_save(call, outcome, limit)

    async def _try_to_save(self, call: Call, outcome: Outcome, limit: int) -> Outcome:
        try:
            with anyio.fail_after(LOCK_SECONDS):
                return await self._save(call, outcome, limit)
        except (GatewayError, OSError) as error:
            log.warning("call %s: its large result could not be saved and is returned whole: %s", call.id, error)
            return outcome

    async def _save(self, call: Call, outcome: Outcome, limit: int) -> Outcome:
        saved = _SavedParts(call, self._file_uri)
        smaller = await self._versions.in_thread(_extract_large_parts, call, outcome, limit, saved)
        if not saved.files:
            return outcome
        async with self._versions.hold(call.chat, call.caller.principal, call) as held:
            before, after = await self._store(held, call, saved.files)
        pre = outcome.pre_manifest if call.target.access is Access.WRITE else before
        return replace(smaller, pre_manifest=pre, post_manifest=after)

    async def _store(self, held: HeldChat, call: Call, files: Sequence[_File]) -> tuple[str | None, str | None]:
        """Save the files as a version; return the versions before and after."""
        before = await held.save("edit")  # a person's edits since then are not the tool's
        try:
            async with held.changing(call.id):
                await self._versions.in_thread(self._write, call.chat, files)
        finally:
            with anyio.CancelScope(shield=True):
                after = await held.save("tool_run", call.id)
        return before, after

    def _write(self, chat: str, files: Sequence[_File]) -> None:
        with self._versions.root(chat) as root:
            for file in files:
                parts = parse(file.path)
                root.make_directories(parts[:-1])
                root.create(parts, file.content)


class _File(Value):
    path: str
    content: bytes


class _SavedParts:
    """The files made of one result."""

    def __init__(self, call: Call, file_uri: Callable[[str, str], str]) -> None:
        self.files: list[_File] = []
        self._call = call
        self._file_uri = file_uri

    def add(self, content: bytes, mime: str, preview: str, block: Block | None = None) -> list[Block]:
        """Add a file; return the blocks that replace the part in the response."""
        server, _, tool = self._call.target.id.partition(":")
        number = f"-{len(self.files) + 1}" if self.files else ""
        name = f"{_safe_name(tool)}-{self._call.id}{number}.{_file_extension(mime)}"
        path = f"{DIRECTORY}/{_safe_name(server)}/{name}"
        self.files.append(_File(path, content))
        uri = self._file_uri(self._call.chat, path)
        link = {"type": "resource_link", "uri": uri, "name": name, "mimeType": mime, "size": len(content)}
        what = f"The beginning of {len(content)} bytes" if preview else f"{mime} of {len(content)} bytes"
        text = f"{preview}\n\n[{what}, saved in full as the file {path!r} of this chat's workspace.]".lstrip("\n")
        return [{**_metadata(block), **text_content(text)[0]}, {**_metadata(block), **link}]


def _extract_large_parts(call: Call, outcome: Outcome, limit: int, saved: _SavedParts) -> Outcome:
    """Return the outcome with its large parts moved to `saved`."""
    blocks, wire = list(outcome.content or ()), dict(outcome.wire or {})
    large = [value_size(block) > INLINE_BYTES for block in blocks]
    rest_fits = content_size(block for block, is_large in zip(blocks, large, strict=True) if not is_large) <= limit
    if rest_fits and sum(large) <= FILE_LIMIT:
        content = [
            part for block, is_large in zip(blocks, large, strict=True) for part in _shrink(block, is_large, saved)
        ]
    else:
        content = saved.add(to_json(blocks), "application/json", _cut_preview(_first_text(blocks)))
    structured = wire.get("structuredContent")
    can_shrink = structured is not None and call.target.output_schema is None
    if can_shrink and len(document := to_json(structured)) > INLINE_BYTES:
        del wire["structuredContent"]
        preview = "" if any(large) else _cut_preview(document[:PREVIEW_CHARACTERS].decode(errors="ignore"))
        content = [*content, *saved.add(document, "application/json", preview)]
    if outcome.error is not None:
        return replace(outcome, content=content, wire=wire)
    value = wire.get("structuredContent", content)
    smaller = replace(outcome, value=value, content=content, wire=wire)
    if value is structured and "value_json" in outcome.__dict__:  # a large value is encoded only once
        smaller.__dict__["value_json"] = outcome.value_json
    return smaller


def _shrink(block: Any, is_large: bool, saved: _SavedParts) -> list[Any]:
    """Return the blocks of the response for one block of the result."""
    if not is_large:
        return [block]
    match block:
        case {"type": "text", "text": str(text)}:
            return saved.add(_encode(text), _guess_mime(text), _cut_preview(text), block)
        case {"type": "image" | "audio", "data": str(data)} if (content := _decode(data)) is not None:
            return saved.add(content, _get_mime(block, "application/octet-stream"), "", block)
        case {"type": "resource", "resource": {"text": str(text)} as inner}:
            return saved.add(_encode(text), _get_mime(inner, _guess_mime(text)), _cut_preview(text), block)
        case {"type": "resource", "resource": {"blob": str(data)} as inner} if (content := _decode(data)) is not None:
            return saved.add(content, _get_mime(inner, "application/octet-stream"), "", block)
    return saved.add(to_json(block), "application/json", "", block if isinstance(block, Mapping) else None)


def _metadata(block: Block | None) -> dict[str, Any]:
    """Return a server's metadata about a block, which also describes the blocks that replace it."""
    return {key: block[key] for key in ("annotations", "_meta") if key in block} if block is not None else {}


def _cut_preview(text: str) -> str:
    return "\n".join(text[:PREVIEW_CHARACTERS].split("\n")[:PREVIEW_LINES])


def _first_text(blocks: Sequence[Any]) -> str:
    texts = (block["text"] for block in blocks if isinstance(block, Mapping) and isinstance(block.get("text"), str))
    return next(texts, "")


def _guess_mime(text: str) -> str:
    if text[:1] in ("{", "["):
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError:
            return "text/plain"
        return "application/json"
    return "text/plain"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _decode(data: str) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def _get_mime(block: Block, default: str) -> str:
    mime = block.get("mimeType")
    return mime if isinstance(mime, str) and 0 < len(mime) <= 100 else default


def _file_extension(mime: str) -> str:
    """Return the extension of a file name for a MIME type."""
    kind = re.split("[;+]", mime.partition("/")[2].strip().lower())[0].removeprefix("x-")
    extension = _SUFFIXES.get(kind, kind)
    return extension if re.fullmatch("[a-z0-9]{1,8}", extension) else "bin"


def _safe_name(name: str) -> str:
    """Return the name of a server or tool in a form that is safe in a path."""
    return _UNSAFE.sub("-", name)[:_NAME_LIMIT].strip("-") or "unnamed"
