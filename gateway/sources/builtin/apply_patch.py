"""The tool apply_patch: applies a unified diff to several files, all or none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from gateway.errors import Conflict, GatewayError, Invalid, Unavailable
from gateway.sources.builtin import patch as patches
from gateway.sources.builtin.decorator import FileContext, Shape, builtin
from gateway.sources.builtin.patch import Action, FilePatch
from gateway.sources.builtin.preview import preview_patch
from gateway.sources.builtin.read_files import TEXT_LIMIT, TextFile, read_text
from gateway.tools import Access, Permission
from gateway.value import Value
from gateway.workspace import Parts, Root, parse, show_path

_FILE_LIMIT = 200
_SIZE_LIMIT = 64 * 1024 * 1024


class PatchedFile(Shape):
    path: str
    action: Action
    from_: str | None = Field(default=None, description="Old path of a renamed file")


class PatchResult(Shape):
    files: list[PatchedFile]


def _deletes(_: FileContext, patch: str) -> str | None:
    deleted = [file.path for file in patches.parse(patch) if file.action == "delete"]
    paths = ", ".join(map(repr, deleted[:10])) + (f" and {len(deleted) - 10} more" if len(deleted) > 10 else "")
    return f"apply_patch deletes {paths}" if deleted else None


@builtin(
    title="Apply patch",
    category="editing",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    requires_confirmation=_deletes,
    destructive=True,
    path_arguments=(),
    patch_argument="patch",
    preview=preview_patch,
)
def apply_patch(
    context: FileContext,
    patch: Annotated[
        str, Field(max_length=8 * 1024 * 1024, description="Unified diff, as written by `diff -u` and git")
    ],
) -> tuple[PatchResult, str]:
    """Apply a unified diff to files of the workspace: change, create (--- /dev/null), delete (+++ /dev/null) and
    rename them, all or none. Line numbers may be off, but the lines must match exactly. Deleting asks the user first.

    For a few changes in one file edit_file is simpler. Missing directories are created."""
    files = patches.parse(patch)
    changes = [change for file in _check_files(files) for change in _plan(context, file)]
    if (
        sum(len(change.content or b"") + (len(change.text.content) if change.text else 0) for change in changes)
        > _SIZE_LIMIT
    ):
        raise Invalid(
            f"the patch changes more than {_SIZE_LIMIT // 2**20} MiB; apply it in parts", code="FILE_TOO_LARGE"
        )
    _Transaction(context.workspace).run(changes)
    patched = [_file_result(file) for file in files]
    return PatchResult(files=patched), "\n".join(f"{file.action} {file.path}" for file in patched)


class _Change(Value):
    """The new content of a path, None to remove it; `text` is the old content, None if there is no file."""

    parts: Parts
    content: bytes | None
    text: TextFile | None
    mode: int | None = None


def _check_files(files: list[FilePatch]) -> list[FilePatch]:
    paths = [parse(path) for file in files for path in {file.old, file.new} if path is not None]
    if len(files) > _FILE_LIMIT:
        raise Invalid(f"the patch has {len(files)} files; at most {_FILE_LIMIT} at once", code="INVALID_PATCH")
    repeated = next((path for path in paths if paths.count(path) > 1), None)
    if repeated is not None:
        raise Invalid(f"the patch names {show_path(repeated)!r} twice; join its hunks", code="INVALID_PATCH")
    return files


def _plan(context: FileContext, file: FilePatch) -> list[_Change]:
    text = None if file.old is None else read_text(context.workspace, parse(file.old))
    body = patches.apply(file, text.body if text else "", context.check_cancelled)
    content = text.encode(body) if text else body.encode("utf-8")
    if len(content) > TEXT_LIMIT:
        raise Invalid(f"{file.path!r} would grow beyond {TEXT_LIMIT // 2**20} MiB", code="FILE_TOO_LARGE")
    if file.action == "delete" and content:
        message = f"the patch deletes {file.path!r}, but does not remove all of its lines; read the file again"
        raise Conflict(message, code="PATCH_DOES_NOT_APPLY", path=file.path)
    changed = _Change(parse(file.path), content, text, _mode(file, text))
    if file.action == "delete":
        return [_Change(changed.parts, None, text)]
    if file.action == "rename" and text is not None:
        return [_Change(changed.parts, content, None, changed.mode), _Change(text.parts, None, text)]
    return [changed]


def _mode(file: FilePatch, text: TextFile | None) -> int | None:
    """Return the mode of a patched file. A patch decides only whether it is executable."""
    if text is None:
        return 0o755 if file.executable else None
    mode = text.stat.st_mode & 0o777
    if file.executable is None:
        return mode
    return mode | (mode & 0o444) >> 2 if file.executable else mode & ~0o111


def _file_result(file: FilePatch) -> PatchedFile:
    old_path = show_path(parse(file.old)) if file.action == "rename" and file.old is not None else None
    return PatchedFile(path=show_path(parse(file.path)), action=file.action, from_=old_path)


@dataclass
class _Transaction:
    """Applies changes one by one; when one fails, it undoes those before it."""

    root: Root
    applied: list[_Change] = field(default_factory=list)
    created_directories: list[Parts] = field(default_factory=list)

    def run(self, changes: list[_Change]) -> None:
        try:
            for change in changes:
                self._apply(change)
                self.applied.append(change)
        except GatewayError as error:
            if lost := self._undo_all():
                message = f"{error.message}; and {', '.join(lost)} could not be restored"
                raise Unavailable(message, code="PARTLY_APPLIED", paths=lost) from error
            raise
        except BaseException:
            self._undo_all()
            raise

    def _apply(self, change: _Change) -> None:
        if change.content is None:
            self.root.remove(change.parts, seen=change.text.stat if change.text else None)
        elif change.text is None:
            self.created_directories += self.root.make_directories(change.parts[:-1])
            self.root.create(change.parts, change.content, change.mode)
        else:
            self.root.replace(change.parts, change.content, seen=change.text.stat, mode=change.mode)

    def _undo_all(self) -> list[str]:
        """Undo the applied changes, last first; return the paths where that failed."""
        lost = []
        for change in reversed(self.applied):
            try:
                self._undo(change)
            except GatewayError:
                lost.append(show_path(change.parts))
        for directory in reversed(self.created_directories):
            with suppress(GatewayError):  # it is no longer empty
                self.root.remove(directory)
        return lost

    def _undo(self, change: _Change) -> None:
        if change.text is None:
            self.root.remove(change.parts)
        elif change.content is None:
            self.root.create(change.parts, change.text.content, change.text.stat.st_mode)
        else:
            self.root.replace(change.parts, change.text.content, mode=change.text.stat.st_mode)
