"""Versions of a chat's files: saved after every change, and restored on request."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
import orjson

from gateway.calls import Call
from gateway.db.chats import Chats, foreign_chat_error
from gateway.db.manifests import Head, ManifestRow, Manifests
from gateway.errors import Conflict, Forbidden, GatewayError, Invalid, NotFound
from gateway.tasks import TaskSet
from gateway.tools import Hides, Permission, hide_nothing
from gateway.workspace import gc as sweeping
from gateway.workspace import protected_copies, unversioned
from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout, Review, graft, keep_hidden, mode_changes
from gateway.workspace.diff import OUTPUT_LIMIT, Comparison, compare
from gateway.workspace.globs import Selection
from gateway.workspace.history import assemble, new_row
from gateway.workspace.index import Index
from gateway.workspace.openat import Parts, ensure_accessible
from gateway.workspace.os_errors import show_path
from gateway.workspace.paths import Root
from gateway.workspace.protected import spare_protected
from gateway.workspace.tree import EMPTY, Changes, Patch, Tree, changes, diff, locate
from gateway.workspace.workspaces import ChatLock, Workspaces

INDEX_SECONDS = 30.0
# In a chat's directory: the manifest that its files are at, empty for no files.
HEAD_FILE = "head"
# Age of a temporary file whose writer is certainly gone.
LEFTOVER_SECONDS = 3600.0


class OpenChat:
    """The part of a chat that stays in memory. Its methods block."""

    def __init__(self, chat: str, directory: Path, folder: Path, attached: bool) -> None:
        directory.mkdir(0o700, parents=True, exist_ok=True)
        self.chat = chat
        self.lock = ChatLock(directory / "lock")
        self.blobs = FileBlobs(directory / "blobs")
        self.running = directory / "running"
        self.head_file = str(directory / HEAD_FILE)
        self.folder = folder
        self.protected = directory / "protected" if attached else None
        self._swept = directory / "swept"
        if not self._swept.exists():
            self._swept.touch(0o600)
        self.swept_at = self._swept.stat().st_mtime
        self._attached = attached
        ignore = unversioned.make_ignore_source(attached)
        self.checkout = Checkout(folder, self.blobs, directory / "index", ignore, ours=not attached)
        self.manifest: str | None = None
        self.tree = EMPTY
        self._index_saved = time.monotonic()

    def write_head(self, manifest: str | None) -> None:
        """Write down the head, so that a call that only reads finds it without a lock or the database."""
        temporary = Path(f"{self.head_file}.new")
        try:
            temporary.write_text(manifest or "")
            temporary.replace(self.head_file)
        except OSError:  # such as a full disk: without the file the database is asked
            Path(self.head_file).unlink(missing_ok=True)

    def diff_since(self, old: Tree) -> tuple[Tree, Patch]:
        """Take a snapshot of the folder; return it and its difference from `old`."""
        new = self.checkout.snapshot()
        if time.monotonic() - self._index_saved > INDEX_SECONDS:
            self._index_saved = time.monotonic()
            self.checkout.save()
        return new, diff(old, new)

    def sweep(self, patches: Sequence[str], older_than: float) -> sweeping.SweepResult:
        """Sweep; `patches` are those of all manifests of the chat."""
        ensure_accessible(self.folder, ours=not self._attached)
        self._swept.touch()
        now = time.time()
        leftovers = sweeping.remove_leftovers(self.folder, now - LEFTOVER_SECONDS)
        needed = {digest for patch in patches for digest in orjson.loads(patch).values() if digest is not None}
        swept = sweeping.sweep(self.blobs, needed, older_than, now)
        return replace(swept, temporary=swept.temporary + leftovers)


log = logging.getLogger(__name__)

# Chats whose stat cache and tree stay in memory.
CHATS_OPEN = 64
# Chats without a head file whose head stays in memory.
OLD_HEADS = 1024

# The source of a version that begins a branch; its files are its parent's.
BRANCH = "branch"

GRACE_SECONDS = 24 * 3600.0
# Seconds between sweeps of a chat.
SWEEP_SECONDS = 24 * 3600.0
PREFIX_LENGTH = 4
# Seconds a start waits for another process that holds a chat.
RECOVER_SECONDS = 1.0

Result = TypeVar("Result")
# Called with the chat and the changes of its files.
Listener = Callable[[str, Changes], None]


class Versions:
    """The versions of every chat. `hold` a chat to change its files or head; reading needs no lock.

    A call that switches to the files of another message needs the level to write, which `permission` allows at most.
    Files `denied` by a rule and protected ones of an attached folder stay as they are. A call waits for the files of
    its chat inside `waiting`."""

    def __init__(
        self,
        manifests: Manifests,
        chats: Chats,
        workspaces: Workspaces,
        permission: Permission = Permission.EXECUTE,
        waiting: Callable[[Call], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.manifests = manifests
        self.permission = permission
        self._waiting = waiting
        self.denied: Hides = hide_nothing
        self._chats = chats
        self._workspaces = workspaces
        self._open: OrderedDict[str, OpenChat] = OrderedDict()
        self._old_heads: dict[str, str | None] = {}
        self._listeners: list[Listener] = []
        self._sweeps = TaskSet()
        self._threads = anyio.CapacityLimiter(8)

    @asynccontextmanager
    async def hold(self, chat: str, principal: str, call: Call | None = None) -> AsyncIterator[HeldChat]:
        """Lock a chat's files, after recovery of what a killed holder left unfinished; for a call that names its
        message, switch to the files of that."""
        await self.require_owner(chat, principal)
        opened = await self._open_chat(chat)
        try:
            async with opened.lock.held(partial(self._waiting, call) if call else nullcontext):
                held = HeldChat(self, opened, await self.manifests.head(chat))
                await held.recover()
                if await self.read_head(chat) != held.head.manifest_id:  # a holder was killed before it wrote the file
                    opened.write_head(held.head.manifest_id)
                if call is not None and call.message is not None:
                    await held.switch(call.message, call.parent_message, call.caller.permission)
                yield held
        finally:
            self._old_heads.pop(chat, None)
            self._sweep_when_due(opened)

    async def require_owner(self, chat: str, principal: str) -> None:
        if await self._chats.claim(chat, principal) != principal:
            raise foreign_chat_error(chat)

    async def may_read(self, chat: str, principal: str) -> bool:
        """Return whether the chat has files to read; refused for somebody else's chat. Creates and claims no chat."""
        owner = await self._chats.owner(chat)
        if owner not in (None, principal):
            raise foreign_chat_error(chat)
        return owner is not None or self._workspaces.is_attached(chat)

    def root(self, chat: str) -> Root:
        """Open the chat's current files, for use in a `with` statement; blocks."""
        return self._workspaces.root(chat)

    async def find(self, chat: str, id_or_prefix: str) -> ManifestRow:
        """Find a version of the chat by its id or a unique prefix of it."""
        wanted = id_or_prefix.strip().lower()
        if len(wanted) < PREFIX_LENGTH:
            raise Invalid(
                f"{id_or_prefix!r} is too short: give at least {PREFIX_LENGTH} characters of the version's id"
            )
        return await self.manifests.get(chat, wanted)

    async def tree(self, chat: str, manifest: str | None) -> Tree:
        """Return the tree of a manifest; None is the empty tree."""
        if manifest is None:
            return EMPTY
        opened = await self._open_chat(chat)
        if opened.manifest == manifest:
            return opened.tree
        return await self.in_thread(assemble, await self.manifests.load_chain(manifest))

    async def open_blob(self, chat: str, digest: str) -> BinaryIO:
        """Open a blob by its digest; verified as it is read."""
        opened = await self._open_chat(chat)
        return await self.in_thread(opened.blobs.open, digest)

    async def compare(
        self, chat: str, old: Tree, new: Tree, selection: Selection | None = None, limit: int = OUTPUT_LIMIT
    ) -> Comparison:
        """Compare two trees of the chat."""
        opened = await self._open_chat(chat)
        cancelled = anyio.from_thread.check_cancelled
        work = partial(compare, limit=limit, check_cancelled=cancelled)
        return await self.in_thread(work, old, new, opened.blobs.open, selection)

    async def read_head(self, chat: str) -> str | None:
        """Return the version that the chat's files are at, as any process saved it last."""
        opened = self._open.get(chat)
        path = opened.head_file if opened is not None else self._workspaces.directory(chat) / HEAD_FILE
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # `open` takes four times as long
            try:
                return os.read(descriptor, 64).decode() or None
            finally:
                os.close(descriptor)
        except FileNotFoundError:  # nothing was saved since the file was introduced
            if chat not in self._old_heads:
                if len(self._old_heads) >= OLD_HEADS:
                    self._old_heads.clear()
                self._old_heads[chat] = (await self.manifests.head(chat)).manifest_id
            return self._old_heads[chat]

    def attached_folder(self, chat: str) -> Path | None:
        """Return the attached folder in which the chat works; None if it has none."""
        return self._workspaces.attached_folder(chat)

    async def recover(self, chat: str | None) -> None:
        """Recover an attached folder after a killed gateway, unless another process holds the chat and has done so."""
        if chat is None or self.attached_folder(chat) is None:
            return
        opened = await self._open_chat(chat)
        if opened.protected is None or not (opened.protected.exists() or opened.running.exists()):
            return
        with anyio.move_on_after(RECOVER_SECONDS) as waiting:
            async with opened.lock.held():
                waiting.deadline = math.inf
                await HeldChat(self, opened, await self.manifests.head(chat)).recover()

    async def sweep(self, chat: str, older_than: float = GRACE_SECONDS) -> sweeping.SweepResult:
        """Remove blobs older than the grace period that no manifest of the chat references, and temporary files of
        interrupted writers."""
        opened = await self._open_chat(chat)
        async with opened.lock.held():  # between a snapshot and its row, no manifest references its blobs yet
            return await self.in_thread(opened.sweep, await self.manifests.patches(chat), older_than)

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` on every change until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    @property
    def watched(self) -> bool:
        return bool(self._listeners)

    def announce(self, chat: str, what: Changes) -> None:
        if what:
            for listener in list(self._listeners):
                listener(chat, what)

    async def close(self) -> None:
        await asyncio.gather(*self._sweeps)
        for opened in self._open.values():
            await self.in_thread(opened.checkout.save)

    def files_read(self) -> int:
        return sum(opened.blobs.taken for opened in self._open.values())

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await anyio.to_thread.run_sync(partial(function, *arguments), limiter=self._threads)

    async def _open_chat(self, chat: str) -> OpenChat:
        opened = self._open.get(chat)
        if opened is None:
            directory, folder = self._workspaces.directory(chat), self._workspaces.path(chat)
            opened = await self.in_thread(OpenChat, chat, directory, folder, self._workspaces.is_attached(chat))
            opened = self._open.setdefault(chat, opened)
            await self._retire()
        self._open.move_to_end(chat)
        return opened

    def _sweep_when_due(self, opened: OpenChat) -> None:
        """Start a sweep in the background if the last one was a day ago; only `close` waits for it."""
        if time.time() - opened.swept_at > SWEEP_SECONDS:
            opened.swept_at = time.time()
            self._sweeps.start(self._sweep_quietly(opened.chat))

    async def _sweep_quietly(self, chat: str) -> None:
        try:
            await self.sweep(chat)
        except Exception:
            log.exception("the sweep of chat %r failed; it is tried again tomorrow", chat)

    async def _retire(self) -> None:
        while len(self._open) > CHATS_OPEN:
            _, oldest = self._open.popitem(last=False)
            await self.in_thread(oldest.checkout.save)


class HeldChat:
    """A locked chat: nobody else can change it."""

    def __init__(self, versions: Versions, opened: OpenChat, head: Head) -> None:
        self.head = head
        self.left_out: list[str] = []  # hidden files that the last restore left as they were
        self._seen: Tree | None = None  # on disk at the last scan; later changes must not be overwritten
        self._versions = versions
        self._opened = opened
        self._manifests = versions.manifests

    async def recover(self) -> None:
        """Recover from a killed holder: restore protected files, complete a restore, save the files of an interrupted
        call as a version, and undo its changes to existing files if nobody agreed to them."""
        opened = self._opened
        if opened.protected is not None:
            await self._versions.in_thread(protected_copies.recover, opened.folder, opened.protected)
        if self.head.materializing is not None:
            await self._store_branch("interrupted")
            await self._materialize(self.head.materializing or None)
        if not opened.running.exists():
            return
        call, _, until = (await self._versions.in_thread(opened.running.read_text)).partition("\n")
        review = await self.review(Index()) if until else None
        if review is not None and review.existing:
            since = (await self._versions.in_thread(opened.running.stat)).st_mtime
            await self.undo_changes(review, "interrupted", call, since, float(until))
        else:
            await self.save("interrupted", call)
        opened.running.unlink(missing_ok=True)

    @asynccontextmanager
    async def changing(self, call: str, until: float | None = None) -> AsyncIterator[Callable[[float], None]]:
        """Enclose a call that changes the files; a process killed inside leaves a note of the call. With `until`, the
        time by which it must have ended, recovery undoes its changes to existing files. Yields a function that sets
        another time."""
        running = True

        def extend(until: float) -> None:
            if running:  # not in a thread, which could outlive the call
                self._opened.running.write_text(f"{call}\n{until}")

        note = call if until is None else f"{call}\n{until}"
        await self._versions.in_thread(self._opened.running.write_text, note)
        try:
            yield extend
        finally:
            running = False
            self._opened.running.unlink(missing_ok=True)

    @property
    def seen(self) -> Index:
        """The index of the last scan."""
        return self._opened.checkout.index

    async def review(self, before: Index) -> Review:
        """Return the changes to the files since the head; `before` is the index at that time."""
        old = await self._tree()
        new, patch = await self._diff_since(old)
        what = await self._versions.in_thread(changes, old, patch)
        return Review(old, new, what, mode_changes(before, self.seen), before)

    async def undo_changes(
        self, review: Review, source: str, source_ref: str, since: float, until: float | None = None
    ) -> str | None:
        """Restore the files of the head, and save the current ones as a version beside it. Changes by somebody else
        since the review stay, as do changes later than `until`; the call began at `since`."""
        chat, checkout, work = self._opened.chat, self._opened.checkout, self._versions.in_thread
        await self._manifests.record_pending_restore(chat, self.head.manifest_id or "")
        try:
            after = await work(checkout.restore_ignore_files, review.old, review.before, since)
            left = [path for path in diff(after, review.new).files if path in review.new.files]
            version = await self._store_branch(source, source_ref, graft(after, review.new, left))
            theirs = await work(checkout.undo_changes, review.old, after, review.before, until)
        finally:
            await self._manifests.set_head(chat, self.head.manifest_id, self.head.manifest_id)
        if theirs:
            log.warning(
                "chat %r: files changed by somebody else while a call was undone were kept: %s", chat, theirs[:20]
            )
        await self.save("edit")
        return version

    async def save(self, source: str, source_ref: str | None = None, review: Review | None = None) -> str | None:
        """Save the files as they are now, or as reviewed; return their manifest, which is the head if nothing
        changed."""
        old = await self._tree()
        new, patch = await self._diff_since(old) if review is None else (review.new, diff(review.old, review.new))
        if not patch:
            return self.head.manifest_id
        row = await self._row(old, patch, source, source_ref)
        if not await self._manifests.add(row, self.head.manifest_id):
            raise Conflict(
                f"chat {self._opened.chat!r} was changed by another process; the files are saved as manifest {row.id}"
            )
        self._set_head(row.id, new)
        await self._announce(old, patch)
        return row.id

    async def checkout(self, manifest: str | None, message: str | None = None, hides: Hides = hide_nothing) -> Changes:
        """Restore a manifest's files and make it the head, after saving the files on disk as a version. Hidden files
        stay as they are; if they differ, the head is a version with them on top of the manifest."""
        await self.save("edit")
        if hides is not hide_nothing:
            target = await self._versions.tree(self._opened.chat, manifest)
            kept = await self._keep_hidden(target, hides)
            if self.left_out:
                manifest = await self._store_on_top(manifest, target, kept, "edit")
        if manifest == self.head.manifest_id:
            await self._manifests.set_head(self._opened.chat, manifest, manifest, message)
            self.head = replace(self.head, message_id=message or self.head.message_id)
            return Changes()
        return await self._materialize(manifest, message)

    async def branch(
        self, manifest: str | None, source_ref: str, message: str | None = None, hides: Hides = hide_nothing
    ) -> Changes:
        """Restore a manifest's files as a new version on top of it, from which later changes branch off."""
        await self.save("edit")
        row = await self._parent()
        if manifest == self.head.manifest_id or (row and (row.source, row.parent_id) == (BRANCH, manifest)):
            return await self.checkout(self.head.manifest_id, message)
        return await self.checkout(await self._store_branch_point(manifest, source_ref), message, hides)

    async def before(self) -> str | None:
        """Return the version before the head, to undo to; None means no files. Refused at the first version."""
        row = await self._parent()
        while row is not None and row.source == BRANCH:  # its files are its parent's
            row = await self._manifests.find(row.parent_id) if row.parent_id is not None else None
        if row is None or (row.parent_id is None and row.source != "tool_run"):
            raise NotFound("nothing to undo: this is the first version", code="NOTHING_TO_UNDO")
        return row.parent_id

    async def put(self, tree: Tree, source: str, source_ref: str | None = None, hides: Hides = hide_nothing) -> Changes:
        """Restore a tree as a new version on top of the head, after saving the files on disk. Hidden files stay as
        they are."""
        await self.save("edit")
        old = await self._tree()
        patch = diff(old, await self._keep_hidden(tree, hides))
        if not patch:
            return Changes()
        row = await self._row(old, patch, source, source_ref)
        await self._manifests.store(row)
        return await self._materialize(row.id)

    async def switch(self, message: str, parent: str | None, level: Permission = Permission.EXECUTE) -> None:
        """Switch to the files of a message: continue at the head, or branch from an earlier message or, where `parent`
        is empty, from the beginning of the chat. Refused if the `level` of the caller does not allow that change."""
        chat = self._opened.chat
        if message == self.head.message_id:
            return
        known = await self._manifests.knows_message(chat, message)
        base = message if known else parent
        goes_on = base is None or base == self.head.message_id
        if parent and not (goes_on or known or await self._manifests.knows_message(chat, parent)):
            # such as a person's, which makes no call: it has the files as they are, also for another try after it
            now = await self.save("edit")
            await self._manifests.store_message(chat, parent, now and self.head.message_id, now)
            goes_on = True
        above = (parent or None) if parent is not None else self.head.message_id
        target = None if goes_on else await self._manifests.find_by_message(chat, str(base))
        if not goes_on and Permission.READ_ONLY in (level, self._versions.permission):
            await self.save("edit")
            if diff(await self._tree(), await self._versions.tree(chat, target)):
                raise Forbidden("the files of that message are others than now, and this caller may only read")
        if not known:
            # without a parent message, its files are the chat's current ones
            own = await self.save("edit") if above is None else None
            if not goes_on and target != self.head.manifest_id:
                own = target = await self._store_branch_point(target, message)
            await self._manifests.store_message(chat, message, above, own)
        if goes_on:
            await self._manifests.set_head(chat, self.head.manifest_id, self.head.manifest_id, message)
            self.head = replace(self.head, message_id=message)
        else:
            denied, folder = self._versions.denied, self._opened.folder
            await self.checkout(target, message, spare_protected(folder, denied) if self._opened.protected else denied)

    async def keep(self, files: Sequence[Parts], call: str) -> None:
        """Keep files that no version has, as they are before a call; `restore_kept` brings them back."""
        with self._versions.root(self._opened.chat) as root:
            work = (unversioned.store, root, self._opened.blobs, await self._tree(), files)
            await self._store_branch(unversioned.KEPT, call, await self._versions.in_thread(*work))

    async def scan_ignored(self, alone: bool = True) -> Index | str:
        """Return the small files that the last scan ignored; or why they, or if not `alone` others, are not watched."""
        return await self._versions.in_thread(self._opened.checkout.watch_ignored, alone)

    async def review_ignored(self, before: Index) -> Review:
        """Return the changes to ignored files since `before`."""
        after = await self._versions.in_thread(self._opened.checkout.snapshot_ignored, before) or Index()
        what = changes(before.tree, diff(before.tree, after.tree))
        return Review(before.tree, after.tree, what, mode_changes(before, after), before)

    async def keep_ignored(self, review: Review, call: str) -> tuple[Parts, ...]:
        """Keep the content that ignored files had before a call changed or deleted them; return their paths."""
        paths = (*review.changes.changed, *review.changes.deleted)
        if paths:
            await self._store_branch(unversioned.KEPT, call, graft(await self._tree(), review.old, paths))
        return tuple(map(locate, paths))

    async def undo_ignored(self, review: Review, call: str) -> None:
        """Restore ignored files after a call, and save what they contained as a version beside the head."""
        await self._store_branch("undone", call, graft(await self._tree(), review.new, review.changes.changed))
        await self._versions.in_thread(self._opened.checkout.undo_ignored, review)

    async def restore_kept(self, hides: Hides = hide_nothing) -> unversioned.RestoredCopies | None:
        """Bring back what the latest call since the head replaced or deleted and no version has, but for hidden files;
        None if there is nothing. What it replaces now is kept, too."""
        work, chat, head = self._versions.in_thread, self._opened.chat, await self._tree()
        with self._versions.root(chat) as root:
            for row in await self._manifests.beside(chat, self.head.manifest_id, unversioned.KEPT):
                kept = await self._versions.tree(chat, row.id)
                old = await self._versions.tree(chat, row.parent_id)
                changed, existing = await work(unversioned.find_changed, root, old, kept, hides)
                if changed:
                    tree = await work(unversioned.store, root, self._opened.blobs, head, existing)
                    replaced = await self._store_branch("undone", row.source_ref, tree)
                    await work(unversioned.put_back, root, self._opened.blobs, kept, changed)
                    return unversioned.RestoredCopies(tuple(map(show_path, changed)), row.source_ref, replaced)
        return None

    async def _materialize(self, manifest: str | None, message: str | None = None) -> Changes:
        chat = self._opened.chat
        target = await self._versions.tree(chat, manifest)
        await self._manifests.record_pending_restore(chat, manifest or "")
        try:
            what = await self._versions.in_thread(self._opened.checkout.materialize, target, self._seen)
        except GatewayError:  # repeating it would be refused too, so the head stays
            await self._manifests.set_head(chat, self.head.manifest_id, self.head.manifest_id)
            raise
        await self._manifests.set_head(chat, manifest, self.head.manifest_id, message)
        self._set_head(manifest, target, message)
        self._versions.announce(chat, what)
        return what

    async def _announce(self, old: Tree, patch: Patch) -> None:
        if self._versions.watched:
            what = await self._versions.in_thread(changes, old, patch)
            self._versions.announce(self._opened.chat, what)

    async def _store_branch(self, source: str, source_ref: str | None = None, tree: Tree | None = None) -> str | None:
        """Save a tree, by default the files on disk, as a version beside the head."""
        old = await self._tree()
        patch = (await self._diff_since(old))[1] if tree is None else diff(old, tree)
        if not patch:
            return None
        row = await self._row(old, patch, source, source_ref)
        await self._manifests.store(row)
        return row.id

    async def _store_branch_point(self, manifest: str | None, source_ref: str) -> str:
        """Store a version with the files of a manifest, from which a branch begins."""
        tree = await self._versions.tree(self._opened.chat, manifest)
        return await self._store_on_top(manifest, tree, tree, BRANCH, source_ref)

    async def _store_on_top(
        self, manifest: str | None, old: Tree, new: Tree, source: str, source_ref: str | None = None
    ) -> str:
        parent = await self._manifests.find(manifest) if manifest is not None else None
        row = new_row(self._opened.chat, parent, old, diff(old, new), source, source_ref)
        await self._manifests.store(row)
        return row.id

    async def _keep_hidden(self, target: Tree, hides: Hides) -> Tree:
        kept, self.left_out = await self._versions.in_thread(keep_hidden, await self._tree(), target, hides)
        return kept

    async def _diff_since(self, old: Tree) -> tuple[Tree, Patch]:
        new, patch = await self._versions.in_thread(self._opened.diff_since, old)
        self._seen = new
        return new, patch

    async def _row(self, old: Tree, patch: Patch, source: str, source_ref: str | None) -> ManifestRow:
        parent = await self._parent()
        return await self._versions.in_thread(new_row, self._opened.chat, parent, old, patch, source, source_ref)

    async def _tree(self) -> Tree:
        tree = await self._versions.tree(self._opened.chat, self.head.manifest_id)
        self._opened.manifest, self._opened.tree = self.head.manifest_id, tree
        return tree

    async def _parent(self) -> ManifestRow | None:
        if self.head.manifest_id is None:
            return None
        return await self._manifests.find(self.head.manifest_id)

    def _set_head(self, manifest: str | None, tree: Tree, message: str | None = None) -> None:
        self._opened.manifest, self._opened.tree = manifest, tree
        self._opened.write_head(manifest)
        self.head = Head(manifest, message or self.head.message_id)
