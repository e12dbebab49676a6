"""A chat's workspace: files now or in a version, the history, differences, and going back to a version."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from gateway.calls import DEFAULT_CHAT, LOCAL
from gateway.errors import Invalid, NotFound
from gateway.sources.builtin.source import load
from gateway.tools import Access, Hides, hide_nothing
from gateway.value import Value
from gateway.workspace import Entry, Parts, parse
from gateway.workspace.blobs import CHUNK
from gateway.workspace.diff import readable, summary
from gateway.workspace.globs import Selection
from gateway.workspace.history import SHORT, Version, endpoints, history
from gateway.workspace.os_errors import is_directory, is_link
from gateway.workspace.tree import EMPTY_DIRECTORY, EXECUTABLE, LINK, Changes, Tree, changes, diff, directories, encode
from gateway.workspace.unversioned import RestoredCopies
from gateway.workspace.versions import Versions
from gateway.workspace.walk import ANY_DEPTH

if TYPE_CHECKING:
    from gateway.gateway import Gateway

DIFF_LIMIT = 8 * 1024 * 1024
UPLOAD_LIMIT = 1024 * 1024 * 1024
_KINDS = {EXECUTABLE: "executable", LINK: "symlink", EMPTY_DIRECTORY: "directory"}

_SOURCES = {"edit": "changes by hand", "user_upload": "an upload", "interrupted": "an interrupted call"}

# Asked with a summary before files change; raises to refuse.
Confirm = Callable[[str], None]


class ListedFile(Value):
    """One file or directory; the size is known of files as they are now."""

    path: str
    kind: str
    size: int | None = None


class VersionDiff(Value):
    """The difference between two versions as text; `from_version` is None for the empty beginning."""

    from_version: str | None
    to_version: str | None
    text: str
    truncated: bool
    fields: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return {"from": self.from_version, "to": self.to_version, **self.fields}


class CheckoutResult(Value):
    """The version the files are at now (None for the empty beginning), the one they were at, and the changes. `undone`
    names what an undo took back, `restored` has ignored files that it brought back, and `missed` the calls since then
    that no version has. `files_left_out` is the number of files that rules deny, which stayed as they were."""

    manifest: str | None
    previous: str | None
    changes: Changes
    undone: str | None = None
    restored: RestoredCopies | None = None
    missed: tuple[str, ...] = ()
    files_left_out: int = 0

    @property
    def summary(self) -> str:
        return summary(self.changes)

    def to_dict(self) -> dict[str, Any]:
        shape: dict[str, Any] = {"manifest": self.manifest, "previous": self.previous, "changes": asdict(self.changes)}
        if self.files_left_out:
            shape["files_left_out"] = self.files_left_out
        if self.undone is None:
            return shape
        restored = {} if self.restored is None else {"restored": asdict(self.restored)}
        return {**shape, "undone": self.undone, "missed": list(self.missed), **restored}


class ChatWorkspace:
    """The workspace of a chat. Open it with `open_workspace`, or as `ChatFiles` for a caller of another surface."""

    def __init__(self, versions: Versions, chat: str, principal: str = LOCAL) -> None:
        self._versions = versions
        self._principal = principal
        self.chat = chat

    async def list_files(self, path: str, *, manifest: str | None = None, recursive: bool = False) -> list[ListedFile]:
        """List the files below a path, as they are now or in a version."""
        parts = parse(path)
        if manifest is None:
            return await self._versions.in_thread(self._list_on_disk, parts, recursive)
        return list_in_tree(await self.load_tree(manifest), parts, recursive)

    async def copy_file(self, path: str, output: BinaryIO, *, manifest: str | None = None) -> None:
        """Write a file's bytes to a stream, as they are now or in a version."""
        parts = parse(path)
        if manifest is None:
            await self._versions.in_thread(self._copy_from_disk, parts, output)
            return
        digest = find_digest(await self.load_tree(manifest), parts)
        with await self._versions.open_blob(self.chat, digest) as blob:
            await self._versions.in_thread(shutil.copyfileobj, blob, output, CHUNK)

    async def list_versions(self, *, before: str | None = None, limit: int = 20) -> list[Version]:
        """List versions, newest first; `before` is the last one already seen."""
        last = (await self._versions.find(self.chat, before)).id if before else None
        return await history(self._versions, self.chat, before=last, limit=limit)

    async def compare(
        self, from_: str | None, to: str | None, paths: Sequence[str] = (), hides: Hides = hide_nothing
    ) -> VersionDiff:
        """Compare two versions. `to` may be `now`, and is the latest version by default; `from_` is the one before."""
        before, after = await endpoints(self._versions, self.chat, self._principal, from_, to)
        old, new = [await self._versions.tree(self.chat, manifest) for manifest in (before, after)]
        result = await self._versions.compare(self.chat, old, new, Selection(paths, hides), DIFF_LIMIT)
        return VersionDiff(before, after, result.text, result.truncated, asdict(result))

    async def checkout(
        self, manifest: str, confirm: Confirm | None = None, hides: Hides = hide_nothing
    ) -> CheckoutResult:
        """Restore the files of a version, but for hidden ones; the current ones are kept as a version first."""
        target = (await self._versions.find(self.chat, manifest)).id
        async with self._versions.hold(self.chat, self._principal) as files:
            current = await files.save("edit")
        return await self._restore(target, current, confirm, hides)

    async def undo(self, hides: Hides = hide_nothing) -> CheckoutResult:
        """Restore the version before the current one, but for hidden files; unsaved edits are undone first. If the
        latest call changed only files that no version has, bring back these files."""
        manifests = self._versions.manifests
        async with self._versions.hold(self.chat, self._principal) as files:
            current = await files.save("edit")
            restored = await files.restore_kept(hides)
            head = await manifests.find(current) if current is not None else None
            if restored is not None and (head is None or restored.call != head.source_ref):
                call = await self._describe(restored.call, "tool_run")
                return CheckoutResult(current, current, Changes(), call, restored)
            target = await files.before()
        missed = await manifests.unversioned_calls(self.chat, head.id, _file_tools()) if head is not None else []
        undone = await self._describe(head.source_ref, head.source) if head is not None else None
        calls = tuple(f"{tool} of call {call}" for call, tool in missed)
        return replace(
            await self._restore(target, current, None, hides), undone=undone, restored=restored, missed=calls
        )

    async def _describe(self, call: str | None, source: str) -> str:
        """Name the call, or the change by hand, that made a version."""
        tool = (await self._versions.manifests.load_tool_names([call])).get(call) if call is not None else None
        return f"{tool} of call {call}" if tool else _SOURCES.get(source, source)

    async def upload(self, sources: Sequence[Path], directory: str = ".") -> CheckoutResult:
        """Copy files and folders of this machine into a directory of the workspace, over files of the same name, and
        save a version of them."""
        target = parse(directory)
        copies = await self._versions.in_thread(_list_uploads, sources)
        async with self._versions.hold(self.chat, self._principal) as files:
            before = await files.save("edit")
            try:
                await self._versions.in_thread(self._copy_to_disk, copies, target)
            finally:  # also what was copied before one was refused
                after = await files.save("user_upload")
        old, new = [await self._versions.tree(self.chat, manifest) for manifest in (before, after)]
        return CheckoutResult(after, before, changes(old, diff(old, new)))

    async def sweep(self) -> dict[str, Any]:
        """Remove contents that no version has used for a day; how many `blobs`, `temporary` files and `bytes`."""
        return asdict(await self._versions.sweep(self.chat))

    async def _restore(
        self, target: str | None, current: str | None, confirm: Confirm | None, hides: Hides
    ) -> CheckoutResult:
        """Restore a version after the confirmation. The chat is not locked while a person thinks."""
        old, new = [await self._versions.tree(self.chat, manifest) for manifest in (current, target)]
        planned = await self._versions.in_thread(lambda: changes(old, diff(old, new)))
        if planned and confirm is not None:
            confirm(summary(planned))
        async with self._versions.hold(self.chat, self._principal) as files:
            what = await files.checkout(target, None, hides)
            return CheckoutResult(files.head.manifest_id, current, what, files_left_out=len(files.left_out))

    async def load_tree(self, manifest: str) -> Tree:
        return await self._versions.tree(self.chat, (await self._versions.find(self.chat, manifest)).id)

    def _list_on_disk(self, parts: Parts, recursive: bool) -> list[ListedFile]:
        with self._versions.root(self.chat) as root:
            entry = root.find(parts) if parts else None
            if entry is not None and entry.kind != "directory":
                return [describe_entry(entry)]
            with root.walk(parts, ANY_DEPTH if recursive else 1) as entries:
                return [describe_entry(entry) for entry in entries]

    def _copy_to_disk(self, copies: Sequence[tuple[Path, Parts]], target: Parts) -> None:
        with self._versions.root(self.chat) as root:
            for source, parts in copies:
                path = (*target, *parts)
                root.make_directories(path[:-1])
                try:
                    root.replace(path, source.read_bytes(), mode=0o755 if source.stat().st_mode & 0o100 else 0o644)
                except OSError as error:
                    raise NotFound(f"{source} cannot be read: {error.strerror}", code="FILE_NOT_FOUND") from None

    def _copy_from_disk(self, parts: Parts, output: BinaryIO) -> None:
        with self._versions.root(self.chat) as root, root.open(parts) as file:
            shutil.copyfileobj(file, output, CHUNK)


