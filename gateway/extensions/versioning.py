"""Versioning: the files before and after every call that may change them, and consent to changes of a person's own."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import orjson

from gateway.calls import Call, Outcome, Proceed
from gateway.errors import GatewayError, InputRequired, ToolFailed
from gateway.extensions import Extension
from gateway.tools import Access, Tool
from gateway.workspace.checkout import Review
from gateway.workspace.diff import readable, summary
from gateway.workspace.tree import Changes, Tree
from gateway.workspace.versions import HeldChat, Versions

# Raises unless somebody agreed to a call for a reason, with these changes.
Consent = Callable[[Call, str, str], Awaitable[None]]

TIMEOUT = 120.0
DIFF_BYTES = 32 * 1024
_LISTED = 100


class Versioning(Extension):
    """A call that may write is alone with the chat's files and leaves a version, also when it fails
    or is cancelled. One that only reads costs nothing, unless it names a message to stand at.

    What a toolset's tool does to a person's own folder is known only once it has run. If it changed or deleted files
    that were there, and nobody agreed to the call before, `consent` is asked about these very changes. Without it the
    files are brought back as they were, and the call runs again when a person has agreed. `timeout` is the longest a
    call may take whose tool names no limit.
    """

    def __init__(self, versions: Versions, consent: Consent | None = None, timeout: float = TIMEOUT) -> None:
        self._versions = versions
        self._consent = consent
        self._timeout = timeout

    def concerns(self, tool: Tool) -> bool:
        return tool.access is not Access.NONE

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        access = call.target.access
        if access is Access.WRITE:
            return await self._writing(call, proceed)
        if access is Access.READ and call.message is not None:
            async with self._versions.hold(call.chat, call.caller.principal) as files:
                await _stand(files, call)
                return await proceed(call)
        return await proceed(call)

    async def _writing(self, call: Call, proceed: Proceed) -> Outcome:
        async with self._versions.hold(call.chat, call.caller.principal) as files:
            await _stand(files, call)
            before = await files.save("edit")  # what a person changed since is not the tool's doing
            if self._consent is not None and self._is_reviewed(call):
                return await self._reviewed(call, proceed, files, before, self._consent)
            after = before
            try:
                async with files.changing(call.id):
                    outcome = await proceed(call)
            finally:
                with anyio.CancelScope(shield=True):
                    after = await files.save("tool_run", call.id)
            return replace(outcome, pre_manifest=before, post_manifest=after)

    def _is_reviewed(self, call: Call) -> bool:
        """Return whether a stranger's tool works in a person's own folder, and nobody has agreed to it."""
        return not call.confirmed and call.target.owner is not None and self._versions.is_attached(call.chat)

    async def _reviewed(
        self, call: Call, proceed: Proceed, files: HeldChat, before: str | None, consent: Consent
    ) -> Outcome:
        seen = files.seen
        since = time.time()
        async with files.changing(call.id, since + (call.target.timeout or self._timeout)):
            try:
                outcome = await proceed(call)
            except BaseException:  # called off: nobody can be asked
                with anyio.CancelScope(shield=True):
                    review = await files.review(seen)
                    await (
                        _undo(files, review, call, since)
                        if review.existing
                        else files.save("tool_run", call.id, review)
                    )
                raise
            with anyio.CancelScope(shield=True):
                review = await files.review(seen)
                if review.existing:
                    try:
                        await consent(call, *await self._question(call, review))
                    except BaseException as refusal:
                        version = await _undo(files, review, call, since)
                        if isinstance(refusal, InputRequired):
                            refusal.details["version"] = version
                        raise
                after = await files.save("tool_run", call.id, review)
        return replace(outcome, pre_manifest=before, post_manifest=after)

    async def _question(self, call: Call, review: Review) -> tuple[str, str]:
        """Why a person is asked, and what would change. Both are the same only for the same changes."""
        paths = review.existing
        what = Changes((), review.changes.changed, review.changes.deleted)
        modes = [f"permissions of {readable(path)}: {was:o} → {now:o}" for path, (was, now) in review.modes.items()]
        told = summary(what) if what else f"{len(modes)} with other permissions"
        names = hashlib.sha256("\n".join(paths).encode()).hexdigest()[:12] if len(paths) > 1 else ""
        reason = f"{call.target.id} changes files of your folder: {told}" + (f" [{names}]" if names else "")
        old, new = (_only(tree, paths) for tree in (review.old, review.new))
        diff = await self._versions.compare(call.chat, old, new, limit=DIFF_BYTES)
        document = [sorted(each.items()) for tree in (old, new) for each in (tree.files, tree.meta)]
        digest = hashlib.sha256(orjson.dumps([document, sorted(review.modes.items())])).hexdigest()
        more = [f"… and {len(modes) - _LISTED} more"] if len(modes) > _LISTED else []
        lines = [*modes[:_LISTED], *more, diff.text.rstrip(), f"all changes together: sha256 {digest[:32]}"]
        return reason, "\n".join(line for line in lines if line)


async def _undo(files: HeldChat, review: Review, call: Call, since: float) -> str | None:
    """Bring the files back as they were; the version that has what the call did."""
    before = files.head.manifest_id
    try:
        return await files.undo_changes(review, "undone", call.id, since)
    except GatewayError as error:
        await files.save("tool_run", call.id)
        raise ToolFailed(
            f"{call.target.id} changed files of your folder, and not all could be brought back: {error.message}; "
            f"the version before it is {before} ('toolgate workspace log')",
            code="NOT_BROUGHT_BACK",
        ) from error


def _only(tree: Tree, paths: tuple[str, ...]) -> Tree:
    names = [path.rstrip("/") for path in paths]
    files = {path: tree.files[path] for path in names if path in tree.files}
    return Tree(files, {path: tree.meta[path] for path in names if path in tree.meta})


async def _stand(files: HeldChat, call: Call) -> None:
    if call.message is not None:
        await files.switch(call.message, call.parent_message)
