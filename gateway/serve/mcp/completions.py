"""Completions: what may stand for a variable of a resource template."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from gateway.calls import check_chat
from gateway.errors import Invalid
from gateway.executor import Executor
from gateway.serve.mcp.render_resources import COMPLETED, PLAN, VIEW, Renders
from gateway.serve.mcp.resources import FILE, MANIFEST, VERSION, Reader, path_of, walk_files
from gateway.serve.mcp.uris import path_text, template_value
from gateway.tools import LIST_RESOURCES, READ_RESOURCE, Hides
from gateway.workspace.versions import Versions
from gateway.workspace.walk import Entry

# What the protocol allows in one answer.
LIMIT = 100

_HISTORY = 1000
_VARIABLES = {
    FILE: ("chat", "path"),
    VERSION: ("chat", "path", "manifest"),
    MANIFEST: ("id",),
    PLAN: ("call_id",),
    VIEW: ("call_id",),
}


class Completions:
    def __init__(self, executor: Executor, versions: Versions, renders: Renders) -> None:
        self._executor = executor
        self._versions = versions
        self._renders = renders

    async def complete(
        self, reader: Reader, template: str, variable: str, begun: str, given: Mapping[str, str]
    ) -> dict[str, Any]:
        """Values for a variable that begin as `begun` does; `given` are the variables chosen already."""
        if variable not in _VARIABLES.get(template, ()):
            known = "; ".join(f"{', '.join(names)} of {known}" for known, names in _VARIABLES.items())
            raise Invalid(f"there is nothing to complete {variable!r} of {template!r} with; there is {known}")
        chat = check_chat(given.get("chat") or reader.chat)
        if variable == "chat":
            return _answer([reader.chat] if reader.chat.startswith(begun) else [], whole=True)
        if not await self._versions.may_read(chat, reader.principal):
            return _answer([], whole=True)
        if variable == "path":
            # What was begun is not among the arguments: a rule that refuses it leaves it out, and refuses nothing else.
            call = reader.call("completion/complete", chat, {"argument": variable}, confirmed=True)
            hides = self._executor.hides(READ_RESOURCE)
            work = partial(self._versions.in_thread, _paths, self._versions, chat, begun, hides)
            return await self._executor.request(call, LIST_RESOURCES, work)
        if variable == "call_id":
            ids = await self._renders.latest_ids(chat)
            return _answer([call_id for call_id in ids if call_id.startswith(begun)], whole=len(ids) < COMPLETED)
        return await self._manifests(chat, begun)

    async def _manifests(self, chat: str, begun: str) -> dict[str, Any]:
        """The latest first; only the last thousand are looked at."""
        rows = await self._versions.manifests.history(chat, limit=_HISTORY)
        return _answer([row.id for row in rows if row.id.startswith(begun)], whole=len(rows) < _HISTORY)


def _paths(versions: Versions, chat: str, begun: str, hides: Hides) -> dict[str, Any]:
    beginnings = {begun, path_text(begun)}  # typed by a person, or taken from an earlier answer

    def leads_on(directory: Entry) -> bool:
        inside = f"{path_of(directory)}/"
        return any(inside.startswith(beginning) or beginning.startswith(inside) for beginning in beginnings)

    with versions.root(chat) as root, walk_files(root, leads_on) as walk:
        paths = [path_of(entry) for entry in walk if entry.kind == "file"]
    found = [template_value(path) for path in paths if any(map(path.startswith, beginnings)) and not hides(path)]
    return _answer(found, whole=not walk.truncated)


def _answer(values: list[str], whole: bool) -> dict[str, Any]:
    completion: dict[str, Any] = {"values": values[:LIMIT], "hasMore": len(values) > LIMIT or not whole}
    if whole:
        completion["total"] = len(values)
    return {"resultType": "complete", "completion": completion}
