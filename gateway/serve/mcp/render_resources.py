"""Contents of resources, whole or in ranges, and the render plans of calls as resources: plans and HTML pages."""

from __future__ import annotations

import base64
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

import anyio
import anyio.to_thread
import orjson

from gateway.calls import Call, Caller, PlannedCall
from gateway.catalog import RENDERER
from gateway.errors import Forbidden, GatewayError, Invalid, NotFound
from gateway.executor import Executor
from gateway.render.renderers import TEXT_RENDERERS
from gateway.serve.mcp.uris import SPAN_LIMIT, FileAddress, RenderAddress, Span, parse, render_uri
from gateway.serve.web.inline import read_view
from gateway.tools import READ_RENDER, READ_RESOURCE, Tool
from gateway.value import Value
from gateway.workspace.os_errors import is_directory, is_link
from gateway.workspace.paths import Root
from gateway.workspace.paths import parse as parse_path
from gateway.workspace.tree import LINK, Tree, locate
from gateway.workspace.versions import Versions

if TYPE_CHECKING:
    from gateway.render.pages import Page


# In the `_meta` of contents: the size of the whole in bytes, for readers of ranges.
SIZE = "dev.toolgate/size"


class ContentSlice(Value):
    """Bytes of a content whose whole size is `size`."""

    content: bytes
    size: int

    @property
    def text(self) -> str | None:
        """The bytes as UTF-8 text, None if they are not."""
        if b"\0" in self.content:
            return None
        with suppress(UnicodeDecodeError):
            return self.content.decode()
        return None


class ResourceReader(Value):
    """The caller of a request about resources, and its chat."""

    chat: str
    caller: Caller

    @property
    def principal(self) -> str:
        return self.caller.principal

    def allows(self, tool: Tool) -> bool:
        """Return whether the caller may call the tool that stands for a request."""
        access = self.caller.access
        return access is None or access.allows(tool.id, tool)

    def call(self, method: str, chat: str, arguments: Mapping[str, Any], confirmed: bool = False) -> Call:
        """Return a request as the call that is checked and recorded."""
        return Call(name=method, arguments=arguments, chat=chat, caller=self.caller, confirmed=confirmed)


async def read_file(versions: Versions, address: FileAddress) -> ContentSlice:
    """Read a file as it is now, or as it was in a manifest. Whether it may be read is checked before."""
    if address.manifest is None:
        return await versions.in_thread(_read_now, versions, address)
    manifest = await versions.find(address.chat, address.manifest)
    tree = await versions.tree(address.chat, manifest.id)
    digest = _find_digest(tree, address.path, manifest.id)
    content = await versions.open_blob(address.chat, digest)
    return await versions.in_thread(_read, content, address.path, address.span)


def path_denied(path: str) -> Forbidden:
    return Forbidden(
        f"read_file: the operator does not allow this (approval.rules, path {path!r})", code="DENIED_BY_RULE"
    )


def slice_content(content: bytes, named: str, span: Span | None) -> ContentSlice:
    """Return the requested range, or without one the whole, which is refused if it is too large."""
    if span is not None:
        return ContentSlice(content[span.offset : span.offset + span.length], len(content))
    if len(content) > SPAN_LIMIT:
        raise _too_large(named, len(content))
    return ContentSlice(content, len(content))


