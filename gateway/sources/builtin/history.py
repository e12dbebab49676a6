"""Tools on the versions of a chat's files: list, compare, restore and branch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated

import anyio
from pydantic import Field

from gateway.errors import Conflict, Invalid, NotFound
from gateway.sources.builtin.decorator import Shape, VersionContext, Versioned, builtin, hidden_files_note
from gateway.tools import Access, Hides, Permission, denied_only
from gateway.workspace.checkout import keep_hidden
from gateway.workspace.diff import FILES_LIMIT, Difference, Status, readable, summary
from gateway.workspace.globs import Selection, restore_selection
from gateway.workspace.history import SHORT, Version, endpoints, history
from gateway.workspace.protected import ProtectedReason, make_protected_check, reason_to_ask
from gateway.workspace.tree import Changes, Tree, changes, diff
from gateway.workspace.versions import HeldChat

_PATHS_SHOWN = 20

Id = Annotated[str, Field(min_length=4, description="Id of a version, or a unique prefix of it")]
Paths = Annotated[
    list[str] | None,
    Field(min_length=1, max_length=1000, description="Only these files, directories or globs; default all"),
]


class ChangedPaths(Shape):
    count: int
    paths: list[str] = Field(description="The first 20")


class ChangeSummary(Shape):
    added: ChangedPaths | None = None
    changed: ChangedPaths | None = None
    deleted: ChangedPaths | None = None


class VersionEntry(Shape):
    id: str
    parent: str | None = None
    created: str
    source: str = Field(description="tool_run, edit (by hand, or restored files), user_upload, branch, interrupted")
    source_ref: str | None = Field(None, description="The call or message behind it")
    tool: str | None = Field(None, description="The tool that was called")
    message: str | None = None
    head: bool | None = Field(None, description="true: the files are at this version")
    changes: ChangeSummary


class VersionList(Shape):
    versions: list[VersionEntry]
    more: bool


@builtin(
    title="Workspace history",
    category="filesystem",
    permission=Permission.READ_ONLY,
    access=Access.NONE,
)
async def workspace_history(
    context: VersionContext,
    limit: Annotated[int, Field(ge=1, le=200, description="Maximum number of versions")] = 20,
    before: Annotated[str | None, Field(min_length=4, description="Only versions before this one")] = None,
) -> tuple[VersionList, str]:
    """List the versions of the workspace's files, newest first, with what each changed against its parent.

    Every call that changes files creates one; so do edits by hand. workspace_diff shows a change in detail,
    workspace_restore restores a version."""
    await _switch_to_message(context)
    versions, chat = context.versions, context.call.chat
    last = (await versions.find(chat, before)).id if before else None
    found = await history(versions, chat, before=last, limit=limit + 1)
    result = VersionList(versions=[_entry(version) for version in found[:limit]], more=len(found) > limit)
    lines = [_line(version) for version in found[:limit]]
    if result.more:
        lines.append(f"Older ones: before={found[limit - 1].id[:SHORT]}")
    return result, "\n".join(lines) or "No versions yet: no call has changed the files."


class FileDifference(Shape):
    path: str
    status: Status
    was: str | None = Field(None, description="Old path of a renamed file")
    note: str | None = None


class DiffOfVersions(Shape):
    from_: str | None = None
    to: str | None = None
    files: list[FileDifference]
    diff: str = Field(description="In git's format")
    truncated: bool
    files_left_out: int | None = Field(None, description="Files that the operator's rules hide")


@builtin(
    title="Workspace diff",
    category="filesystem",
    permission=Permission.READ_ONLY,
    access=Access.NONE,
)
async def workspace_diff(
    context: VersionContext,
    from_: Annotated[str | None, Field(min_length=4, description="Version; default the parent of 'to'")] = None,
    to: Annotated[
        str | None,
        Field(min_length=3, description="Version, or 'now' for the current files; default the latest version"),
    ] = None,
    paths: Paths = None,
) -> tuple[DiffOfVersions, str]:
    """Show how two versions of the workspace's files differ, as a unified diff; without arguments, what the latest
    version changed. Ids come from workspace_history; a unique prefix is enough.

    Files larger than 1 MiB and files that are not text are listed with their sizes. Cut after 64 KiB."""
    await _switch_to_message(context)
    versions, chat = context.versions, context.call.chat
    before, after = await endpoints(versions, chat, context.call.caller.principal, from_, to)
    old, new = await versions.tree(chat, before), await versions.tree(chat, after)
    selection = Selection(paths or (), context.hides)
    found = await versions.compare(chat, old, new, selection)
    files = [FileDifference(**vars(file)) for file in found.files]
    result = DiffOfVersions(
        from_=before,
        to=after,
        files=files,
        diff=found.text,
        truncated=found.truncated,
        files_left_out=len(selection.left_out) or None,
    )
    notes = [
        *(["… cut here; give paths to see the rest"] if found.truncated else []),
        *hidden_files_note(len(selection.left_out)),
    ]
    return result, "\n".join([_heading(before, after, found.files), found.text, *notes])


class RestoreResult(Shape):
    manifest: str | None = Field(None, description="Current version of the files; missing if there are no files")
    previous: str | None = Field(None, description="Version before the call; restore it to undo")
    changes: ChangeSummary
    files_left_out: int | None = Field(None, description="Files left as they were, because the operator's rules say so")


async def _restores(context: VersionContext, manifest: str, paths: list[str] | None) -> str | None:
    earlier = (await context.versions.find(context.call.chat, manifest)).id
    what = await _would_change(context, earlier, paths)
    return await _reason(context, f"workspace_restore restores version {earlier[:SHORT]}", what)


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
) -> tuple[RestoreResult, str, Versioned]:
    """Restore the workspace's files to an earlier version. Asks the user first when files change.

    Nothing is lost: the current files stay a version, and the result has its id. With paths only those are restored, as
    a new version on top of the latest; without, later changes continue from the restored version."""
    hides = _restore_hides(context)
    earlier = (await context.versions.find(context.call.chat, manifest)).id
    async with _lock_chat(context) as files:
        previous = await files.save("edit")
        target = await _target(context, previous, earlier, paths)
        await _require_consent(context, previous, target, hides)
        with anyio.CancelScope(shield=True):
            if paths is None:
                what = await files.checkout(earlier, None, hides)
            else:
                what = await files.put(target, "edit", context.call.id, hides)
        return _restore_result(previous, files, what)


async def _branches(context: VersionContext, manifest: str | None, message: str | None) -> str | None:
    earlier = await _branch_point(context, manifest, message)
    what = await _would_change(context, earlier, None)
    return await _reason(context, f"workspace_branch switches to {_version_name(earlier)}", what)


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
    manifest: Annotated[str | None, Field(min_length=4, description="Version to continue from")] = None,
    message: Annotated[
        str | None, Field(min_length=1, description="Or the message whose files to continue from")
    ] = None,
) -> tuple[RestoreResult, str, Versioned]:
    """Continue from an earlier version of the workspace's files, or from the files after a message: later changes
    branch off there. Asks the user first when files change.

    Nothing is lost: the branch you leave is kept, and the result has its id."""
    earlier = await _branch_point(context, manifest, message)
    async with _lock_chat(context) as files:
        previous = await files.save("edit")
        hides = _restore_hides(context)
        await _require_consent(context, previous, await context.versions.tree(context.call.chat, earlier), hides)
        with anyio.CancelScope(shield=True):
            # a call with its own message stays on it: that message has these files from now on
            new_message = message if context.call.message is None else None
            what = await files.branch(earlier, context.call.id, new_message, hides)
        return _restore_result(previous, files, what)


def _lock_chat(context: VersionContext) -> AbstractAsyncContextManager[HeldChat]:
    """Lock the chat's files and switch to the version of the call's message."""
    call = context.call
    return context.versions.hold(call.chat, call.caller.principal, call)


async def _switch_to_message(context: VersionContext) -> None:
    if context.call.message is not None:
        async with _lock_chat(context):
            pass


async def _branch_point(context: VersionContext, manifest: str | None, message: str | None) -> str | None:
    versions, chat = context.versions, context.call.chat
    if (manifest is None) == (message is None):
        raise Invalid("workspace_branch: give either 'manifest' or 'message'")
    if manifest is not None:
        return (await versions.find(chat, manifest)).id
    if not await versions.manifests.knows_message(chat, str(message)):
        raise NotFound(f"chat {chat!r} has no message {message!r}", code="MESSAGE_NOT_FOUND")
    return await versions.manifests.find_by_message(chat, str(message))


async def _would_change(context: VersionContext, earlier: str | None, paths: list[str] | None) -> Changes:
    """Return what a restore would change. The current files are stored as a version to compare with."""
    call = context.call
    async with context.versions.hold(call.chat, call.caller.principal) as files:
        current = await files.save("edit")
    target = await _target(context, current, earlier, paths)
    return await _difference(context, current, target, denied_only(context.hides))


async def _reason(context: VersionContext, action: str, what: Changes) -> str | None:
    """Return the reason to ask before these changes; None if there are none."""
    if not what:
        return None
    reason = f"{action}: {summary(what)}"
    folder = context.versions.attached_folder(context.call.chat)
    if folder is None:
        return reason
    paths = (*what.added, *what.changed, *what.deleted)
    protected = await context.versions.in_thread(lambda: [*filter(make_protected_check(folder), paths)])
    if not protected:
        return reason
    return ProtectedReason(f"{reason}; {reason_to_ask(context.call.target.id, protected)}")


def _restore_hides(context: VersionContext) -> Hides:
    """Return the files to leave as they are: those that a rule denies or, if nobody was asked, would ask about."""
    return denied_only(context.hides) if context.call.agreed else context.hides


async def _require_consent(context: VersionContext, current: str | None, target: Tree, hides: Hides) -> None:
    """Refuse a change that nobody was asked about, because nothing would have changed at that time."""
    if not context.call.confirmed and await _difference(context, current, target, hides):
        raise Conflict("the files were changed by someone else; call again, and the user will be asked")


async def _target(context: VersionContext, current: str | None, earlier: str | None, paths: list[str] | None) -> Tree:
    versions, chat = context.versions, context.call.chat
    tree = await versions.tree(chat, earlier)
    if paths is None:
        return tree
    return await versions.in_thread(restore_selection, await versions.tree(chat, current), tree, Selection(paths))


async def _difference(context: VersionContext, current: str | None, target: Tree, hides: Hides) -> Changes:
    tree = await context.versions.tree(context.call.chat, current)
    return await context.versions.in_thread(lambda: changes(tree, diff(tree, keep_hidden(tree, target, hides)[0])))


def _restore_result(previous: str | None, files: HeldChat, what: Changes) -> tuple[RestoreResult, str, Versioned]:
    manifest, left_out = files.head.manifest_id, len(files.left_out)
    changed = _summary(what)
    result = RestoreResult(manifest=manifest, previous=previous, changes=changed, files_left_out=left_out or None)
    text = f"The files are already at {_version_name(manifest)}."
    if what:
        now, before = _version_name(manifest), _version_name(previous)
        text = f"The files are at {now} now: {summary(what)}. They were at {before}."
    return result, "\n".join([text, *hidden_files_note(left_out)]), Versioned(previous, manifest)


def _summary(what: Changes) -> ChangeSummary:
    return ChangeSummary(**{name: _shorten_paths(paths) for name, paths in vars(what).items() if paths})


def _shorten_paths(paths: Sequence[str]) -> ChangedPaths:
    return ChangedPaths(count=len(paths), paths=[readable(path) for path in paths[:_PATHS_SHOWN]])


def _entry(version: Version) -> VersionEntry:
    return VersionEntry(
        id=version.id,
        parent=version.parent,
        created=version.created,
        source=version.source,
        source_ref=version.source_ref,
        tool=version.tool,
        message=version.message,
        head=version.head or None,
        changes=_summary(version.changes),
    )


def _line(version: Version) -> str:
    notes = [f"after {version.parent[:SHORT]}" if version.parent else "first"]
    notes += [f"message {version.message}"] if version.message else []
    notes += ["current"] if version.head else []
    source = f"{version.source} {version.tool}" if version.tool else version.source
    text = f"{version.id[:SHORT]} {version.created[:19].replace('T', ' ')} {source}: {summary(version.changes)}"
    return f"{text} [{', '.join(notes)}]"


def _heading(before: str | None, after: str | None, files: Sequence[Difference]) -> str:
    count = "no files" if not files else "1 file" if len(files) == 1 else f"{len(files)} files"
    more = " or more" if len(files) == FILES_LIMIT else ""
    return f"From {_version_name(before)} to {_version_name(after)}: {count}{more}"


def _version_name(manifest: str | None) -> str:
    return f"version {manifest[:SHORT]}" if manifest else "the beginning (no files)"
