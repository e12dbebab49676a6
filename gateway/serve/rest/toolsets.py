"""Toolsets over REST: list, show, import, export, switch, uninstall, and consent to the servers they bring."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.responses import StreamingResponse

from gateway.admin import openapi, toolsets
from gateway.bundles.openapi import ImportOptions
from gateway.errors import Invalid
from gateway.serve.rest.endpoint import (
    AnswerModel,
    Endpoint,
    ListPage,
    PageQuery,
    RequestModel,
    RestRequest,
    refuse_unreachable,
    slice_page,
)

CHUNK = 256 * 1024


class ToolsetTool(AnswerModel):
    """A tool of a toolset; `withheld` is the reason why it is not offered."""

    id: str
    title: str | None
    description: str
    category: str
    permission: str
    requires_confirmation: bool
    renderer: str | None
    withheld: str | None


class ToolsetSummary(AnswerModel):
    id: str
    name: str
    version: str
    description: str | None
    enabled: bool
    live: bool
    source_type: str
    source_ref: str | None
    installed_at: str
    digest: str
    mcp_servers: list[str]
    tool_count: int
    offered: int
    permission: Annotated[str | None, Field(description="The highest level of its tools.")]
    problem_count: int


class ToolsetProblem(AnswerModel):
    message: str
    file: str
    line: int | None


class ToolsetDetails(ToolsetSummary):
    """`servers` need the consent of a person, by their digests, before they are started. `manifest` is its
    toolset.yaml, which the lines of problems are in."""

    dependencies: Any
    variables: list[str]
    tools: list[ToolsetTool]
    servers: list[dict[str, Any]]
    problems: list[ToolsetProblem]
    manifest: str


class NamesChanged(AnswerModel):
    added: list[str]
    changed: list[str]
    removed: list[str]


class ToolsetDifference(AnswerModel):
    id: str
    name: str
    version: str
    installed_version: str | None
    changed: bool
    files: NamesChanged
    tools: NamesChanged
    servers: NamesChanged
    levels: Annotated[dict[str, str | None], Field(description="By tool; null where only its code has it.")]
    variables: Annotated[list[str], Field(description="Secrets and settings that it wants from the environment.")]
    commands: Annotated[dict[str, dict[str, str]], Field(description="Servers that it would start or reach.")]


class UpdateAnswer(AnswerModel):
    dry_run: bool
    difference: ToolsetDifference


class OpenApiBody(RequestModel):
    """A document by its `url`, or its text."""

    url: Annotated[str | None, Field(pattern=r"^https?://[^\s/]+", max_length=4000)] = None
    document: Annotated[str | None, Field(min_length=1, max_length=10_000_000)] = None
    id: Annotated[str | None, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")] = None
    tags: Annotated[list[str], Field(max_length=200)] = []
    server: Annotated[str | None, Field(max_length=2000)] = None


class OpenApiAnswer(AnswerModel):
    """The report of an import. `skipped` has the reason for each operation that is no tool."""

    id: str
    installed: bool
    operations: int
    tools: list[str]
    tags: dict[str, int]
    skipped: dict[str, str]
    notes: dict[str, list[str]]
    remarks: list[str]
    variables: list[str]
    hosts: list[str]
    changes: dict[str, Any] | None


class ImportAnswer(AnswerModel):
    """`toolset` is null after a dry run. `hints` name what a person must still do."""

    dry_run: bool
    difference: ToolsetDifference
    toolset: ToolsetDetails | None
    hints: list[str]


class ImportQuery(RequestModel):
    dry_run: Annotated[bool, Field(description="Only answer what would change.")] = False


class ImportUrl(RequestModel):
    url: Annotated[str, Field(pattern=r"^https?://[^\s/]+", max_length=4000)]


class Switch(RequestModel):
    enabled: bool


class SecretBody(RequestModel):
    value: Annotated[str, Field(min_length=1, max_length=64 * 1024)]


class ServerDigests(RequestModel):
    """The servers to allow, each by the digest that was shown."""

    digests: Annotated[dict[str, str], Field(min_length=1, max_length=100)]


class ConsentAnswer(AnswerModel):
    """`results` says of each server how many tools it has, or why it did not answer."""

    toolset: ToolsetDetails
    results: dict[str, str]


async def list_toolsets(request: RestRequest, query: PageQuery) -> object:
    """List installed toolsets"""
    infos = await toolsets.list_toolsets(request.gateway)
    listed = [{**info.to_dict(), "problem_count": len(info.problems)} for info in infos]
    return slice_page(listed, lambda info: info["id"], query, "toolsets")


async def get_toolset(request: RestRequest, toolset_id: str) -> object:
    """Get a toolset with its tools"""
    return _describe(await toolsets.show_toolset(request.gateway, toolset_id))


async def import_toolset(
    request: RestRequest, query: ImportQuery, body: ImportUrl | None, form: FormData | None
) -> object:
    """Install a toolset from an uploaded ZIP file or a URL, or a new version of one

    Send the ZIP as the part `file` of a multipart form, or JSON with a `url`. MCP servers that it brings wait for
    consent.
    """
    if body is not None:
        with refuse_unreachable():
            return await _install(request, body.url, None, query.dry_run)
    async with save_upload(form, ".zip") as (path, name):
        return await _install(request, str(path), name, query.dry_run)


@asynccontextmanager
async def save_upload(form: FormData | None, suffix: str) -> AsyncIterator[tuple[Path, str]]:
    """Yield the path of a temporary file with the part `file` of a form, and the name it was sent with."""
    upload = form.get("file") if form is not None else None
    if not isinstance(upload, UploadFile):
        raise Invalid("the form has no file part named 'file'", code="INVALID_FORM")
    with tempfile.NamedTemporaryFile(prefix="toolgate-", suffix=suffix) as file:
        await run_in_threadpool(shutil.copyfileobj, upload.file, file, CHUNK)
        file.flush()
        yield Path(file.name), Path((upload.filename or "").replace("\\", "/")).name[:200] or "an upload"


async def _install(request: RestRequest, source: str, name: str | None, dry_run: bool) -> dict[str, Any]:
    gateway = request.gateway
    difference = await toolsets.compare_toolset(gateway, source)
    if dry_run:
        return {"dry_run": True, "difference": difference, "toolset": None, "hints": []}
    info = await toolsets.install_toolset(gateway, source, copy=True, name=name)
    await gateway.reload()
    return {"dry_run": False, "difference": difference, "toolset": _describe(info), "hints": list(info.hints)}


def _describe(info: toolsets.ToolsetInfo) -> dict[str, Any]:
    problems = info.problems
    return {**info.to_dict(), "problems": problems, "problem_count": len(problems), "manifest": info.manifest}


async def import_openapi(request: RestRequest, query: ImportQuery, body: OpenApiBody) -> object:
    """Install an OpenAPI document as a toolset with one tool per operation"""
    options = ImportOptions(toolset_id=body.id, tags=body.tags, server=body.server)
    with tempfile.NamedTemporaryFile(prefix="toolgate-", suffix=".yaml") as file:
        if (body.url is None) == (body.document is None):
            raise Invalid("send either a 'url' or a 'document'", code="INVALID_REQUEST")
        if body.document is not None:
            await run_in_threadpool(Path(file.name).write_text, body.document)
        with refuse_unreachable():
            report = await openapi.install_openapi(request.gateway, body.url or file.name, options, query.dry_run)
    if not query.dry_run:
        await request.gateway.reload()
    return report.to_dict()


async def update_toolset(request: RestRequest, toolset_id: str, query: ImportQuery) -> object:
    """Install a toolset again from the folder or URL it came from"""
    with refuse_unreachable():
        difference = await toolsets.update_toolset(request.gateway, toolset_id, query.dry_run)
    await request.gateway.reload()
    return {"dry_run": query.dry_run, "difference": difference}


async def export_toolset(request: RestRequest, toolset_id: str) -> object:
    """Download a toolset as a ZIP file, without secret values"""
    info = await toolsets.show_toolset(request.gateway, toolset_id)
    file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it is sent
    try:
        await toolsets.export_toolset(request.gateway, toolset_id, file)
    except BaseException:
        file.close()
        raise
    return send_zip(file, f"{info.id}-{info.installed.spec.version}.zip")


def send_zip(file: BinaryIO, name: str) -> StreamingResponse:
    """Return a response that sends a temporary file and closes it."""
    size = file.tell()
    file.seek(0)
    headers = {"content-disposition": f'attachment; filename="{name}"', "content-length": str(size)}
    return StreamingResponse(read_all(file), media_type="application/zip", headers=headers)


def read_all(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file, and close it."""
    with file:
        while chunk := file.read(CHUNK):
            yield chunk