async def open_workspace(gateway: Gateway, create: bool = False) -> ChatWorkspace:
    """Open the workspace of the gateway's chat; refused when there is no such chat, unless `create`."""
    chat = gateway.chat or DEFAULT_CHAT
    if not create and not await gateway.versions.may_read(chat, LOCAL):
        directory = gateway.settings.data_dir
        message = f"there is no chat {chat!r} in {directory}; choose one with --chat or --workspace"
        raise NotFound(message, code="CHAT_NOT_FOUND")
    return ChatWorkspace(gateway.versions, chat)


def find_folder(gateway: Gateway, chat: str) -> str | None:
    """Return the path of the attached folder that a chat works in, None if its files are the gateway's own."""
    folder = gateway.workspaces.folder(chat)
    return None if folder is None else str(folder)


def _file_tools() -> tuple[str, ...]:
    """Return the builtins that change files by name."""
    return tuple(builtin.tool.id for builtin in load("files") if builtin.tool.access is Access.WRITE)


def _list_uploads(sources: Sequence[Path]) -> list[tuple[Path, Parts]]:
    """Each file with its path below the target. Links in folders are left out."""
    copies: list[tuple[Path, Parts]] = []
    for source in sources:
        inside = sorted(source.rglob("*")) if source.is_dir() else [source]
        base = source.resolve().parent if source.is_dir() else source.parent
        for path in inside:
            if path.is_file() and (path == source or not path.is_symlink()):
                below = path.resolve().relative_to(base) if source.is_dir() else Path(path.name)
                copies.append((path, parse(below.as_posix())))
    if sum(path.stat().st_size for path, _ in copies) > UPLOAD_LIMIT:
        raise Invalid(f"the files are larger than {UPLOAD_LIMIT // 2**20} MiB together", code="TOO_LARGE")
    return copies


