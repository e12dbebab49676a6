"""A chat's files for a caller of any surface: list, read, write, upload, compare, restore, branch and pack."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

from gateway.admin.workspaces import (
    UPLOAD_LIMIT,
    ChatWorkspace,
    CheckoutResult,
    ListedFile,
    VersionDiff,
    describe_entry,
    find_digest,
    list_in_tree,
)
from gateway.calls import Call, Caller, check_chat
from gateway.db.chats import ChatRow
from gateway.errors import Forbidden, Invalid, NotFound
from gateway.executor import Executor
from gateway.tools import LIST_RESOURCES, READ_RESOURCE, WRITE_RESOURCE, Tool, denied_only
from gateway.value import Value
from gateway.workspace import Entry, Parts, Root, parse, show_path
from gateway.workspace.blobs import CHUNK
from gateway.workspace.history import Version
from gateway.workspace.protected import make_protected_check, spare_protected
from gateway.workspace.tree import EXECUTABLE, LINK, Tree, changes, diff, encode
from gateway.workspace.versions import Versions
from gateway.workspace.walk import ANY_DEPTH

if TYPE_CHECKING:
    from gateway.gateway import Gateway

Result = TypeVar("Result")


class FileBackend(Protocol):
    """The parts of a gateway that files are reached through."""

    @property
    def versions(self) -> Versions: ...

    @property
    def executor(self) -> Executor: ...


class FileContent(Value):
    """A file opened for reading. `etag` changes with every change of it."""

    file: BinaryIO
    size: int
    etag: str


class FileWritten(Value):
    path: str
    size: int
    etag: str
    created: bool
    manifest_id: str | None


async def list_chats(gateway: Gateway, principal: str | None, before: str | None, limit: int) -> list[ChatRow]:
    """List chats, newest first: those of a principal, or all; `before` is the `place` of the last one already seen."""
    return await gateway.chats.list(principal, before, limit)


class ChatFiles:
    """The files of one chat for one caller. Every request passes the extensions of the executor like a call of the tool
    that does the same, so it is refused by the same rules and recorded. A folder that a person has attached is changed
    only by an administrator: nobody else can be asked here. For a model, its protected files stay as they are: only a
    tool that asks each time may change them.
    """

    def __init__(self, gateway: FileBackend, chat: str, caller: Caller, admin: bool, *, by_model: bool = False) -> None:
        self.chat = check_chat(chat)
        self._gateway = gateway
        self._versions = gateway.versions
        self._caller = caller
        self._admin = admin
        self._workspace = ChatWorkspace(gateway.versions, chat, caller.principal)
        self._hides = gateway.executor.hides(READ_RESOURCE)
        # A person restores: what rules would ask about is brought back, too.
        self._denied = denied_only(gateway.executor.hides(WRITE_RESOURCE))
        self._protected_folder = self._versions.attached_folder(chat) if by_model else None
        if self._protected_folder is not None:
            self._denied = spare_protected(self._protected_folder, self._denied)

    async def list_files(
        self, path: str = ".", *, manifest: str | None = None, recursive: bool = True, after: str = "", limit: int = 100
    ) -> list[ListedFile]:
        """List files and directories in the order of their paths, as they are now or in a version, after a path."""

        async def work() -> list[ListedFile]:
            parts, last = parse(path), parse(after) if after else ()
            if manifest is None:
                return await self._versions.in_thread(self._list_now, parts, recursive, last, limit)
            listed = list_in_tree(await self._workspace.load_tree(manifest), parts, recursive)
            visible = [file for file in listed if parse(file.path) > last and not self._hides(file.path)]
            return sorted(visible, key=lambda file: parse(file.path))[:limit]

        return await self._read("files/list", LIST_RESOURCES, {"path": path, "manifest": manifest}, work)

    async def open_file(self, path: str, manifest: str | None = None) -> FileContent:
        """Open a file as it is now or was in a version."""
        parts = parse(path)

        async def work() -> FileContent:
            if manifest is None:
                return await self._versions.in_thread(self._open_now, parts)
            digest = find_digest(await self._workspace.load_tree(manifest), parts)
            file = await self._versions.open_blob(self.chat, digest)
            return FileContent(file, _size(file), f'"{digest}"')

        return await self._read("files/read", READ_RESOURCE, {"path": path, "manifest": manifest}, work)

    async def write_file(self, path: str, content: bytes, check: Callable[[str | None], None]) -> FileWritten:
        """Write a whole file and save a version. `check` gets the entity tag of the file there is, or None, and raises
        to refuse."""
        parts = parse(path)
        if not parts:
            raise Invalid("the path names no file")

        async def work() -> FileWritten:
            async with self._versions.hold(self.chat, self._caller.principal) as files:
                await files.save("edit")
                created, etag = await self._versions.in_thread(self._replace, parts, content, check)
                manifest = await files.save("edit")
            return FileWritten(path, len(content), etag, created, manifest)

        return await self._change("files/write", {"path": path}, work)

    async def upload(self, file: Path, directory: str = ".") -> CheckoutResult:
        """Copy a file of this machine into a directory of the workspace, under its own name."""
        target = f"{directory.rstrip('/')}/{file.name}"
        return await self._change("files/upload", {"path": target}, lambda: self._workspace.upload([file], directory))

    async def get_manifest(self, message: str | None = None, manifest: str | None = None) -> dict[str, Any]:
        """Return a version with the digest of each file: of a message, by its id, or the current one."""

        async def work() -> dict[str, Any]:
            manifests = self._versions.manifests
            if manifest is not None:
                found: str | None = (await self._versions.find(self.chat, manifest)).id
            elif message is not None:
                found = await manifests.find_by_message(self.chat, message)
                if found is None and not await manifests.knows_message(self.chat, message):
                    raise NotFound(f"chat {self.chat!r} has no message {message!r}", code="MESSAGE_NOT_FOUND")
            else:
                found = (await manifests.head(self.chat)).manifest_id
            if found is None:
                raise NotFound("there is no version yet: no call has changed the files", code="MANIFEST_NOT_FOUND")
            row = await manifests.find(found)
            new, old = [await self._versions.tree(self.chat, each) for each in (row.id, row.parent_id)]
            files = {path: digest for path, digest in new.files.items() if not self._hides(path)}
            return {
                "id": row.id,
                "chat_id": row.chat_id,
                "parent_id": row.parent_id,
                "source": row.source,
                "source_ref": row.source_ref,
                "created_at": row.created_at,
                "files": files,
                "changes": asdict(changes(old, diff(old, new))),
            }

        return await self._read("manifest/get", LIST_RESOURCES, {"message": message, "manifest": manifest}, work)

    async def list_versions(self, before: str | None, limit: int) -> list[Version]:
        work = lambda: self._workspace.list_versions(before=before, limit=limit)  # noqa: E731
        return await self._read("versions/list", LIST_RESOURCES, {"before": before}, work)

    async def compare(self, from_: str | None, to: str | None, paths: Sequence[str]) -> VersionDiff:
        work = lambda: self._workspace.compare(from_, to, paths, self._hides)  # noqa: E731
        return await self._read("versions/diff", LIST_RESOURCES, {"from": from_, "to": to, "paths": list(paths)}, work)

    async def restore(self, manifest: str) -> CheckoutResult:
        """Restore the files of a version; the current ones are saved as a version first."""
        work = lambda: self._workspace.checkout(manifest, hides=self._denied)  # noqa: E731
        return await self._change("versions/restore", {"manifest": manifest}, work, used=True)

    async def undo(self) -> CheckoutResult:
        return await self._change("versions/undo", {}, lambda: self._workspace.undo(self._denied), used=True)

    async def branch(self, manifest: str, message: str) -> CheckoutResult:
        """Restore a version as a new one, the files of `message`, from which later changes branch off."""

        async def work() -> CheckoutResult:
            target = (await self._versions.find(self.chat, manifest)).id
            async with self._versions.hold(self.chat, self._caller.principal) as files:
                current = await files.save("edit")
                if await self._versions.manifests.knows_message(self.chat, message):
                    raise Invalid(f"there is a message {message!r} already; choose another id", code="MESSAGE_EXISTS")
                await self._versions.manifests.store_message(self.chat, message, None, target)
                what = await files.branch(target, message, message, self._denied)
                return CheckoutResult(files.head.manifest_id, current, what, files_left_out=len(files.left_out))

        return await self._change("versions/branch", {"manifest": manifest, "message": message}, work, used=True)

    async def pack(self, output: BinaryIO, manifest: str | None = None) -> None:
        """Write the files as a ZIP, as they are now or in a version; links and hidden files are left out."""

        async def work() -> None:
            if manifest is None:
                async with self._versions.hold(self.chat, self._caller.principal) as files:
                    tree = await self._versions.tree(self.chat, await files.save("edit"))
            else:
                tree = await self._workspace.load_tree(manifest)
            left = UPLOAD_LIMIT
            with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in self._list_packed(tree):
                    with await self._versions.open_blob(self.chat, tree.files[path]) as blob:
                        left -= await self._versions.in_thread(_pack_file, archive, path, blob, tree, left)

        await self._read("files/pack", LIST_RESOURCES, {"manifest": manifest}, work)

    def _list_packed(self, tree: Tree) -> list[str]:
        return [path for path in sorted(tree.files) if tree.meta.get(path) != LINK and not self._hides(path)]

    def _list_now(self, parts: Parts, recursive: bool, after: Parts, limit: int) -> list[ListedFile]:
        with self._versions.root(self.chat) as root:
            entry = root.find(parts) if parts else None
            if parts and entry is None:
                raise NotFound(f"there is no {'/'.join(parts)!r}", code="FILE_NOT_FOUND")
            if entry is not None and entry.kind != "directory":
                return [] if entry.parts <= after or self._is_hidden(entry) else [describe_entry(entry)]
            depth = ANY_DEPTH if recursive else 1
            with root.walk(parts, depth, lambda entry: entry.parts >= after[: len(entry.parts)]) as walk:
                later = (entry for entry in walk if entry.parts > after and not self._is_hidden(entry))
                return [describe_entry(entry) for entry in islice(later, limit)]

    def _is_hidden(self, entry: Entry) -> bool:
        return bool(self._hides(encode("/".join(entry.parts))))

    def _open_now(self, parts: Parts) -> FileContent:
        with self._versions.root(self.chat) as root:
            file = root.open(parts)
            return FileContent(file, _size(file), _etag(root, parts) or "")

    def _replace(self, parts: Parts, content: bytes, check: Callable[[str | None], None]) -> tuple[bool, str]:
        if self._protected_folder is not None and make_protected_check(self._protected_folder)("/".join(parts)):
            path = show_path(parts)
            message = f"{path!r} is a protected file of a person's folder; use write_file, which asks each time"
            raise Forbidden(message, code="PROTECTED_FILE")
        with self._versions.root(self.chat) as root:
            before = _etag(root, parts)
            check(before)
            root.make_directories(parts[:-1])
            root.replace(parts, content)
            return before is None, _etag(root, parts) or ""

    async def _read(
        self, method: str, tool: Tool, arguments: Mapping[str, Any], work: Callable[[], Awaitable[Result]]
    ) -> Result:
        await self._require_used()
        return await self._request(method, tool, arguments, work)

    async def _change(
        self, method: str, arguments: Mapping[str, Any], work: Callable[[], Awaitable[Result]], used: bool = False
    ) -> Result:
        if used:
            await self._require_used()
        if self._versions.attached_folder(self.chat) is not None and not self._admin:
            raise Forbidden("the files of an attached folder are changed by administrators only", code="ADMIN_REQUIRED")
        return await self._request(method, WRITE_RESOURCE, arguments, work)

    async def _require_used(self) -> None:
        """Refuse a chat that nobody has used; the executor refuses somebody else's, and records that."""
        with suppress(Forbidden):
            if not await self._versions.may_read(self.chat, self._caller.principal):
                raise NotFound(f"there is no chat {self.chat!r}", code="CHAT_NOT_FOUND")

    async def _request(
        self, method: str, tool: Tool, arguments: Mapping[str, Any], work: Callable[[], Awaitable[Result]]
    ) -> Result:
        access = self._caller.access
        if access is not None and not access.allows(tool.id, tool):
            raise Forbidden(f"your role or profile does not allow {tool.id}, and so not this")
        given = {name: value for name, value in arguments.items() if value is not None}
        # A list leaves hidden files out instead of asking.
        confirmed = tool is LIST_RESOURCES
        call = Call(name=method, arguments=given, chat=self.chat, caller=self._caller, confirmed=confirmed)
        results: list[Result] = []

        async def run() -> None:  # the record has no result: contents of files do not belong there
            results.append(await work())

        await self._gateway.executor.request(call, tool, run)
        return results[0]


def _etag(root: Root, parts: Parts) -> str | None:
    """Return the entity tag of a file; None if there is none."""
    revision = root.revision(parts)
    return None if revision is None else f'"{revision}"'


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _pack_file(archive: zipfile.ZipFile, path: str, blob: BinaryIO, tree: Tree, room: int) -> int:
    entry = zipfile.ZipInfo(path)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (stat.S_IFREG | (0o755 if tree.meta.get(path) == EXECUTABLE else 0o644)) << 16
    size = 0
    with archive.open(entry, "w", force_zip64=True) as target:
        while chunk := blob.read(CHUNK):
            size += len(chunk)
            if size > room:
                raise Invalid(f"the files are larger than {UPLOAD_LIMIT // 2**20} MiB together", code="TOO_LARGE")
            target.write(chunk)
    return size
