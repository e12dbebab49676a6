"""Large results: what is more than a client takes is kept in the chat's workspace, and answered by its beginning."""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio
import orjson

from gateway.calls import Call, Outcome, RawResult, text_content, to_json
from gateway.errors import GatewayError, InputRequired
from gateway.extensions import Extension
from gateway.tools import Access, Tool
from gateway.workspace.paths import parse
from gateway.workspace.versions import HeldChat, Versions

_MEASURED_APART = frozenset({"content", "structuredContent"})


def result_size(outcome: Outcome) -> int:
    """Bytes of all that the caller gets; of an upstream's result, of everything in it. Texts that are measured
    and not written count as UTF-8, without what JSON escapes in them."""
    wire = outcome.wire
    if wire is None:
        return len(outcome.value_json)
    if isinstance(wire, RawResult):
        return len(wire.message)
    size = len(to_json({key: value for key, value in wire.items() if key not in _MEASURED_APART}))
    if outcome.error is None:
        size += len(outcome.value_json)  # which is recorded too, so it is written in any case
        return size + content_size(outcome.content or ()) if "structuredContent" in wire else size
    return size + content_size(outcome.content or ()) + value_size(wire.get("structuredContent"))


def content_size(blocks: Iterable[Any]) -> int:
    return sum(map(value_size, blocks))


def value_size(value: Any) -> int:
    """Bytes of a value whose bulk is in few long texts, as that of MCP content is."""
    if isinstance(value, str):
        return 2 + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    if isinstance(value, Mapping):
        return max(2, 1 + sum(len(key) + 4 + value_size(each) for key, each in value.items()))
    return len(to_json(value))


DIRECTORY = "results"
# A part of a large result that is not larger than this is answered as it is.
STAYS = 16 * 1024

PREVIEW_LINES, PREVIEW_CHARACTERS = 40, 4000
# Files made of one result; of one with more parts, one file is made.
FILES = 100

# How long a result may wait for the chat's files; then it is answered whole.
SECONDS = 30.0

_ENDINGS = {"plain": "txt", "markdown": "md", "jpeg": "jpg", "mpeg": "mp3", "octet-stream": "bin", "javascript": "js"}
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_LIMIT = 64

log = logging.getLogger(__name__)

Block = Mapping[str, Any]
# From how many bytes on a call's result is kept; None for never.
Over = Callable[[Call], int | None]


class LargeResults(Extension):
    """Keeps results of upstreams as a version of the chat's files. Nothing is lost by it: one that cannot be kept is
    answered whole, and one above `most` bytes is left for whoever refuses those.

    What a tool with an output schema gives to programs stays whole, for clients refuse an answer without it. `uri`
    makes the address of a chat's file.
    """

    def __init__(self, versions: Versions, over: Over, most: int, uri: Callable[[str, str], str]) -> None:
        self._versions = versions
        self._over = over
        self._most = most
        self._uri = uri

    def concerns(self, tool: Tool) -> bool:
        return tool.kind == "mcp"

    async def after_execute(self, call: Call, outcome: Outcome) -> Outcome:
        if outcome.wire is None or isinstance(outcome.error, InputRequired):
            return outcome
        over = self._over(call)
        if over is None or not over < result_size(outcome) <= self._most:
            return outcome
        try:
            with anyio.fail_after(SECONDS):
                return await self._kept(call, outcome, over)
        except (GatewayError, OSError) as error:
            log.warning("call %s: its large result is answered whole, it could not be kept: %s", call.id, error)
            return outcome

    async def _kept(self, call: Call, outcome: Outcome, over: int) -> Outcome:
        shelf = _Shelf(call, self._uri)
        smaller = await self._versions.in_thread(_smaller, call, outcome, over, shelf)
        if not shelf.files:
            return outcome
        async with self._versions.hold(call.chat, call.caller.principal) as held:
            before, after = await self._store(held, call, shelf.files)
        pre = outcome.pre_manifest if call.target.access is Access.WRITE else before
        return replace(smaller, pre_manifest=pre, post_manifest=after)

    async def _store(self, held: HeldChat, call: Call, files: Sequence[_File]) -> tuple[str | None, str | None]:
        """The versions before and after."""
        if call.message is not None:
            await held.switch(call.message, call.parent_message)
        before = await held.save("edit")  # what a person changed since is not the tool's doing
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


@dataclass(frozen=True)
class _File:
    path: str
    content: bytes


