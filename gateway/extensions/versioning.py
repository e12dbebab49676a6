"""Versioning: a version of the files before and after each call that may change them, and consent to the changes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable

import anyio
import orjson

from gateway.calls import Call, Outcome, Proceed, no_progress, text_content
from gateway.errors import GatewayError, InputRequired, ToolFailed
from gateway.extensions import Extension
from gateway.sources.builtin.preview import find_unversioned_files
from gateway.tools import Access, Tool
from gateway.workspace.checkout import NAMES, Review
from gateway.workspace.diff import readable, summary
from gateway.workspace.index import Index
from gateway.workspace.tree import Changes, Tree
from gateway.workspace.unversioned import UnversionedFiles
from gateway.workspace.versions import HeldChat, Versions

# Takes a call, the reason to ask and the changes; raises unless somebody agreed to them.
RequireConsent = Callable[[Call, str, str], Awaitable[None]]

_UNWATCHED = "may change any file of your folder, and that cannot be undone"
TIMEOUT = 120.0
DIFF_BYTES = 32 * 1024
_MODES_LISTED = 100
# Calls without an outcome whose versions are kept for their record.
LEFT_LIMIT = 10_000


class Versioning(Extension):
    """Gives a call that may write the lock of the chat's files, and saves a version after it, also if it fails or is
    cancelled. A call that only reads takes no lock, unless it names the message whose files it wants; its outcome names
    the version it read.

    The changes that a toolset's tool makes in a person's own folder are known only after it ran. If it changed or
    deleted existing files and nobody agreed to the call, `require_consent` is called with these changes. Unless it
    returns, the files are restored; the call runs again after a person has agreed. `timeout` is the time for an
    answer or a progress report of a tool without a limit of its own.
    """

    def __init__(
        self, versions: Versions, require_consent: RequireConsent | None = None, timeout: float = TIMEOUT
    ) -> None:
        self._versions = versions
        self._require_consent = require_consent
        self._timeout = timeout
        self._left: dict[str, tuple[str | None, str | None]] = {}

    def applies_to(self, tool: Tool) -> bool:
        return tool.access is not Access.NONE

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        if call.target.access is Access.WRITE:
            outcome = await self._call_writer(call, proceed)
            pre, post = self._left.pop(call.id, (None, None))
            return outcome.replace(pre_manifest=pre, post_manifest=post)
        if call.message is not None:
            async with self._versions.hold(call.chat, call.caller.principal, call) as files:
                version = files.head.manifest_id
                outcome = await proceed(call)
        else:
            version = await self._versions.read_head(call.chat)
            outcome = await proceed(call)
        return outcome.replace(pre_manifest=version, post_manifest=version)

    def take_versions(self, call_id: str) -> tuple[str | None, str | None] | None:
        """Return, once, the versions before and after a call that ended without an outcome: refused, cancelled or out
        of time."""
        return self._left.pop(call_id, None)

    async def _call_writer(self, call: Call, proceed: Proceed) -> Outcome:
        async with self._versions.hold(call.chat, call.caller.principal, call) as files:
            before = await files.save("edit")  # a person's edits since then are not the tool's
            if len(self._left) >= LEFT_LIMIT:  # an extension hid their errors from the record
                self._left.clear()
            self._left[call.id] = before, before
            try:
                reviewed = self._require_consent is not None and self._needs_review(call)
                watched = await self._scan_ignored(call, files, not reviewed)
                ignored = None if isinstance(watched, str) else watched
                if self._require_consent is not None and reviewed:
                    if ignored is not None:
                        return await self._call_reviewed(call, proceed, files, self._require_consent, ignored)
                    await self._require_consent(call, f"{call.target.id} {_UNWATCHED}: {watched}", "")
                unversioned = await self._keep_unversioned(call, files)
                try:
                    async with files.changing(call.id):
                        outcome = await proceed(call)
                finally:
                    with anyio.CancelScope(shield=True):
                        if ignored is not None:
                            review = await files.review_ignored(ignored)
                            unversioned = UnversionedFiles(await files.keep_ignored(review, call.id))
                        await files.save("tool_run", call.id)
                return _add_note(outcome, unversioned)
            finally:
                self._left[call.id] = before, files.head.manifest_id

    async def _scan_ignored(self, call: Call, files: HeldChat, alone: bool) -> Index | str | None:
        """Return the ignored files that a program or a toolset's tool may change in a person's own folder; or why they,
        or if not `alone` others, cannot be watched."""
        tool = call.target
        given = any(map(call.arguments.get, (*(tool.path_arguments or ()), tool.patch_argument or "")))
        names_files = tool.owner is None and given
        watches = self._versions.attached_folder(call.chat) and not names_files
        return await files.scan_ignored(alone) if watches else None

    async def _keep_unversioned(self, call: Call, files: HeldChat) -> UnversionedFiles:
        """Keep what a builtin may change or delete and no version has, so that it can be undone, too."""
        tool = call.target
        if tool.owner is not None or not (tool.path_arguments or tool.patch_argument):
            return UnversionedFiles()
        attached = self._versions.attached_folder(call.chat) is not None
        if not attached and not any(name in value for value in _read_targets(call) for name in NAMES):
            return UnversionedFiles()  # in a chat's own files, only packages are in no version
        with self._versions.root(call.chat) as root:
            found = await self._versions.in_thread(find_unversioned_files, root, attached, tool, call.arguments)
        if found.files and found.kept:
            await files.keep(found.files, call.id)
        return found

    def _needs_review(self, call: Call) -> bool:
        """Return whether a toolset's or upstream's tool works in a person's own folder without consent."""
        if call.confirmed or call.target.owner is None:
            return False
        return self._versions.attached_folder(call.chat) is not None

    async def _call_reviewed(
        self, call: Call, proceed: Proceed, files: HeldChat, require_consent: RequireConsent, ignored: Index
    ) -> Outcome:
        seen = files.seen
        started = time.time()
        timeout = call.target.timeout or self._timeout
        async with files.changing(call.id, started + timeout) as extend:
            try:
                outcome = await proceed(_extend_by_progress(call, extend, timeout))
            except BaseException:  # cancelled: nobody can be asked
                with anyio.CancelScope(shield=True):
                    review, unversioned = await files.review(seen), await files.review_ignored(ignored)
                    if review.existing or unversioned.existing:
                        await _undo(files, review, unversioned, call, started)
                    else:
                        await files.save("tool_run", call.id, review)
                raise
            with anyio.CancelScope(shield=True):
                review, unversioned = await files.review(seen), await files.review_ignored(ignored)
                if review.existing or unversioned.existing:
                    try:
                        await require_consent(call, *await self._describe(call, review.join(unversioned)))
                    except BaseException as refusal:
                        version = await _undo(files, review, unversioned, call, started)
                        if isinstance(refusal, InputRequired):
                            refusal.details["version"] = version
                        raise
                kept = await files.keep_ignored(unversioned, call.id)
                await files.save("tool_run", call.id, review)
        return _add_note(outcome, UnversionedFiles(kept))

    async def _describe(self, call: Call, review: Review) -> tuple[str, str]:
        """Return the reason to ask and a description of the changes. Different changes never have the same texts."""
        paths = review.existing
        changes = Changes((), review.changes.changed, review.changes.deleted)
        modes = [f"permissions of {readable(path)}: {was:o} → {now:o}" for path, (was, now) in review.modes.items()]
        counts = summary(changes) if changes else f"{len(modes)} with other permissions"
        reason = f"{call.target.id} changes files of your folder: {counts}"
        if len(paths) > 1:
            names = "\n".join(paths)
            reason += f" [{hashlib.sha256(names.encode()).hexdigest()[:12]}]"
        old, new = (_select(tree, paths) for tree in (review.old, review.new))
        diff = await self._versions.compare(call.chat, old, new, limit=DIFF_BYTES)
        document = [sorted(entries.items()) for tree in (old, new) for entries in (tree.files, tree.meta)]
        digest = hashlib.sha256(orjson.dumps([document, sorted(review.modes.items())])).hexdigest()
        more = [f"… and {len(modes) - _MODES_LISTED} more"] if len(modes) > _MODES_LISTED else []
        lines = [*modes[:_MODES_LISTED], *more, diff.text.rstrip(), f"all changes together: sha256 {digest[:32]}"]
        return reason, "\n".join(line for line in lines if line)


