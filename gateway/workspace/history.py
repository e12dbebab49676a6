"""The history of a chat's versions: newest first, each with its changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import orjson

from gateway.db.manifests import ManifestRow
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
    messages = await versions.manifests.messages(chat, rows[-1].id, rows[0].id)
    tools = await versions.manifests.tools([row.source_ref for row in rows if row.source_ref is not None])
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
