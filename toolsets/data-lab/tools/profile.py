"""A first look at a data file: what is in each of its columns."""

from __future__ import annotations

from itertools import zip_longest
from typing import Annotated

from pydantic import BaseModel, Field

from covalt_toolset import tool

from .columns import Cells, Column
from .problems import check_columns
from .tables import Table, open_table

COLUMNS_SHOWN = 40
_SAMPLE_ROWS = 3
_SAMPLE_LENGTH = 80


class Profile(BaseModel):
    file: str
    format: str
    encoding: str
    delimiter: str | None = Field(description="Between the cells of a CSV file")
    size: int = Field(description="Bytes")
    rows: int
    total_columns: int
    columns: list[Column] = Field(description=f"At most {COLUMNS_SHOWN}; name others in the argument 'columns'")
    sample: list[dict[str, str]] = Field(description="The first rows, of these columns")


@tool(name="Profile Data", permission="read-only", access="read", idempotent=True, timeout=600)
def profile_data(
    path: str,
    columns: Annotated[list[str], Field(max_length=COLUMNS_SHOWN)] | None = None,
    top: Annotated[int, Field(ge=0, le=20)] = 5,
    header: bool = True,
) -> Profile:
    """Look over a CSV, TSV, JSON or JSONL file: for each column its type, missing and different values, least,
    greatest and mean, quantiles, a histogram and the most frequent values. Call this before you chart or convert a
    file: it gives the columns' names. A person sees it as a page of cards.

    Args:
        path: The data file, relative to the workspace. JSON is a list of objects, JSONL one object per line
        columns: Only these columns; leave it out for all
        top: How many of the most frequent values to list for each column
        header: Whether the first row of a CSV file has the columns' names; else they are 'column 1', 'column 2', …
    """
    table = open_table(path, header)
    cells, rows, sample = _read(table, columns)
    wanted = columns if columns is not None else list(cells)[:COLUMNS_SHOWN]
    check_columns(wanted, cells, path)
    return Profile(
        file=path,
        format=table.format,
        encoding=table.encoding,
        delimiter=table.dialect.delimiter if table.dialect else None,
        size=table.size,
        rows=rows,
        total_columns=len(cells),
        columns=[cells[name].column(top) for name in wanted],
        sample=[{name: _cut(row.get(name, "")) for name in wanted} for row in sample],
    )


def _read(table: Table, wanted: list[str] | None) -> tuple[dict[str, Cells], int, list[dict[str, str]]]:
    """Every column's cells, the number of rows, and the first rows; the cells of columns nobody wants are not read."""
    cells: dict[str, Cells] = {}
    sample: list[dict[str, str]] = []
    rows = 0
    for batch in table.batches():
        transposed = list(zip_longest(*batch.rows, fillvalue=""))
        for index, name in enumerate(batch.columns):
            column = transposed[index] if index < len(transposed) else ()
            if name not in cells:
                cells[name] = Cells(name, table.decimal_comma)
                cells[name].missing(rows)
            if _is_wanted(name, len(cells), wanted):
                cells[name].add(column)
                cells[name].missing(len(batch.rows) - len(column))
        if len(sample) < _SAMPLE_ROWS:
            sample += [dict(zip(batch.columns, row, strict=False)) for row in batch.rows[: _SAMPLE_ROWS - len(sample)]]
        rows += len(batch.rows)
    return cells, rows, sample


def _is_wanted(name: str, position: int, wanted: list[str] | None) -> bool:
    return position <= COLUMNS_SHOWN if wanted is None else name in wanted


def _cut(text: str) -> str:
    return text if len(text) <= _SAMPLE_LENGTH else f"{text[: _SAMPLE_LENGTH - 1]}…"