async def _undo(files: HeldChat, review: Review, ignored: Review, call: Call, started: float) -> str | None:
    """Restore the files; return the version that has the call's changes."""
    before = files.head.manifest_id
    try:
        version = await files.undo_changes(review, "undone", call.id, started)
        if ignored.existing:
            await files.undo_ignored(ignored, call.id)
        return version
    except GatewayError as error:
        await files.save("tool_run", call.id)
        raise ToolFailed(
            f"{call.target.id} changed files of your folder, and not all of them could be restored: {error.message}; "
            f"the version before it is {before} ('toolgate workspace log')",
            code="NOT_BROUGHT_BACK",
        ) from error


def _read_targets(call: Call) -> list[str]:
    """Return the arguments that name the files a builtin changes, as text."""
    names = (*(call.target.path_arguments or ()), call.target.patch_argument or "")
    return [str(call.arguments[name]) for name in names if name in call.arguments]


def _add_note(outcome: Outcome, unversioned: UnversionedFiles) -> Outcome:
    if not unversioned.files or not outcome.ok:
        return outcome
    content = outcome.content if outcome.content is not None else text_content(outcome.value_json.decode())
    return outcome.replace(content=[*content, *text_content(f"{unversioned}.")])


def _extend_by_progress(call: Call, extend: Callable[[float], None], timeout: float) -> Call:
    """Return the call with progress that extends the time for its changes, as it extends the call's deadline."""
    progress, noted = call.progress, time.time()

    async def report(done: float, total: float | None = None, message: str | None = None) -> None:
        nonlocal noted
        now = time.time()
        if now > noted + timeout / 4:
            noted = now
            extend(now + timeout)
        await progress(done, total, message)

    return call if progress is no_progress else call.replace(progress=report)


def _select(tree: Tree, paths: tuple[str, ...]) -> Tree:
    names = [path.rstrip("/") for path in paths]
    files = {path: tree.files[path] for path in names if path in tree.files}
    return Tree(files, {path: tree.meta[path] for path in names if path in tree.meta})