async def enable_toolset(request: RestRequest, toolset_id: str, body: Switch) -> object:
    """Turn a toolset on or off"""
    await toolsets.enable_toolset(request.gateway, toolset_id, body.enabled)
    await request.gateway.reload()
    return _describe(await toolsets.show_toolset(request.gateway, toolset_id))


async def uninstall_toolset(request: RestRequest, toolset_id: str) -> object:
    """Remove a toolset, its files and the changes to its tools"""
    await toolsets.uninstall_toolset(request.gateway, toolset_id)
    await request.gateway.reload()
    return None


async def allow_toolset_servers(request: RestRequest, toolset_id: str, body: ServerDigests) -> object:
    """Consent to MCP servers of a toolset, and connect to each once"""
    info, results = await toolsets.allow_servers(request.gateway, toolset_id, body.digests, request.principal.id)
    return {"toolset": _describe(info), "results": results}


async def disallow_toolset_servers(request: RestRequest, toolset_id: str) -> object:
    """Withdraw consent to the MCP servers of a toolset"""
    await toolsets.disallow_servers(request.gateway, toolset_id)
    await request.gateway.reload()
    return _describe(await toolsets.show_toolset(request.gateway, toolset_id))


async def set_toolset_secret(request: RestRequest, toolset_id: str, variable: str, body: SecretBody) -> object:
    """Keep the value of a secret that a toolset declares; its next call uses it"""
    await toolsets.keep_secret(request.gateway, toolset_id, variable, lambda _: body.value)
    return None


