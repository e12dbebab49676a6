"""A chat's versions: which there are, how two of them differ, and any of them back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import anyio
from pydantic import Field

from gateway.errors import Conflict, Invalid, NotFound
from gateway.sources.builtin.decorator import Shape, VersionContext, Versioned, builtin, hidden_files_note
from gateway.tools import Access, Permission
from gateway.workspace.diff import FILES_LIMIT, Difference, Status, readable, summary
from gateway.workspace.globs import Selection, restore_selection
from gateway.workspace.history import SHORT, Version, endpoints, history
from gateway.workspace.tree import Changes, Tree, changes, diff
from gateway.workspace.versions import HeldChat

_PATHS_NAMED = 20

Id = Annotated[str, Field(min_length=4, description="Id of a version, or the beginning of it that no other has")]
Paths = Annotated[
    list[str] | None,
    Field(min_length=1, max_length=1000, description="Only these files, directories or globs; else all"),
]


class Touched(Shape):
    count: int
    paths: list[str] = Field(description="The first 20")


class Summary(Shape):
    added: Touched | None = None
    changed: Touched | None = None
    deleted: Touched | None = None


class Entry(Shape):
    id: str
    parent: str | None = None
    created: str
    source: str = Field(description="tool_run, edit (by hand, or files brought back), interrupted")
    source_ref: str | None = Field(None, description="The call that made it")
    message: str | None = None
    head: bool | None = Field(None, description="true: the files are at this version")
    changes: Summary


class History(Shape):
    versions: list[Entry]
    more: bool


@builtin(
    title="Workspace history",
    category="filesystem",
    permission=Permission.READ_ONLY,
    access=Access.NONE,
)
async def workspace_history(
    context: VersionContext,
    limit: Annotated[int, Field(ge=1, le=200, description="How many versions at most")] = 20,
    before: Annotated[str | None, Field(min_length=4, description="Only versions before this one, to page on")] = None,
) -> tuple[History, str]:
    """List the versions of the workspace's files, newest first, with what each changed against its parent.

    Every call that changes files leaves one; so do edits by hand. workspace_diff shows what is in a change,
    workspace_restore brings a version back."""
    await _stand(context)
    versions, chat = context.versions, context.call.chat
    last = (await versions.find(chat, before)).id if before else None
    found = await history(versions, chat, before=last, limit=limit + 1)
    answer = History(versions=[_entry(version) for version in found[:limit]], more=len(found) > limit)
    lines = [_line(version) for version in found[:limit]]
    if answer.more:
        lines.append(f"Older ones: before={found[limit - 1].id[:SHORT]}")
    return answer, "\n".join(lines) or "No versions yet: no call has changed the files."


class FileDifference(Shape):
    path: str
    status: Status
    was: str | None = Field(None, description="Where a renamed file was before")
    note: str | None = None


class Diff(Shape):
    from_: str | None = None
    to: str | None = None
    files: list[FileDifference]
    diff: str = Field(description="In git's format")
    truncated: bool
    files_left_out: int | None = Field(None, description="Files the operator's rules keep from being read")


@builtin(
    title="Workspace diff",
    category="filesystem",
    permission=Permission.READ_ONLY,
    access=Access.NONE,
)
async def workspace_diff(
    context: VersionContext,
    from_: Annotated[str | None, Field(min_length=4, description="Version; else the parent of the other")] = None,
    to: Annotated[
        str | None, Field(min_length=3, description="Version, or 'now' for the files as they are; else the latest")
    ] = None,
    paths: Paths = None,
) -> tuple[Diff, str]:
    """Show how two versions of the workspace's files differ, as a unified diff; without arguments, what the
    latest version changed. Ids come from workspace_history; the beginning of one is enough.

    Files of more than 1 MiB, and those that are no text, are named with their sizes. Cut after 64 KiB."""
    await _stand(context)
    versions, chat = context.versions, context.call.chat
    before, after = await endpoints(versions, chat, context.call.caller.principal, from_, to)
    old, new = await versions.tree(chat, before), await versions.tree(chat, after)
    selection = Selection(paths or (), context.hides)
    found = await versions.compare(chat, old, new, selection)
    files = [FileDifference(**vars(each)) for each in found.files]
    answer = Diff(
        from_=before,
        to=after,
        files=files,
        diff=found.text,
        truncated=found.truncated,
        files_left_out=len(selection.left_out) or None,
    )
    notes = [*(_cut() if found.truncated else []), *hidden_files_note(len(selection.left_out))]
    return answer, "\n".join([_heading(before, after, found.files), found.text, *notes])


class Restored(Shape):
    manifest: str | None = Field(None, description="The version the files are at now; none: no files")
    previous: str | None = Field(None, description="The version they were at before; restore it to go back")
    changes: Summary


async def _restores(context: VersionContext, manifest: str, paths: list[str] | None) -> str | None:
    earlier = (await context.versions.find(context.call.chat, manifest)).id
    what = await _would_change(context, earlier, paths)
    return f"workspace_restore brings back version {earlier[:SHORT]}: {summary(what)}" if what else None


@builtin(
    title="Restore workspace",
    category="editing",
    permission=Permission.READ_WRITE,
    access=Access.NONE,
    requires_confirmation=_restores,
    destructive=True,
    idempotent=True,
)
async def workspace_restore(
    context: VersionContext, manifest: Id, paths: Paths = None
) -> tuple[Restored, str, Versioned]:
    """Bring the workspace's files back as they were in an earlier version. Asks the user first when files change.

    Nothing is lost: what the files are now stays a version, and the answer has its id. With paths only those
    are brought back, as a new version on top of the latest; without, later changes go on from that version."""
    earlier = (await context.versions.find(context.call.chat, manifest)).id
    async with _held(context) as files:
        previous = await files.save("edit")
        target = await _target(context, previous, earlier, paths)
        await _require_consent(context, previous, target)
        with anyio.CancelScope(shield=True):
            if paths is None:
                what = await files.checkout(earlier)
            else:
                what = await files.put(target, "edit", context.call.id)
        return _restored(previous, files.head.manifest_id, what)


async def _branches(context: VersionContext, manifest: str | None, message: str | None) -> str | None:
    earlier = await _place(context, manifest, message)
    what = await _would_change(context, earlier, None)
    return f"workspace_branch goes to {_named(earlier)}: {summary(what)}" if what else None


@builtin(
    title="Branch workspace",
    category="editing",
    permission=Permission.READ_WRITE,
    access=Access.NONE,
    requires_confirmation=_branches,
    destructive=True,
    idempotent=True,
)
async def workspace_branch(
    context: VersionContext,
    manifest: Annotated[str | None, Field(min_length=4, description="Version to go on from")] = None,
    message: Annotated[str | None, Field(min_length=1, description="Or the message after which to go on")] = None,
) -> tuple[Restored, str, Versioned]:
    """Go on from an earlier version of the workspace's files, or from where they were after a message: later changes
    branch off there. Asks the user first when files change.

    Nothing is lost: the branch that is left stays as it is, and the answer has its id."""
    earlier = await _place(context, manifest, message)
    async with _held(context) as files:
        previous = await files.save("edit")
        await _require_consent(context, previous, await context.versions.tree(context.call.chat, earlier))
        with anyio.CancelScope(shield=True):
            # a call that names its own message stays with it: that message has these files from now on
            what = await files.checkout(earlier, message if context.call.message is None else None)
        return _restored(previous, files.head.manifest_id, what)


@asynccontextmanager
async def _held(context: VersionContext) -> AsyncIterator[HeldChat]:
    """Alone with the chat's files, standing where the call's message stands."""
    call = context.call
    async with context.versions.hold(call.chat, call.caller.principal) as files:
        if call.message is not None:
            await files.switch(call.message, call.parent_message)
        yield files


async def _stand(context: VersionContext) -> None:
    if context.call.message is not None:
        async with _held(context):
            pass


async def _place(context: VersionContext, manifest: str | None, message: str | None) -> str | None:
    versions, chat = context.versions, context.call.chat
    if (manifest is None) == (message is None):
        raise Invalid("workspace_branch: give 'manifest' or 'message', one of them")
    if manifest is not None:
        return (await versions.find(chat, manifest)).id
    if not await versions.manifests.knows_message(chat, str(message)):
        raise NotFound(f"chat {chat!r} has no message {message!r}", code="MESSAGE_NOT_FOUND")
    return await versions.manifests.of_message(chat, str(message))


async def _would_change(context: VersionContext, earlier: str | None, paths: list[str] | None) -> Changes:
    """What a restore would do to the files as they are, which are kept as a version to be compared."""
    call = context.call
    async with context.versions.hold(call.chat, call.caller.principal) as files:
        current = await files.save("edit")
    return await _difference(context, current, await _target(context, current, earlier, paths))


async def _require_consent(context: VersionContext, current: str | None, target: Tree) -> None:
    """Nobody was asked because nothing would have changed; by now it would."""
    if not context.call.confirmed and await _difference(context, current, target):
        raise Conflict("the files were changed by someone else meanwhile; call it again, and the user is asked")


async def _target(context: VersionContext, current: str | None, earlier: str | None, paths: list[str] | None) -> Tree:
    versions, chat = context.versions, context.call.chat
    tree = await versions.tree(chat, earlier)
    if paths is None:
        return tree
    return await versions.in_thread(restore_selection, await versions.tree(chat, current), tree, Selection(paths))


async def _difference(context: VersionContext, current: str | None, target: Tree) -> Changes:
    tree = await context.versions.tree(context.call.chat, current)
    return await context.versions.in_thread(lambda: changes(tree, diff(tree, target)))


def _restored(previous: str | None, manifest: str | None, what: Changes) -> tuple[Restored, str, Versioned]:
    answer = Restored(manifest=manifest, previous=previous, changes=_summary(what))
    if not what:
        return answer, f"The files are those of {_named(manifest)} already.", Versioned(previous, manifest)
    text = f"The files are at {_named(manifest)} now: {summary(what)}. They were at {_named(previous)}."
    return answer, text, Versioned(previous, manifest)


def _summary(what: Changes) -> Summary:
    return Summary(**{name: _touched(paths) for name, paths in vars(what).items() if paths})


def _touched(paths: Sequence[str]) -> Touched:
    return Touched(count=len(paths), paths=[readable(path) for path in paths[:_PATHS_NAMED]])


def _entry(version: Version) -> Entry:
    return Entry(
        id=version.id,
        parent=version.parent,
        created=version.created,
        source=version.source,
        source_ref=version.source_ref,
        message=version.message,
        head=version.head or None,
        changes=_summary(version.changes),
    )


def _line(version: Version) -> str:
    notes = [f"after {version.parent[:SHORT]}" if version.parent else "first"]
    notes += [f"message {version.message}"] if version.message else []
    notes += ["the files are here"] if version.head else []
    told = f"{version.id[:SHORT]} {version.created[:19].replace('T', ' ')} {version.source}: {summary(version.changes)}"
    return f"{told} [{', '.join(notes)}]"


def _heading(before: str | None, after: str | None, files: Sequence[Difference]) -> str:
    count = "no files" if not files else "1 file" if len(files) == 1 else f"{len(files)} files"
    more = " or more" if len(files) == FILES_LIMIT else ""
    return f"From {_named(before)} to {_named(after)}: {count}{more}"


def _named(manifest: str | None) -> str:
    return f"version {manifest[:SHORT]}" if manifest else "the beginning, with no files"


def _cut() -> list[str]:
    return ["… cut here; give paths to see the rest"]