class _Shelf:
    """The files made of one result."""

    def __init__(self, call: Call, uri: Callable[[str, str], str]) -> None:
        self.files: list[_File] = []
        self._call = call
        self._uri = uri

    def put(self, content: bytes, mime: str, preview: str, block: Block | None = None) -> list[Block]:
        """Keep it; what is answered in its place."""
        server, _, tool = self._call.target.id.partition(":")
        number = f"-{len(self.files) + 1}" if self.files else ""
        name = f"{_plain(tool)}-{self._call.id}{number}.{_ending(mime)}"
        path = f"{DIRECTORY}/{_plain(server)}/{name}"
        self.files.append(_File(path, content))
        uri = self._uri(self._call.chat, path)
        link = {"type": "resource_link", "uri": uri, "name": name, "mimeType": mime, "size": len(content)}
        what = f"The beginning of {len(content)} bytes" if preview else f"{mime} of {len(content)} bytes"
        said = f"{preview}\n\n[{what}, all kept as the file {path!r} of this chat's workspace.]".lstrip("\n")
        return [{**_notes(block), **text_content(said)[0]}, {**_notes(block), **link}]


def _smaller(call: Call, outcome: Outcome, over: int, shelf: _Shelf) -> Outcome:
    """The outcome with its large parts put on the shelf."""
    blocks, wire = list(outcome.content or ()), dict(outcome.wire or {})
    large = [value_size(block) > STAYS for block in blocks]
    few = content_size(block for block, is_large in zip(blocks, large, strict=True) if not is_large) <= over
    if few and sum(large) <= FILES:
        content = [
            part for block, is_large in zip(blocks, large, strict=True) for part in _part(block, is_large, shelf)
        ]
    else:
        content = shelf.put(to_json(blocks), "application/json", _beginning(_first_text(blocks)))
    structured = wire.get("structuredContent")
    if call.target.output_schema is None and structured is not None and len(written := to_json(structured)) > STAYS:
        del wire["structuredContent"]
        preview = "" if any(large) else _beginning(written[:PREVIEW_CHARACTERS].decode(errors="ignore"))
        content = [*content, *shelf.put(written, "application/json", preview)]
    if outcome.error is not None:
        return replace(outcome, content=content, wire=wire)
    value = wire.get("structuredContent", content)
    smaller = replace(outcome, value=value, content=content, wire=wire)
    if value is structured and "value_json" in outcome.__dict__:  # a large value is written as JSON once
        smaller.__dict__["value_json"] = outcome.value_json
    return smaller


def _part(block: Any, is_large: bool, shelf: _Shelf) -> list[Any]:
    """What is answered in place of one block."""
    if not is_large:
        return [block]
    match block:
        case {"type": "text", "text": str(text)}:
            return shelf.put(_bytes(text), _kind(text), _beginning(text), block)
        case {"type": "image" | "audio", "data": str(data)} if (content := _decoded(data)) is not None:
            return shelf.put(content, _mime(block, "application/octet-stream"), "", block)
        case {"type": "resource", "resource": {"text": str(text)} as inner}:
            return shelf.put(_bytes(text), _mime(inner, _kind(text)), _beginning(text), block)
        case {"type": "resource", "resource": {"blob": str(data)} as inner} if (content := _decoded(data)) is not None:
            return shelf.put(content, _mime(inner, "application/octet-stream"), "", block)
    return shelf.put(to_json(block), "application/json", "", block if isinstance(block, Mapping) else None)


def _notes(block: Block | None) -> dict[str, Any]:
    """What a server says about a block, which is as true of what stands for it."""
    return {key: block[key] for key in ("annotations", "_meta") if key in block} if block is not None else {}


def _beginning(text: str) -> str:
    return "\n".join(text[:PREVIEW_CHARACTERS].split("\n")[:PREVIEW_LINES])


def _first_text(blocks: Sequence[Any]) -> str:
    texts = (block["text"] for block in blocks if isinstance(block, Mapping) and isinstance(block.get("text"), str))
    return next(texts, "")


def _kind(text: str) -> str:
    if text[:1] in ("{", "["):
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError:
            return "text/plain"
        return "application/json"
    return "text/plain"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _decoded(data: str) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def _mime(said: Block, default: str) -> str:
    mime = said.get("mimeType")
    return mime if isinstance(mime, str) and 0 < len(mime) <= 100 else default


def _ending(mime: str) -> str:
    """How a file of this kind is named at its end."""
    kind = re.split("[;+]", mime.partition("/")[2].strip().lower())[0].removeprefix("x-")
    ending = _ENDINGS.get(kind, kind)
    return ending if re.fullmatch("[a-z0-9]{1,8}", ending) else "bin"


def _plain(name: str) -> str:
    """A server's or tool's name as part of a path."""
    return _FOREIGN.sub("-", name)[:_NAME_LIMIT].strip("-") or "unnamed"
