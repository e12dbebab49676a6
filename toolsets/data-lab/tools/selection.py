"""The cells a tool asks for: some columns of the rows that are meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .conditions import Condition, holds
from .problems import check_columns
from .tables import Table


class Selection:
    """Read once, in batches; `rows` then says how many there were."""

    def __init__(self, table: Table, path: str, columns: Sequence[str], where: Sequence[Condition]) -> None:
        self.rows = 0
        self.decimal_comma = table.decimal_comma
        self._table = table
        self._path = path
        self._columns = columns
        self._where = where

    def batches(self) -> Iterator[list[list[str]]]:
        """Rows with the wanted cells in the wanted order; refused at the end when a column never came."""
        asked = [*self._columns, *(each.column for each in self._where)]
        seen: tuple[str, ...] = ()
        for batch in self._table.batches():
            seen = batch.columns
            if not set(asked) <= set(seen):
                continue
            at = {name: index for index, name in enumerate(seen)}
            meant = holds(self._where, at, self.decimal_comma)
            places = [at[name] for name in self._columns]
            rows = [[row[place] if place < len(row) else "" for place in places] for row in batch.rows if meant(row)]
            self.rows += len(rows)
            yield rows
        check_columns(asked, seen, self._path)
