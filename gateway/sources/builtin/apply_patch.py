"""Applying a patch to several files: all of it, or nothing."""

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
from gateway.sources.builtin.read_files import TEXT_LIMIT, Text, read_text
from gateway.tools import Access, Permission
from gateway.workspace import Parts, Root, parse, show_path

_FILES = 200
_TOTAL = 64 * 1024 * 1024


class PatchedFile(Shape):
    path: str
    action: Action
    from_: str | None = Field(default=None, description="Where a renamed file was before")


class Patched(Shape):
    files: list[PatchedFile]


def _deletes(_: FileContext, patch: str) -> str | None:
    doomed = [file.path for file in patches.parse(patch) if file.action == "delete"]
    named = ", ".join(repr(path) for path in doomed[:10]) + (
        f" and {len(doomed) - 10} more" if len(doomed) > 10 else ""
    )
    return f"apply_patch deletes {named}" if doomed else None


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
    patch: Annotated[str, Field(max_length=8 * 1024 * 1024, description="Unified diff, as `diff -u` and git write it")],
) -> tuple[Patched, str]:
    """Apply a unified diff to files of the workspace: change, create (--- /dev/null), delete (+++ /dev/null) and
    rename them, all or none. Hunks may have moved, but their lines must match exactly. Deleting asks the user first.

    For a few changes in one file edit_file is simpler. Missing directories are made."""
    files = patches.parse(patch)
    changes = [change for file in _distinct(files) for change in _changes(context, file)]
    if (
        sum(len(change.content or b"") + (len(change.text.content) if change.text else 0) for change in changes)
        > _TOTAL
    ):
        raise Invalid(f"the patch changes more than {_TOTAL // 2**20} MiB; apply it in parts", code="FILE_TOO_LARGE")
    _Transaction(context.workspace).run(changes)
    patched = [_patched(file) for file in files]
    return Patched(files=patched), "\n".join(f"{file.action} {file.path}" for file in patched)


@dataclass(frozen=True)
class _Change:
    """One path's new content, None when it goes; `text` is what was there, None when nothing was."""

    parts: Parts
    content: bytes | None
    text: Text | None
    mode: int | None = None


def _distinct(files: list[FilePatch]) -> list[FilePatch]:
    paths = [parse(path) for file in files for path in {file.old, file.new} if path is not None]
    if len(files) > _FILES:
        raise Invalid(f"the patch has {len(files)} files; at most {_FILES} at once", code="INVALID_PATCH")
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise Invalid(f"the patch names {show_path(twice)!r} twice; put its hunks together", code="INVALID_PATCH")
    return files


def _changes(context: FileContext, file: FilePatch) -> list[_Change]:
    text = None if file.old is None else read_text(context.workspace, parse(file.old))
    body = patches.apply(file, text.body if text else "", context.check_cancelled)
    content = text.encoded(body) if text else body.encode("utf-8")
    if len(content) > TEXT_LIMIT:
        raise Invalid(f"{file.path!r} would grow beyond {TEXT_LIMIT // 2**20} MiB", code="FILE_TOO_LARGE")
    if file.action == "delete" and content:
        message = f"the patch deletes {file.path!r}, but not all of its lines; read it again"
        raise Conflict(message, code="PATCH_DOES_NOT_APPLY", path=file.path)
    changed = _Change(parse(file.path), content, text, _mode(file, text))
    if file.action == "delete":
        return [_Change(changed.parts, None, text)]
    if file.action == "rename" and text is not None:
        return [_Change(changed.parts, content, None, changed.mode), _Change(text.parts, None, text)]
    return [changed]


def _mode(file: FilePatch, text: Text | None) -> int | None:
    """Only whether it is executable is taken from a patch; the rest is the file's, or the system's default."""
    if text is None:
        return 0o755 if file.executable else None
    mode = text.stat.st_mode & 0o777
    if file.executable is None:
        return mode
    return mode | (mode & 0o444) >> 2 if file.executable else mode & ~0o111


def _patched(file: FilePatch) -> PatchedFile:
    came_from = show_path(parse(file.old)) if file.action == "rename" and file.old is not None else None
    return PatchedFile(path=show_path(parse(file.path)), action=file.action, from_=came_from)


@dataclass
class _Transaction:
    """Changes made one after the other; when one is refused, those before it are put back."""

    root: Root
    done: list[_Change] = field(default_factory=list)
    made: list[Parts] = field(default_factory=list)

    def run(self, changes: list[_Change]) -> None:
        try:
            for change in changes:
                self._make(change)
                self.done.append(change)
        except GatewayError as error:
            if lost := self._put_back():
                message = f"{error.message}; and {', '.join(lost)} could not be put back"
                raise Unavailable(message, code="PARTLY_APPLIED", paths=lost) from error
            raise
        except BaseException:
            self._put_back()
            raise

    def _make(self, change: _Change) -> None:
        if change.content is None:
            self.root.remove(change.parts, seen=change.text.stat if change.text else None)
        elif change.text is None:
            self.made += self.root.make_directories(change.parts[:-1])
            self.root.create(change.parts, change.content, change.mode)
        else:
            self.root.replace(change.parts, change.content, seen=change.text.stat, mode=change.mode)

    def _put_back(self) -> list[str]:
        """Undo what is done, last first; returns the paths where that failed."""
        lost = []
        for change in reversed(self.done):
            try:
                self._unmake(change)
            except GatewayError:
                lost.append(show_path(change.parts))
        for directory in reversed(self.made):
            with suppress(GatewayError):  # someone has put something there meanwhile
                self.root.remove(directory)
        return lost

    def _unmake(self, change: _Change) -> None:
        if change.text is None:
            self.root.remove(change.parts)
        elif change.content is None:
            self.root.create(change.parts, change.text.content, change.text.stat.st_mode)
        else:
            self.root.replace(change.parts, change.text.content, mode=change.text.stat.st_mode)
