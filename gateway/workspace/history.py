"""A chat's versions as rows: trees from chains of patches, new rows, and the history with the changes of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson

from gateway.db import timestamp
from gateway.db.manifests import ManifestRow
from gateway.names import new_id
from gateway.workspace.tree import EMPTY, Changes, Patch, Tree, apply, changes, diff

if TYPE_CHECKING:
    from gateway.workspace.versions import Versions

NOW = "now"
# Characters of an id that identify a version: its millisecond and twelve random bits.
SHORT = 18


@dataclass(frozen=True)
class Version:
    """One version: its source, its changes against its parent, and whether it is the head.

    `message` is the latest message with these files, for clients that name messages. `tool` is the tool of the call
    that `source_ref` names, if it names one.
    """

    id: str
    parent: str | None
    created: str
    source: str
    source_ref: str | None
    message: str | None
    head: bool
    changes: Changes
    tool: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


async def history(versions: Versions, chat: str, *, before: str | None = None, limit: int = 20) -> list[Version]:
    """Return the chat's versions of all branches, newest first; `before` is the id of the last one already returned."""
    rows = await versions.manifests.history(chat, before=before, limit=limit)
    if not rows:
        return []
    head = await versions.manifests.head(chat)
    messages = await versions.manifests.load_messages(chat, rows[-1].id, rows[0].id)
    tools = await versions.manifests.load_tool_names([row.source_ref for row in rows if row.source_ref is not None])
    made = await _changes(versions, chat, rows)
    return [
        Version(
            id=row.id,
            parent=row.parent_id,
            created=row.created_at,
            source=row.source,
            source_ref=row.source_ref,
            message=messages.get(row.id),
            head=row.id == head.manifest_id,
            changes=made[row.id],
            tool=tools.get(row.source_ref or ""),
        )
        for row in rows
    ]


async def endpoints(
    versions: Versions, chat: str, principal: str, from_: str | None, to: str | None
) -> tuple[str | None, str | None]:
    """Return the two manifests to compare. `to` is a version, NOW (the files on disk, saved as a version) or by default
    the head; `from_` is a version, by default the parent of `to`. NOW alone compares with the head."""
    if from_ == NOW and to is None:
        from_, to = None, NOW
    if to == NOW:
        async with versions.hold(chat, principal) as files:
            before, after = files.head.manifest_id, await files.save("edit")
    else:
        after = (await versions.find(chat, to)).id if to else (await versions.manifests.head(chat)).manifest_id
        before = (await versions.manifests.find(after)).parent_id if after and not from_ else None
    return (await versions.find(chat, from_)).id if from_ else before, after


async def _changes(versions: Versions, chat: str, rows: Sequence[ManifestRow]) -> dict[str, Changes]:
    """Return the changes of each row. Each tree is built from its parent's and dropped when no row needs it."""
    needed = Counter(row.parent_id for row in rows)
    trees: dict[str | None, Tree] = {}
    made: dict[str, Changes] = {}
    for row in reversed(rows):
        parent = row.parent_id
        old = trees.pop(parent) if parent in trees else await versions.tree(chat, parent)
        made[row.id], new = await versions.in_thread(_step, old, row)
        needed[parent] -= 1
        if needed[parent]:
            trees[parent] = old
        if needed[row.id]:
            trees[row.id] = new
    return made


def _step(old: Tree, row: ManifestRow) -> tuple[Changes, Tree]:
    patch = Patch(orjson.loads(row.patch), orjson.loads(row.meta_patch))
    if row.depth == 0:  # kept whole, so it says nothing of what is gone
        patch = diff(old, apply(EMPTY, patch))
    return changes(old, patch), apply(old, patch)


DEPTH_LIMIT = 1024
_ENTRY_BYTES = 71  # a digest, its quotes, colon and comma


def assemble(chain: Sequence[tuple[str, str]]) -> Tree:
    """Build the tree of a chain of patches, which begins with a full one."""
    combined = Patch()
    for patch, meta_patch in chain:
        combined = combined.then(Patch(orjson.loads(patch), orjson.loads(meta_patch)))
    return apply(EMPTY, combined)


def new_row(
    chat: str, parent: ManifestRow | None, old: Tree, patch: Patch, source: str, source_ref: str | None
) -> ManifestRow:
    """Return the row for `patch` on top of its parent's tree `old`. It stores the patch, or the whole tree once the
    chain of patches is half as large as the whole: reading stays cheap and history small."""
    files, meta = _json(dict(patch.files)), _json(dict(patch.meta))
    full = (parent.full_bytes if parent else 0) + _growth(old, patch)
    depth = parent.depth + 1 if parent else 0
    chain = (parent.chain_bytes if parent else 0) + len(files) + len(meta)
    if parent is None or depth > DEPTH_LIMIT or chain * 2 > full:
        new = apply(old, patch)
        depth, chain, files, meta = 0, 0, _json(dict(new.files)), _json(dict(new.meta))
        full = len(files)
    return ManifestRow(
        id=new_id(),
        chat_id=chat,
        parent_id=parent.id if parent else None,
        depth=depth,
        chain_bytes=chain,
        full_bytes=full,
        patch=files,
        meta_patch=meta,
        created_at=timestamp(time.time()),
        source=source,
        source_ref=source_ref,
    )


def _growth(old: Tree, patch: Patch) -> int:
    """Return the growth of the full tree in bytes."""
    growth = 0
    for path, digest in patch.files.items():
        if digest is None:
            growth -= len(path) + _ENTRY_BYTES
        elif path not in old.files:
            growth += len(path) + _ENTRY_BYTES
    return growth


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
