"""Chats' files over REST: list, read, write, upload, history, differences, restore, branch, download."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response, StreamingResponse

from gateway.admin import chat_files
from gateway.admin.chat_files import ChatFiles
from gateway.admin.workspaces import find_folder
from gateway.errors import Invalid
from gateway.serve.mcp.resources import media_type
from gateway.serve.rest.app import PreconditionFailed, is_current
from gateway.serve.rest.endpoint import (
    AnswerModel,
    Endpoint,
    ListPage,
    PageQuery,
    Reply,
    RequestModel,
    RestRequest,
    decode_token,
    make_page,
)
from gateway.serve.rest.tools import Chat, MessageId
from gateway.serve.rest.toolsets import CHUNK, read_all, send_zip
from gateway.tools import Permission

# A file is untrusted: as a page it may do nothing on the origin of the console.
_FILE_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"

# Bytes of a file that are shown; highlighting makes six times as many of them.
_PREVIEW_BYTES = 256 * 1024

FilePath = Annotated[str, Field(min_length=1, max_length=4096)]
ManifestId = Annotated[str, Field(min_length=4, max_length=64, description="Id of a version, or a unique prefix.")]


class ChatInfo(AnswerModel):
    """A chat: its owner, the path of its folder if one is attached, the version that its files are at, and its latest
    message."""

    id: str
    folder: str | None
    principal: str
    created_at: str
    manifest_id: str | None
    message_id: str | None


class FileInfo(AnswerModel):
    """`size` is known of files as they are now."""

    path: str
    kind: str
    size: int | None


class FilePreview(AnswerModel):
    """A file to be shown. `html` is safe: highlighted code, or a document; null for what is no text. `truncated` says
    that it shows the beginning only."""

    path: str
    kind: Literal["code", "document", "image", "binary"]
    media_type: str
    size: int
    etag: str
    language: str | None
    html: str | None
    truncated: bool


class PreviewQuery(RequestModel):
    manifest: Annotated[ManifestId | None, Field(description="Of this version; by default as it is now.")] = None
    source: Annotated[bool, Field(description="A document as code too.")] = False


class FileQuery(PageQuery):
    path: FilePath = "."
    manifest: ManifestId | None = None
    recursive: bool = True


class ManifestQuery(RequestModel):
    message_id: MessageId | None = None
    manifest: ManifestId | None = None


class VersionQuery(RequestModel):
    manifest: Annotated[ManifestId | None, Field(description="Of this version; by default as it is now.")] = None


class FileChanges(AnswerModel):
    added: list[str]
    changed: list[str]
    deleted: list[str]


class ManifestDetails(AnswerModel):
    """A version: the SHA-256 of each file by its path, and what it changed against its parent."""

    id: str
    chat_id: str
    parent_id: str | None
    source: str
    source_ref: str | None
    created_at: str
    files: dict[str, str]
    changes: FileChanges


class WrittenFile(AnswerModel):
    path: str
    size: int
    etag: str
    created: bool
    manifest_id: str | None


class VersionInfo(AnswerModel):
    id: str
    parent: str | None
    created: str
    source: str
    source_ref: str | None
    message: str | None
    head: bool
    tool: str | None
    changes: FileChanges


class DiffQuery(RequestModel):
    from_: Annotated[ManifestId | None, Field(alias="from", description="By default the parent of `to`.")] = None
    to: Annotated[str | None, Field(min_length=3, max_length=64, description="A version, or `now`.")] = None
    path: Annotated[list[FilePath], Field(max_length=100, description="Files, directories or globs.")] = []


class DiffAnswer(AnswerModel):
    """`diff` is in git's format."""

    from_: Annotated[str | None, Field(alias="from")]
    to: str | None
    diff: str
    truncated: bool


class RestoreBody(RequestModel):
    manifest: ManifestId


class BranchBody(RequestModel):
    manifest: ManifestId
    message_id: MessageId


class CheckoutAnswer(AnswerModel):
    """The version that the files are at now, the one they were at, and what changed. `files_left_out` is the number of
    files that rules deny, which stayed as they were."""

    manifest: str | None
    previous: str | None
    changes: FileChanges
    files_left_out: int = 0


def _open(request: RestRequest, chat: str) -> ChatFiles:
    return ChatFiles(request.gateway, chat, request.caller, request.principal.admin)