def read_result(
    uri: str, known_type: str | None, content_slice: ContentSlice, seconds: int, meta: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the result of `resources/read`; a client may cache it for so many seconds."""
    contents: dict[str, Any] = {"uri": uri, "_meta": {SIZE: content_slice.size, **(meta or {})}}
    text = content_slice.text
    if text is not None:
        contents |= {"mimeType": known_type or "text/plain", "text": text}
    else:
        blob = base64.b64encode(content_slice.content).decode()
        contents |= {"mimeType": known_type or "application/octet-stream", "blob": blob}
    return {"resultType": "complete", "contents": [contents], "ttlMs": seconds * 1000, "cacheScope": "private"}


def _read_now(versions: Versions, address: FileAddress) -> ContentSlice:
    with versions.root(address.chat) as root:
        return _read(root.open(locate(address.path)), address.path, address.span)


def _read(file: BinaryIO, path: str, span: Span | None) -> ContentSlice:
    with file:
        size = os.fstat(file.fileno()).st_size
        if span is not None:
            # Without the check of a stored file's digest, which would read all of it for every range.
            return ContentSlice(os.pread(file.fileno(), span.length, span.offset), size)
        if size > SPAN_LIMIT:
            raise _too_large(repr(path), size)
        return slice_content(file.read(SPAN_LIMIT + 1), repr(path), None)  # it may have grown since


def _too_large(named: str, size: int) -> Invalid:
    return Invalid(
        f"{named} has {size} bytes, more than the {SPAN_LIMIT} that are read at once; "
        f"read it in ranges: offset=0&length={SPAN_LIMIT} in the query, and on from there",
        code="RESOURCE_TOO_LARGE",
        size=size,
        limit=SPAN_LIMIT,
    )


def _find_digest(tree: Tree, path: str, manifest: str) -> str:
    if tree.meta.get(path) == LINK:
        raise is_link(repr(path))
    digest = tree.files.get(path)
    if digest is None:
        if path in tree.meta or any(file.startswith(f"{path}/") for file in tree.files):
            raise is_directory(repr(path))
        raise NotFound(f"manifest {manifest} has no file {path!r}", code="FILE_NOT_FOUND")
    return digest


# In the `_meta` of a page: the maximum `sandbox` attribute of the iframe that shows it.
SANDBOX = "dev.toolgate/sandbox"

# Maximum bytes of a toolset's own page.
ARTIFACT_LIMIT = 5 * 1024 * 1024

# Maximum bytes of a file shown in a page, so that the page can be read at once.
FILE_LIMIT = 256 * 1024

# Number of plans that are listed, the latest ones.
LISTED = 20

# Number of plans whose call ids are completed.
COMPLETED = 1000

# How long a client may cache a plan, which never changes.
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


class PlanStore(Protocol):
    """Storage of the render plans of calls."""

    async def find_plan(self, call_id: str) -> PlannedCall | None: ...

    async def list_plans(self, chat: str, limit: int) -> Sequence[PlannedCall]: ...


def link(call_id: str, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content block of a result that links to its plan."""
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


class RenderResources:
    """The render plans of calls, for the owner of their chat; others get the error for a plan that does not exist."""

    def __init__(self, plans: PlanStore | None, versions: Versions, executor: Executor) -> None:
        self._plans = plans
        self._versions = versions
        self._executor = executor
        self._threads = anyio.CapacityLimiter(_PAGES_AT_ONCE)

    async def latest(self, reader: ResourceReader) -> list[dict[str, Any]]:
        """Return the latest plans of the reader's chat as resources, newest first."""
        return [self._resource(call) for call in await self._list_plans(reader, reader.chat, LISTED)]

    async def latest_ids(self, reader: ResourceReader, chat: str) -> list[str]:
        return [call.id for call in await self._list_plans(reader, chat, COMPLETED)]

    async def read(self, reader: ResourceReader, uri: str, address: RenderAddress) -> dict[str, Any]:
        async def read(planned: PlannedCall) -> dict[str, Any]:
            return await self._read(planned, uri, address)

        return await self.request(reader, "resources/read", address, read)

    async def describe(self, reader: ResourceReader, call_id: str) -> dict[str, Any]:
        """Return the plan of a call, and its text with the HTML that shows it; refused like reading it. A file that
        may be edited is as it is now, any other as the call left it."""

        async def describe(planned: PlannedCall) -> dict[str, Any]:
            plan: dict[str, Any] = orjson.loads(planned.plan or "{}")
            described = {"uri": render_uri(planned.id), "plan": plan}
            if "error" in plan or plan.get("renderer") not in TEXT_RENDERERS:
                return described
            return {**described, "content": await self._make_content(planned, plan)}

        return await self.request(reader, "resources/read", RenderAddress(call_id), describe)

    async def find_latest(self, reader: ResourceReader, tool: str) -> str:
        """Return the id of the latest call of a tool in the reader's chat that has a plan."""
        entry = self._executor.catalog.for_principal(reader.caller.access).get(tool)
        is_readable = False
        with suppress(Forbidden):  # others must not learn what was called there
            is_readable = await self._versions.may_read(reader.chat, reader.principal)
        for call in await self._list_plans(reader, reader.chat, COMPLETED) if is_readable else ():
            if call.name == tool or (entry is not None and call.tool_id == entry.tool.id):
                return call.id
        raise NotFound(f"no call of {tool[:100]!r} in this chat has a render plan", code="RENDER_NOT_FOUND")

    async def page(self, reader: ResourceReader, call_id: str) -> Page:
        """Return the whole page of a call; refused like reading it."""

        async def make(planned: PlannedCall) -> Page:
            return await self._make_page(planned, orjson.loads(planned.plan or "{}"))

        return await self.request(reader, "resources/read", RenderAddress(call_id, view=True), make)

    async def request(
        self,
        reader: ResourceReader,
        method: str,
        address: RenderAddress,
        work: Callable[[PlannedCall], Awaitable[Result]],
    ) -> Result:
        """Run `work` with a plan behind the extensions; refused when it is not the reader's."""
        planned = await self._find(reader, address.call_id)
        entry = self._executor.catalog.get(planned.tool_id)
        tool = replace(READ_RENDER, category=entry.tool.category) if entry is not None else READ_RENDER
        call = reader.call(method, planned.chat, {"call_id": planned.id, "view": address.view}, confirmed=True)
        return await self._executor.request(call, tool, partial(work, planned))

    async def _read(self, call: PlannedCall, uri: str, address: RenderAddress) -> dict[str, Any]:
        document = (call.plan or "").encode()
        if not address.view:
            return read_result(uri, "application/json", slice_content(document, uri, address.span), PLAN_SECONDS)
        page = await self._make_page(call, orjson.loads(document))
        content_slice = slice_content(page.html.encode(), uri, address.span)
        return read_result(uri, "text/html", content_slice, 0, {SANDBOX: page.sandbox})

    async def _list_plans(self, reader: ResourceReader, chat: str, limit: int) -> Sequence[PlannedCall]:
        plans = [] if self._plans is None else await self._plans.list_plans(chat, limit)
        return [call for call in plans if self._is_visible(reader, call)]

    def _is_visible(self, reader: ResourceReader, call: PlannedCall) -> bool:
        """Return whether the reader may call the tool whose outcome is shown."""
        access = reader.caller.access
        return access is None or self._executor.catalog.for_principal(access).get(call.tool_id) is not None

    async def _find(self, reader: ResourceReader, call_id: str) -> PlannedCall:
        call = None if self._plans is None else await self._plans.find_plan(call_id)
        is_own = False
        if call is not None and self._is_visible(reader, call):
            with suppress(Forbidden):  # others must not learn that it exists
                is_own = await self._versions.may_read(call.chat, reader.principal)
        if call is None or not is_own:
            shown = call_id if len(call_id) <= 100 else f"{call_id[:100]}…"
            raise NotFound(f"no call {shown!r} has a render plan", code="RENDER_NOT_FOUND")
        return call

    async def _make_page(self, call: PlannedCall, plan: Mapping[str, Any]) -> Page:
        """Return the page of a call, from its plan and the files of its toolset as they are now."""
        config = {} if "error" in plan else plan.get("config", {})
        content_slice = None
        if "artifact" in config:
            content_slice = await self._in_thread(read_artifact, self._find_home(call), config["artifact"])
        elif "file" in config:
            content_slice = await self._read_file(call, config)
        return await self._in_thread(_make_page, plan, content_slice)

    async def _make_content(self, call: PlannedCall, plan: Mapping[str, Any]) -> dict[str, Any]:
        config = plan.get("config", {})
        if "file" not in config:
            return await self._in_thread(_make_content, plan, None)
        if config.get("editable") is True and (current := await self._read_current(call, config)) is not None:
            return await self._in_thread(_make_content, plan, *current)
        return await self._in_thread(_make_content, plan, await self._read_file(call, config))

    async def _read_current(
        self, call: PlannedCall, config: Mapping[str, Any]
    ) -> tuple[ContentSlice, str | None] | None:
        """Return the file as it is now with its revision; None if it is gone."""
        path = config["file"]
        if self._executor.hides(READ_RESOURCE)(path):
            raise path_denied(path)
        with suppress(NotFound):
            return await self._versions.in_thread(_read_revision, self._versions, call.chat, path)
        return None

    async def _read_file(self, call: PlannedCall, config: Mapping[str, Any]) -> ContentSlice:
        address = parse(config["uri"])
        if not isinstance(address, FileAddress):
            raise Invalid(f"the plan of call {call.id} names no file of a workspace", code="INVALID_PATH")
        if self._executor.hides(READ_RESOURCE)(address.path):
            raise path_denied(address.path)
        wanted = replace(address, chat=call.chat, manifest=config.get("manifest"), span=Span(0, FILE_LIMIT))
        return await read_file(self._versions, wanted)

    def _find_home(self, call: PlannedCall) -> Path:
        entry = self._executor.catalog.get(call.tool_id)
        if entry is None or entry.tool.home is None:
            raise NotFound(
                f"{call.tool_id} is not installed or not enabled any more, and neither is the page that shows its "
                "outcomes; install or enable its toolset again",
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


def read_artifact(home: Path, path: str) -> ContentSlice:
    """Read a page of the toolset in `home`."""
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
    return ContentSlice(content, size)


def _make_page(plan: Mapping[str, Any], content_slice: ContentSlice | None) -> Page:
    # Imported here, in a thread: it imports Pygments and markdown-it, which would delay the start.
    from gateway.render.pages import choose_view, make_page

    view, call_id = read_view(choose_view(plan)), plan.get("call", {}).get("id", "")
    if content_slice is None:
        return make_page(view, plan, uri=render_uri(call_id))
    return make_page(view, plan, content_slice.content, content_slice.size, render_uri(call_id))


def _make_content(
    plan: Mapping[str, Any], content_slice: ContentSlice | None, revision: str | None = None
) -> dict[str, Any]:
    # Imported here, as for a page.
    from gateway.render.pages import make_content

    if content_slice is None:
        return make_content(plan, None, 0)
    return make_content(plan, content_slice.content, content_slice.size, revision)


def _read_revision(versions: Versions, chat: str, path: str) -> tuple[ContentSlice, str | None]:
    with versions.root(chat) as root:
        parts = parse_path(path)
        return _read(root.open(parts), path, Span(0, FILE_LIMIT)), root.revision(parts)
