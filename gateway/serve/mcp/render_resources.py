"""Renders: what came of a call, as a plan a view follows and as a page anyone can show."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

import anyio
import anyio.to_thread
import orjson

from gateway.calls import PlannedCall
from gateway.catalog import RENDERER
from gateway.errors import Forbidden, GatewayError, Invalid, NotFound
from gateway.executor import Executor
from gateway.serve.mcp.uris import SPAN_LIMIT, FileAddress, RenderAddress, Span, parse, render_uri
from gateway.tools import READ_RESOURCE
from gateway.workspace.os_errors import is_directory, is_link
from gateway.workspace.paths import Root
from gateway.workspace.paths import parse as parse_path
from gateway.workspace.tree import LINK, Tree, locate
from gateway.workspace.versions import Versions

if TYPE_CHECKING:
    from gateway.render.pages import Page


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


# In the `_meta` of a page: what the `sandbox` of the iframe that shows it may allow, and nothing more.
SANDBOX = "dev.toolgate/sandbox"

# Bytes of a toolset's own page.
ARTIFACT_LIMIT = 5 * 1024 * 1024

# Bytes of a file that its page shows, so that the page itself can be read at once.
FILE_LIMIT = 256 * 1024

# Plans that are listed: what a person who looks for one has just made.
LISTED = 20

# Plans among which a call's id is completed.
COMPLETED = 1000

# How long a client may keep a plan, which never changes.
PLAN_SECONDS = 3600

_PAGES_AT_ONCE = 2
Result = TypeVar("Result")

PLAN, VIEW = "render://{call_id}", "render://{call_id}/view"
RENDER_TEMPLATES: list[dict[str, Any]] = [
    {
        "uriTemplate": PLAN,
        "name": "render",
        "title": "How to show what came of a call",
        "description": "The render plan of a call whose tool has a renderer: the renderer, its filled-in config, "
        "the call's input, and the error if it failed.",
        "mimeType": "application/json",
    },
    {
        "uriTemplate": VIEW,
        "name": "render-view",
        "title": "What came of a call, as a page",
        "description": "One self-contained page to put into a sandboxed iframe; "
        f"'{SANDBOX}' in its _meta is what that frame may allow. "
        f"A page over {SPAN_LIMIT} bytes is read in ranges: add ?offset=0&length={SPAN_LIMIT}, counted in bytes.",
        "mimeType": "text/html",
    },
]


class Plans(Protocol):
    """Where the plans of calls are kept."""

    async def find_plan(self, call_id: str) -> PlannedCall | None: ...

    async def list_plans(self, chat: str, limit: int) -> Sequence[PlannedCall]: ...


def link(call_id: str, plan: Mapping[str, Any]) -> dict[str, Any]:
    """The block of a result that leads to its plan."""
    tool = plan.get("tool", {})
    name = tool.get("name", "outcome")
    return {
        "type": "resource_link",
        "uri": render_uri(call_id),
        "name": name,
        "title": tool.get("title", name),
        "description": f"How to show this outcome; as a page at {render_uri(call_id, view=True)}",
        "mimeType": "application/json",
        "annotations": {"audience": ["user"]},
        "_meta": {RENDERER: plan.get("renderer")},
    }


class Renders:
    """The plans of calls for those who own the chat; to everyone else, and without `plans`, there are none."""

    def __init__(self, plans: Plans | None, versions: Versions, executor: Executor) -> None:
        self._plans = plans
        self._versions = versions
        self._executor = executor
        self._threads = anyio.CapacityLimiter(_PAGES_AT_ONCE)

    async def latest(self, chat: str) -> list[dict[str, Any]]:
        """The latest plans of the chat, newest first, as resources."""
        return [self._resource(call) for call in await self._planned(chat, LISTED)]

    async def latest_ids(self, chat: str) -> list[str]:
        return [call.id for call in await self._planned(chat, COMPLETED)]

    async def read(self, principal: str, uri: str, address: RenderAddress) -> dict[str, Any]:
        call = await self._find(principal, address.call_id)
        document = (call.plan or "").encode()
        if not address.view:
            return read_result(uri, "application/json", cut(document, uri, address.span), PLAN_SECONDS)
        page = await self._page(call, orjson.loads(document))
        piece = cut(page.html.encode(), uri, address.span)
        return read_result(uri, "text/html", piece, 0, {SANDBOX: page.sandbox})

    async def _planned(self, chat: str, limit: int) -> Sequence[PlannedCall]:
        return [] if self._plans is None else await self._plans.list_plans(chat, limit)

    async def _find(self, principal: str, call_id: str) -> PlannedCall:
        call = None if self._plans is None else await self._plans.find_plan(call_id)
        mine = False
        with suppress(Forbidden):  # that it exists is nobody else's business
            mine = call is not None and await self._versions.may_read(call.chat, principal)
        if call is None or not mine:
            shown = call_id if len(call_id) <= 100 else f"{call_id[:100]}…"
            raise NotFound(f"no call {shown!r} has a render plan", code="RENDER_NOT_FOUND")
        return call

    async def _page(self, call: PlannedCall, plan: Mapping[str, Any]) -> Page:
        """The page, from the call's own plan and the toolset as it is now."""
        config = {} if "error" in plan else plan.get("config", {})
        piece = None
        if "artifact" in config:
            piece = await self._in_thread(_artifact, self._home(call), config["artifact"])
        elif "file" in config:
            piece = await self._file(call, config)
        return await self._in_thread(_make_page, plan, piece)

    async def _file(self, call: PlannedCall, config: Mapping[str, Any]) -> Piece:
        address = parse(config["uri"])
        if not isinstance(address, FileAddress):
            raise Invalid(f"the plan of call {call.id} names no file of a workspace", code="INVALID_PATH")
        if self._executor.hides(READ_RESOURCE)(address.path):
            raise denied(address.path)
        wanted = replace(address, chat=call.chat, manifest=config.get("manifest"), span=Span(0, FILE_LIMIT))
        return await read_file(self._versions, wanted)

    def _home(self, call: PlannedCall) -> Path:
        entry = self._executor.catalog.get(call.tool_id)
        if entry is None or entry.tool.home is None:
            raise NotFound(
                f"{call.tool_id} is not installed or not enabled any more, and the page that shows its outcomes "
                "went with it; install or enable its toolset again",
                code="TOOLSET_NOT_FOUND",
            )
        return entry.tool.home

    def _resource(self, call: PlannedCall) -> dict[str, Any]:
        entry = self._executor.catalog.get(call.tool_id)
        name = entry.name if entry else call.name
        title = (entry.tool.title if entry else None) or name
        moment = f"{call.started_at[:10]} {call.started_at[11:19]} UTC"
        return {
            "uri": render_uri(call.id),
            "name": name,
            "title": f"{title}{', failed' if call.status == 'error' else ''}, {moment}",
            "description": f"How to show what came of this call; as a page at {render_uri(call.id, view=True)}",
            "mimeType": "application/json",
            "annotations": {"audience": ["user"], "lastModified": call.started_at},
        }

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._threads)


def _artifact(home: Path, path: str) -> Piece:
    """A page of the toolset in `home`, whole."""
    try:
        with Root(home) as root, root.open(parse_path(path)) as file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(ARTIFACT_LIMIT + 1)
    except (GatewayError, OSError) as error:
        raise NotFound(
            f"{path!r}, the page that shows this outcome, is not in its toolset, or is no regular file there; "
            "install the toolset again",
            code="ARTIFACT_NOT_FOUND",
        ) from error
    if len(content) > ARTIFACT_LIMIT:
        raise Invalid(
            f"{path!r}, the page that shows this outcome, has {size} bytes, more than the {ARTIFACT_LIMIT} a page may",
            code="ARTIFACT_TOO_LARGE",
        )
    return Piece(content, size)


def _make_page(plan: Mapping[str, Any], piece: Piece | None) -> Page:
    # Imported here, in a thread: it brings in Pygments and markdown-it, which a start need not wait for.
    from gateway.render.pages import make_page

    return make_page(plan) if piece is None else make_page(plan, piece.content, piece.size)