async def list_chats(request: RestRequest, query: PageQuery) -> object:
    """List chats, newest first; all for administrators, your own otherwise"""
    owner = None if request.principal.admin else request.principal.id
    chats = await chat_files.list_chats(
        request.gateway, owner, decode_token("chats", query.page_token), query.limit + 1
    )
    page = make_page(chats, lambda chat: chat.place, query.limit, "chats")
    items = [{**asdict(chat), "folder": find_folder(request.gateway, chat.id)} for chat in page["items"]]
    return {**page, "items": items}


async def get_workspace_files(request: RestRequest, chat: Chat, query: FileQuery) -> object:
    """List the files in a chat's workspace, in the order of their paths"""
    after = decode_token("files", query.page_token) or ""
    files = await _open(request, chat).list_files(
        query.path, manifest=query.manifest, recursive=query.recursive, after=after, limit=query.limit + 1
    )
    return make_page(files, lambda file: file.path, query.limit, "files")


async def get_workspace_file(request: RestRequest, chat: Chat, path: FilePath, query: VersionQuery) -> object:
    """Read a file

    The ETag is for `If-Match` when you write it.
    """
    content = await _open(request, chat).open_file(path, query.manifest)
    headers = {
        "etag": content.etag,
        "content-length": str(content.size),
        "content-security-policy": _FILE_POLICY,
        "x-content-type-options": "nosniff",
    }
    if is_current(request.scope, content.etag) or request.scope["method"] == "HEAD":
        content.file.close()
        current = is_current(request.scope, content.etag)
        return Response(status_code=304 if current else 200, headers={"etag": content.etag} if current else headers)
    kind = media_type(path) or "application/octet-stream"
    return StreamingResponse(read_all(content.file), media_type=kind, headers=headers)


async def preview_workspace_file(request: RestRequest, chat: Chat, path: FilePath, query: PreviewQuery) -> object:
    """Get a file as HTML: code with its syntax highlighted, Markdown as a document"""
    content = await _open(request, chat).open_file(path, query.manifest)
    with content.file as file:
        beginning = await run_in_threadpool(file.read, _PREVIEW_BYTES)
    kind = media_type(path) or "text/plain"
    facts = {"path": path, "media_type": kind, "size": content.size, "etag": content.etag, "language": None}
    facts |= {"truncated": len(beginning) < content.size, "html": None, "kind": "binary"}
    if kind.startswith("image/") and (kind != "image/svg+xml" or not query.source):
        return facts | {"kind": "image"}
    if b"\0" in beginning:
        return facts
    is_document = kind == "text/markdown" and not query.source
    language, html = await run_in_threadpool(_render, beginning, path, is_document)
    return facts | {"kind": "document" if is_document else "code", "language": language, "html": html}


def _render(content: bytes, path: str, is_document: bool) -> tuple[str | None, str]:
    # Imported here, in a thread: it imports Pygments and markdown-it, which would delay the start.
    from gateway.render.highlight import PLAIN, highlight
    from gateway.render.pages import HIGHLIGHT_LIMIT, to_html

    text = content.decode("utf-8", "replace").removeprefix("\ufeff")
    if is_document:
        return None, to_html(text)
    code = highlight(text, "auto" if len(text) <= HIGHLIGHT_LIMIT else PLAIN, path)
    return code.language, code.html


async def write_workspace_file(request: RestRequest, chat: Chat, path: FilePath, content: bytes) -> object:
    """Write a whole file; the body is its content

    `If-Match` with the ETag of the file refuses to overwrite somebody else's change, `If-None-Match: *` any file.
    """
    headers = request.headers
    wanted, unwanted = headers.get("if-match"), headers.get("if-none-match")

    def check(etag: str | None) -> None:
        if unwanted is not None and etag is not None and ("*" in unwanted or etag in unwanted):
            raise PreconditionFailed(f"{path!r} exists already")
        if wanted is not None and (etag is None or not (wanted.strip() == "*" or etag in wanted)):
            raise PreconditionFailed(f"{path!r} was changed by somebody else, or is gone; read it again", etag=etag)

    written = await _open(request, chat).write_file(path, content, check)
    return Reply(written, status=201 if written.created else 200, headers={"ETag": written.etag})


