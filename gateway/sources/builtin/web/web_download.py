"""The tool web_download: saves a URL as a file. It writes, so its category is `editing`, not `web`."""

from __future__ import annotations

import mmap
import tempfile
from typing import Annotated, BinaryIO, cast

import anyio
import anyio.to_thread
from pydantic import Field

from gateway.net.policy import RequestLimits
from gateway.sources.builtin.decorator import Shape, Versioned, builtin
from gateway.sources.builtin.web.context import WebContext
from gateway.sources.builtin.web.web_fetch import TIMEOUT_LIMIT, Headers, Seconds, Url
from gateway.text import count_bytes
from gateway.tools import Access, Permission
from gateway.workspace import Parts, parse, show_path
from gateway.workspace.unversioned import UnversionedFiles, find_unversioned

FILE_BYTES = 64 * 1024 * 1024


class SavedFile(Shape):
    path: str
    size: int
    created: bool
    url: str = Field(description="Final URL, after redirects")
    content_type: str | None = None


async def _overwrites(context: WebContext, path: str, **_: object) -> str | None:
    def reason() -> str | None:
        with context.workspaces.root(context.call.chat) as root:
            entry = root.find(parse(path))
        if entry is None or entry.kind != "file":
            return None
        unversioned = _find_unversioned(context, parse(path))
        lost = f"; {unversioned}" if unversioned.files else ""
        return f"web_download overwrites {entry.path!r} ({count_bytes(entry.stat.st_size)}){lost}"

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
    path: Annotated[str, Field(description="File to save to, relative to the workspace root")],
    headers: Headers = None,
    create_dirs: Annotated[bool, Field(description="Create missing parent directories")] = False,
    timeout: Seconds = TIMEOUT_LIMIT,
) -> tuple[SavedFile, str, Versioned]:
    """Save a URL (GET) as a file in the workspace, byte for byte: images, archives, data. Overwriting a file asks the
    user first.

    Only allowed hosts can be reached. At most 64 MiB; the file is written whole or not at all."""
    parts = parse(path)
    limits = RequestLimits(
        bytes=FILE_BYTES, seconds=timeout, connect_seconds=min(timeout, RequestLimits.connect_seconds)
    )
    from gateway.net.download import save  # imports the HTTP client, which most processes never need

    with tempfile.TemporaryFile(prefix="toolgate-") as file:
        async with context.access.client(context.policy) as client:
            download = await save(client, url, file, limits=limits, headers=headers, progress=context.call.progress)
        file.flush()
        # Only now: other calls do not wait for the chat's files while a slow server responds.
        async with context.versions.hold(context.call.chat, context.call.caller.principal, context.call) as files:
            before = await files.save("edit")
            unversioned = await anyio.to_thread.run_sync(_find_unversioned, context, parts)
            if unversioned.files and unversioned.kept:
                await files.keep(unversioned.files, context.call.id)
            with anyio.CancelScope(shield=True):
                try:
                    async with files.changing(context.call.id):
                        created = await anyio.to_thread.run_sync(
                            _write, context, parts, file, download.bytes, create_dirs
                        )
                finally:
                    after = await files.save("tool_run", context.call.id)
    result = SavedFile(
        path=show_path(parts),
        size=download.bytes,
        created=created,
        url=download.url_final,
        content_type=download.content_type,
    )
    return (
        result,
        f"{'Created' if created else 'Overwrote'} {result.path} ({count_bytes(result.size)})."
        + (f" {unversioned}." if unversioned.files else ""),
        Versioned(before, after),
    )


def _find_unversioned(context: WebContext, parts: Parts) -> UnversionedFiles:
    with context.workspaces.root(context.call.chat) as root:
        return find_unversioned(root, context.workspaces.is_attached(context.call.chat), [parts])


def _write(context: WebContext, parts: Parts, file: BinaryIO, size: int, create_dirs: bool) -> bool:
    # Written from a mapping of the temporary file, so that it is never in memory as a whole; an empty file has none.
    content = cast("bytes", mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)) if size else b""
    with context.workspaces.root(context.call.chat) as root:
        existing = root.find(parts)
        if create_dirs and parts:
            root.make_directories(parts[:-1])
        if context.call.confirmed and existing is not None:
            root.replace(parts, content)
        else:  # nobody agreed to overwrite: a file created since the question is kept
            root.create(parts, content)
    return existing is None
