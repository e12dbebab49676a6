"""OpenAPI documents imported as toolsets: into a folder, or installed at once."""

from __future__ import annotations

import importlib
import io
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.from_thread
import anyio.to_thread

from gateway.admin.toolsets import ToolsetInfo, add_installed
from gateway.bundles.openapi import ImportChanges, ImportOptions, OpenApiImport, import_document
from gateway.bundles.rows import SourceType
from gateway.bundles.spec import FILE_NAME
from gateway.config import HttpSettings
from gateway.errors import NotFound
from gateway.net.policy import NetworkPolicy
from gateway.value import Value
from gateway.yamldoc import FAST_BYTES_LIMIT

if TYPE_CHECKING:
    from gateway.gateway import Gateway

_DOWNLOAD_SECONDS = 60.0
_SHOWN, _NOTES_SHOWN = 3, 15


class ImportReport(Value):
    """An import, the folder it was written to, and the toolset if it was installed."""

    imported: OpenApiImport
    directory: Path | None = None
    installed: ToolsetInfo | None = None

    def to_dict(self) -> dict[str, Any]:
        imported = self.imported
        return {
            "id": imported.toolset.id,
            "directory": None if self.directory is None else str(self.directory),
            "installed": self.installed is not None,
            "operations": imported.operations,
            "tools": [tool.id for tool in imported.toolset.tools],
            "tags": imported.tags,
            "skipped": imported.skipped,
            "notes": imported.notes,
            "remarks": imported.remarks,
            "variables": sorted(imported.toolset.variables()),
            "hosts": imported.hosts,
            "changes": None if imported.changes is None else asdict(imported.changes),
        }


async def read_openapi(source: str, options: ImportOptions, http: HttpSettings) -> OpenApiImport:
    """Make a toolset of a document at a path or URL, in a thread. Only public addresses are fetched, unless the
    settings allow private ones."""
    policy = NetworkPolicy(any_host=True, allow_private=http.allow_private)

    async def fetch(url: str) -> bytes:
        # Importing the HTTP client takes 0.1 s; a document in a file does not need it.
        download = importlib.import_module("gateway.net.download").download
        content = io.BytesIO()
        await download(url, content, limit=FAST_BYTES_LIMIT, timeout=_DOWNLOAD_SECONDS, policy=policy)
        return content.getvalue()

    return await anyio.to_thread.run_sync(
        import_document, source, lambda url: anyio.from_thread.run(fetch, url), options
    )


async def write_openapi(
    source: str, options: ImportOptions, http: HttpSettings, directory: Path | None, dry_run: bool = False
) -> ImportReport:
    """Write a document as the folder of a toolset; by default one of its id here. An earlier import in the folder is
    merged with it. With `dry_run` nothing is written."""
    imported = await read_openapi(source, options, http)
    directory = directory or Path(imported.toolset.id)
    if (directory / FILE_NAME).exists():
        imported = await anyio.to_thread.run_sync(imported.merge, directory)
    if not dry_run:
        await anyio.to_thread.run_sync(imported.write, directory)
    return ImportReport(imported, directory)


async def install_openapi(gateway: Gateway, source: str, options: ImportOptions, dry_run: bool = False) -> ImportReport:
    """Install a document as a toolset, merged with an earlier import of the same id. With `dry_run` nothing is
    installed."""
    imported = await read_openapi(source, options, gateway.settings.http)
    library = gateway.toolsets.library
    try:
        previous = (await library.get(imported.toolset.id)).directory
    except NotFound:
        pass
    else:
        imported = await anyio.to_thread.run_sync(imported.merge, previous)
    if dry_run:
        return ImportReport(imported)
    with tempfile.TemporaryDirectory(prefix="toolgate-openapi-") as scratch:
        await anyio.to_thread.run_sync(imported.write, Path(scratch))
        kind: SourceType = "url" if "://" in source else "local"
        installed = await library.install(Path(scratch), source_type=kind, source_ref=source, live=False)
        return ImportReport(imported, installed=await add_installed(gateway, installed))


def describe_import(report: ImportReport, dry_run: bool = False) -> Iterator[str]:
    """The report for a terminal, line by line."""
    imported = report.imported
    toolset = imported.toolset
    made = imported.operations - len(imported.skipped)
    tags = ", ".join(f"{tag} {count}" for tag, count in imported.tags.items())
    yield f"{toolset.id} {toolset.version}: {made} of {imported.operations} operations are tools ({tags})"
    reasons = Counter(imported.skipped.values())
    for reason, count in reasons.most_common():
        places = [place for place, given in imported.skipped.items() if given == reason]
        shown = ", ".join(places[:_SHOWN]) + (f" and {count - _SHOWN} more" if count > _SHOWN else "")
        yield f"not imported: {shown}: {reason}"
    noted = Counter(note for notes in imported.notes.values() for note in notes)
    for note, count in noted.most_common(_NOTES_SHOWN):
        yield f"note: {note}" + (f" ({count} tools)" if count > 1 else "")
    if len(noted) > _NOTES_SHOWN:
        yield f"note: {len(noted) - _NOTES_SHOWN} more; --json has them all, by tool"
    yield from (f"note: {remark}" for remark in imported.remarks)
    if imported.changes is not None:
        yield from _describe_changes(imported.changes)
    if dry_run:
        yield "nothing is written"
        return
    if variables := sorted(toolset.variables()):
        states = [f"{name} ({'set' if name in os.environ else 'not set'})" for name in variables]
        yield f"its requests carry variables of the environment: {', '.join(states)}"
    if imported.hosts:
        yield f"allow its hosts in toolgate.yaml: http: {{allowed_hosts: [{', '.join(imported.hosts)}]}}"
    if report.installed is not None:
        yield f"{toolset.id} is installed"
    elif report.directory is not None:
        yield f"written to {report.directory}; next: toolgate toolset install {report.directory}"


def _describe_changes(changes: ImportChanges) -> Iterator[str]:
    yield from (f"+ {tool_id}" for tool_id in changes.added)
    yield from (f"- {tool_id}" for tool_id in changes.removed)
    yield from (f"~ {tool_id}: {', '.join(fields)}" for tool_id, fields in changes.changed.items())
    yield from (f"kept {tool_id}: {', '.join(fields)}" for tool_id, fields in changes.kept.items())
    if not (changes.added or changes.removed or changes.changed):
        yield "nothing changed in the document since the earlier import"