async def upload_workspace_file(request: RestRequest, chat: Chat, form: FormData) -> object:
    """Upload a file into a chat's workspace, as the part `file` of a form; the field `directory` is optional"""
    upload, directory = form.get("file"), form.get("directory", ".")
    if not isinstance(upload, UploadFile) or not isinstance(directory, str):
        raise Invalid("the form has no file part named 'file'", code="INVALID_FORM")
    name = Path((upload.filename or "").replace("\\", "/")).name
    if not name or name in (".", "..") or "\0" in name or len(name.encode(errors="replace")) > 255:
        raise Invalid("the file part has no usable filename", code="INVALID_FORM")
    with tempfile.TemporaryDirectory(prefix="toolgate-") as scratch:
        target = Path(scratch, name)
        await run_in_threadpool(_save, upload.file, target)
        return await _open(request, chat).upload(target, directory or ".")


async def get_workspace_manifest(request: RestRequest, chat: Chat, query: ManifestQuery) -> object:
    """Get the version of the files that belongs to a message, or the current one"""
    return await _open(request, chat).get_manifest(query.message_id, query.manifest)


async def list_workspace_versions(request: RestRequest, chat: Chat, query: PageQuery) -> object:
    """List the versions of a chat's files, newest first, with what each changed"""
    before = decode_token("versions", query.page_token)
    versions = await _open(request, chat).list_versions(before, query.room + 1)
    return make_page(versions, lambda version: version.id, query.room, "versions")


async def compare_workspace_versions(request: RestRequest, chat: Chat, query: DiffQuery) -> object:
    """Compare two versions of a chat's files"""
    found = await _open(request, chat).compare(query.from_, query.to, query.path)
    return {"from": found.from_version, "to": found.to_version, "diff": found.text, "truncated": found.truncated}


async def restore_workspace(request: RestRequest, chat: Chat, body: RestoreBody) -> object:
    """Restore the files of a version; the current ones are saved as a version first"""
    return await _open(request, chat).restore(body.manifest)


async def undo_workspace(request: RestRequest, chat: Chat) -> object:
    """Restore the version before the current one"""
    return await _open(request, chat).undo()


async def branch_workspace(request: RestRequest, chat: Chat, body: BranchBody) -> object:
    """Restore a version as the files of a new message, from which later changes branch off"""
    return await _open(request, chat).branch(body.manifest, body.message_id)


async def download_workspace(request: RestRequest, chat: Chat, query: VersionQuery) -> object:
    """Download a chat's files as a ZIP"""
    file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it is sent
    try:
        await _open(request, chat).pack(file, query.manifest)
        file.seek(0, 2)
    except BaseException:
        file.close()
        raise
    return send_zip(file, "workspace.zip")


def _save(file: BinaryIO, target: Path) -> None:
    with target.open("wb") as output:
        shutil.copyfileobj(file, output, CHUNK)


_ONE = "/api/chats/{chat}"
_WRITE = Permission.READ_WRITE
ENDPOINTS = [
    Endpoint("GET", "/api/chats", list_chats, ListPage[ChatInfo]),
    Endpoint("GET", f"{_ONE}/files", get_workspace_files, ListPage[FileInfo], errors=(403, 404)),
    Endpoint("GET", f"{_ONE}/files/{{+path}}", get_workspace_file, media="application/octet-stream", errors=(403,)),
    Endpoint("GET", f"{_ONE}/preview/{{+path}}", preview_workspace_file, FilePreview, errors=(403,)),
    Endpoint(
        "PUT",
        f"{_ONE}/files/{{+path}}",
        write_workspace_file,
        WrittenFile,
        permission=_WRITE,
        errors=(409, 412),
        responses={201: WrittenFile},
    ),
    Endpoint("POST", f"{_ONE}/upload", upload_workspace_file, CheckoutAnswer, permission=_WRITE, errors=(409,)),
    Endpoint("GET", f"{_ONE}/manifest", get_workspace_manifest, ManifestDetails, errors=(403, 409)),
    Endpoint("GET", f"{_ONE}/versions", list_workspace_versions, ListPage[VersionInfo], errors=(403, 409)),
    Endpoint("GET", f"{_ONE}/diff", compare_workspace_versions, DiffAnswer, errors=(403, 409)),
    Endpoint("POST", f"{_ONE}/restore", restore_workspace, CheckoutAnswer, permission=_WRITE, errors=(409,)),
    Endpoint("POST", f"{_ONE}/undo", undo_workspace, CheckoutAnswer, permission=_WRITE, errors=(409,)),
    Endpoint("POST", f"{_ONE}/branch", branch_workspace, CheckoutAnswer, permission=_WRITE, errors=(409,)),
    Endpoint("GET", f"{_ONE}/archive", download_workspace, media="application/zip", errors=(403, 409)),
]
