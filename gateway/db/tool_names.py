"""Public tool names once handed out: the same in every process, and after every restart."""

from __future__ import annotations

from collections.abc import Mapping

from gateway import names
from gateway.db import Database, Statement
from gateway.errors import Conflict

_INSERT = "INSERT INTO tool_names (name, tool_id) VALUES (?, ?)"
_ATTEMPTS = 10  # each lost one means another process handed out names at the same moment


class ToolNames:
    """The stored mapping between tool ids and the names clients see."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def load(self) -> dict[str, str]:
        """Every name ever handed out: `{name: id}`."""
        rows = await self._db.fetch("SELECT name, tool_id FROM tool_names")
        return dict(rows)

    async def assign(self, wanted: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """A public name for each tool id, `{id: name}` from `{id: wished name}`, stored before it is told; and every
        name ever handed out, `{name: id}`. A tool with another prefix than before has several."""
        for _ in range(_ATTEMPTS):
            taken = await self.load()
            assigned = names.assign(wanted, taken)
            fresh = {name: tool_id for tool_id, name in assigned.items() if name not in taken}
            try:
                if fresh:
                    await self._db.run(*(Statement(_INSERT, row) for row in fresh.items()))
                return assigned, taken | fresh
            except Conflict:
                continue
        raise Conflict("public tool names could not be settled; other processes kept changing them")
