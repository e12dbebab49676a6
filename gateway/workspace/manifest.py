"""Manifests: trees as the rows that keep them, patch upon patch."""

from __future__ import annotations

import time
from collections.abc import Sequence

import orjson

from gateway.db import timestamp
from gateway.db.manifests import ManifestRow
from gateway.names import new_id
from gateway.workspace.tree import EMPTY, Patch, Tree, apply

DEPTH_LIMIT = 1024
_ENTRY_BYTES = 71  # a digest, its quotes, colon and comma


def assemble(chain: Sequence[tuple[str, str]]) -> Tree:
    """The tree that a chain of patches makes, the whole one first."""
    combined = Patch()
    for patch, meta_patch in chain:
        combined = combined.then(Patch(orjson.loads(patch), orjson.loads(meta_patch)))
    return apply(EMPTY, combined)


def new_row(
    chat: str, parent: ManifestRow | None, old: Tree, patch: Patch, source: str, source_ref: str | None
) -> ManifestRow:
    """The row that keeps `patch` on top of its parent's tree `old`: as it is, or the whole tree once
    the patches weigh half as much as the whole, so that reading stays cheap and history small."""
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
    """By how much the whole gets longer."""
    growth = 0
    for path, digest in patch.files.items():
        if digest is None:
            growth -= len(path) + _ENTRY_BYTES
        elif path not in old.files:
            growth += len(path) + _ENTRY_BYTES
    return growth


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