def short_id(manifest: str) -> str:
    """The beginning of a version's id that is still unique."""
    return manifest[:SHORT]


def describe_changes(version: Version) -> str:
    return summary(version.changes)


def describe_entry(entry: Entry) -> ListedFile:
    executable = entry.kind == "file" and entry.stat.st_mode & 0o100
    size = entry.stat.st_size if entry.kind == "file" else None
    return ListedFile(entry.path, "executable" if executable else entry.kind, size)


def list_in_tree(tree: Tree, parts: Parts, recursive: bool) -> list[ListedFile]:
    path = "/".join(map(encode, parts))
    if path in tree.files:
        return [ListedFile(readable(path), _kind(tree, path))]
    inside = list(_paths_below((*tree.files, *directories(tree)), f"{path}/" if path else "", recursive))
    if not inside and path not in directories(tree) and path:
        raise NotFound(f"{path!r} is not in that version", code="FILE_NOT_FOUND")
    return [ListedFile(readable(inner), _kind(tree, inner)) for inner in sorted(inside)]


def _paths_below(paths: Iterable[str], base: str, recursive: bool) -> Iterator[str]:
    return (path for path in paths if path.startswith(base) and (recursive or "/" not in path[len(base) :]))


def _kind(tree: Tree, path: str) -> str:
    return _KINDS.get(tree.meta.get(path, ""), "file") if path in tree.files else "directory"


def find_digest(tree: Tree, parts: Parts) -> str:
    path = "/".join(map(encode, parts))
    if path in tree.files and tree.meta.get(path) != LINK:
        return tree.files[path]
    if path in tree.files:
        raise is_link(repr(readable(path)))
    if path in directories(tree) or not path:
        raise is_directory(repr(path or "."))
    raise NotFound(f"{path!r} is not in that version", code="FILE_NOT_FOUND")