async def forget_toolset_secret(request: RestRequest, toolset_id: str, variable: str) -> object:
    """Forget the kept value of a secret"""
    await toolsets.forget_secret(request.gateway, toolset_id, variable)
    return None


_ONE = "/api/toolsets/{toolset_id}"
ENDPOINTS = [
    Endpoint("GET", "/api/toolsets", list_toolsets, ListPage[ToolsetSummary], admin=True),
    Endpoint("GET", _ONE, get_toolset, ToolsetDetails, admin=True),
    Endpoint("POST", "/api/toolsets/import", import_toolset, ImportAnswer, admin=True, errors=(404, 409, 422)),
    Endpoint("POST", "/api/openapi-imports", import_openapi, OpenApiAnswer, admin=True, errors=(409, 422)),
    Endpoint("POST", f"{_ONE}/update", update_toolset, UpdateAnswer, admin=True, errors=(409, 422)),
    Endpoint("GET", f"{_ONE}/export", export_toolset, media="application/zip", admin=True),
    Endpoint("POST", f"{_ONE}/enable", enable_toolset, ToolsetDetails, admin=True),
    Endpoint("POST", f"{_ONE}/uninstall", uninstall_toolset, admin=True),
    Endpoint("PUT", f"{_ONE}/secrets/{{variable}}", set_toolset_secret, admin=True),
    Endpoint("DELETE", f"{_ONE}/secrets/{{variable}}", forget_toolset_secret, admin=True),
    Endpoint("POST", f"{_ONE}/servers/allow", allow_toolset_servers, ConsentAnswer, admin=True, errors=(409,)),
    Endpoint("POST", f"{_ONE}/servers/disallow", disallow_toolset_servers, ToolsetDetails, admin=True),
]
