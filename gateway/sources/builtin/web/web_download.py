"""A file from the web, saved in the workspace. It writes, so it is no tool of the category `web`."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, BinaryIO, cast

import anyio
import anyio.to_thread
from pydantic import Field

from gateway.net.policy import RequestLimits
from gateway.sources.builtin.decorator import Shape, Versioned, builtin
from gateway.sources.builtin.web.context import WebContext
from gateway.sources.builtin.web.web_fetch import LONGEST_WAIT, Headers, Seconds, Url
from gateway.tools import Access, Permission
from gateway.workspace import Parts, parse, show_path
from gateway.workspace.versions import HeldChat

BYTES = 64 * 1024 * 1024


class Saved(Shape):
    path: str
    size: int
    created: bool
    url: str = Field(description="Where it was found in the end, after redirects")
    content_type: str | None = None


async def _overwrites(context: WebContext, path: str, **_: object) -> str | None:
    def reason() -> str | None:
        with context.workspaces.root(context.call.chat) as root:
            found = root.find(parse(path))
        if found is None or found.kind != "file":
            return None
        return f"web_download overwrites {found.path!r} ({found.stat.st_size} bytes)"

    return await anyio.to_thread.run_sync(reason)


@builtin(
    title="Download to a file",
    category="editing",
    permission=Permission.READ_WRITE,
    access=Access.NONE,
    requires_confirmation=_overwrites,
    destructive=True,
    idempotent=True,
    open_world=True,
    requires=("hosts",),
    path_arguments=("path",),
)
async def web_download(
    context: WebContext,
    url: Url,
    path: Annotated[str, Field(description="File to save it as, relative to the workspace root")],
    headers: Headers = None,
    create_dirs: Annotated[bool, Field(description="Make missing directories above it")] = False,
    timeout: Seconds = LONGEST_WAIT,
) -> tuple[Saved, str, Versioned]:
    """Save what is at a URL (GET) as a file of the workspace, byte for byte: images, archives, data. Overwriting a
    file asks the user first.

    Only allowed hosts are reached. At most 64 MiB; the file is there whole or not at all."""
    parts = parse(path)
    limits = RequestLimits(bytes=BYTES, seconds=timeout, connect_seconds=min(timeout, RequestLimits.connect_seconds))
    from gateway.net.download import save  # imports the HTTP client, which most processes never need

    with tempfile.TemporaryFile(prefix="toolgate-") as file:
        async with context.access.client(context.policy) as door:
            got = await save(door, url, file, limits=limits, headers=headers, progress=context.call.progress)
        file.flush()
        # Only now: nobody else waits for the chat's files while a server takes its time.
        async with _held(context) as files:
            before = await files.save("edit")
            with anyio.CancelScope(shield=True):
                try:
                    async with files.changing(context.call.id):
                        created = await anyio.to_thread.run_sync(_place, context, parts, file, got.bytes, create_dirs)
                finally:
                    after = await files.save("tool_run", context.call.id)
    saved = Saved(
        path=show_path(parts), size=got.bytes, created=created, url=got.url_final, content_type=got.content_type
    )
    return (
        saved,
        f"{'Created' if created else 'Overwrote'} {saved.path} ({saved.size} bytes).",
        Versioned(before, after),
    )


def _place(context: WebContext, parts: Parts, file: BinaryIO, size: int, create_dirs: bool) -> bool:
    # Written from the pages of the temporary file, never as a whole in memory; an empty one has none.
    content = cast("bytes", mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)) if size else b""
    with context.workspaces.root(context.call.chat) as root:
        found = root.find(parts)
        if create_dirs and parts:
            root.make_directories(parts[:-1])
        if context.call.confirmed and found is not None:
            root.replace(parts, content)
        else:  # nobody agreed to lose a file, so one that has appeared since the question stays
            root.create(parts, content)
    return found is None


@asynccontextmanager
async def _held(context: WebContext) -> AsyncIterator[HeldChat]:
    call = context.call
    async with context.versions.hold(call.chat, call.caller.principal) as files:
        if call.message is not None:
            await files.switch(call.message, call.parent_message)
        yield files
