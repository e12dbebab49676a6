"""The same data in another format, or only a part of it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, TextIO

from pydantic import BaseModel, Field

from covalt_toolset import tool

from .conditions import Where, holds
from .jsons import cell
from .problems import check_columns
from .tables import COLUMNS_LIMIT, FORMATS, Table, open_table
from .values import Kind, parse, reader
from .workspace import inside

Record = dict[str, Any]
_DELIMITERS = {".csv": ",", ".txt": ",", ".tsv": "\t", ".tab": "\t"}


class Converted(BaseModel):
    output: str
    format: str
    rows: int
    columns: list[str]
    size: int = Field(description="Bytes")


@tool(name="Convert Data", permission="read-write", access="write", idempotent=True, timeout=900)
def convert_data(
    path: str,
    output: str,
    columns: Annotated[list[str], Field(min_length=1, max_length=COLUMNS_LIMIT)] | None = None,
    where: Where | None = None,
) -> Converted:
    """Write a data file in another format, as UTF-8: CSV, TSV, JSON or JSONL, by the ending of 'output'. It may be
    only some columns and only the rows for which conditions hold, so this also filters a file. Where a whole
    column of a CSV is numbers or truths it is so in JSON; an empty cell becomes null.

    Args:
        path: The data file, relative to the workspace
        output: The file to write, such as 'data/sales.json'; what is there is replaced
        columns: Only these columns, in this order
        where: Only the rows for which all of these conditions hold
    """
    table = open_table(path)
    target = inside(output)
    kind = FORMATS.get(target.suffix.lower())
    if kind is None:
        raise ValueError(f"'output' {output!r} must end in one of {', '.join(FORMATS)}")
    if target == table.path:
        raise ValueError("'output' is the file that is read; give it another name")
    if target.is_dir():
        raise IsADirectoryError(f"{output!r} is a folder; name a file in it")
    found = _columns(table)
    chosen = columns or list(found)
    check_columns([*chosen, *(each.column for each in where or [])], found, path)
    meant = holds(where or [], {name: index for index, name in enumerate(found)}, table.decimal_comma)
    with _replacing(target) as file:
        if kind == "csv":
            rows = _write_csv(file, _texts(table, found, chosen, meant), chosen, _DELIMITERS[target.suffix.lower()])
        else:
            rows = _write_json(file, _records(table, found, chosen, meant), lines=kind == "jsonl")
    return Converted(output=output, format=kind, rows=rows, columns=chosen, size=target.stat().st_size)


def _columns(table: Table) -> dict[str, set[Kind]]:
    """Every column, and the kinds of its cells, by reading the file through once."""
    read = reader(table.decimal_comma)
    found: dict[str, set[Kind]] = {}
    for batch in table.batches():
        for name in batch.columns:
            found.setdefault(name, set())
        if table.dialect is not None:
            for name, cells in zip(batch.columns, zip_longest(*batch.rows, fillvalue=""), strict=False):
                found[name].update(read(text)[0] for text in set(cells))
    return found


def _texts(
    table: Table, found: Mapping[str, object], chosen: Sequence[str], meant: Callable[[Sequence[str]], bool]
) -> Iterator[list[str]]:
    places = [list(found).index(name) for name in chosen]
    for batch in table.batches():
        for row in batch.rows:
            if meant(row):
                yield [row[place] if place < len(row) else "" for place in places]


def _records(
    table: Table, found: Mapping[str, set[Kind]], chosen: Sequence[str], meant: Callable[[Sequence[str]], bool]
) -> Iterator[Record]:
    """Rows as objects: what was JSON stays as it was, what was text becomes what its whole column is."""
    if table.dialect is None:
        for each in table.objects():
            if meant([cell(each.get(name)) for name in found]):
                yield {name: each[name] for name in chosen if name in each}
        return
    makes = [_maker(found[name], table.decimal_comma) for name in chosen]
    for texts in _texts(table, found, chosen, meant):
        yield {name: make(text) for name, make, text in zip(chosen, makes, texts, strict=True)}


def _maker(kinds: set[Kind], decimal_comma: bool) -> Callable[[str], Any]:
    """Return the conversion of a column's cells to JSON; a column of several kinds stays text."""
    kinds = kinds - {"missing"}
    if not kinds <= {"integer", "number"} and kinds != {"boolean"}:
        return lambda text: None if parse(text)[0] == "missing" else text

    def make(text: str) -> Any:
        kind, worth = parse(text, decimal_comma)
        if kind == "missing":
            return None
        return bool(worth) if kind == "boolean" else int(worth) if kind == "integer" else worth

    return make


def _write_csv(file: TextIO, rows: Iterable[Sequence[str]], columns: Sequence[str], delimiter: str) -> int:
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    count = 0
    for row in rows:
        writer.writerow(row)
        count += 1
    return count


def _write_json(file: TextIO, records: Iterable[Record], *, lines: bool) -> int:
    count = 0
    for record in records:
        file.write("" if lines else ",\n" if count else "[\n")
        file.write(json.dumps(record, ensure_ascii=False))
        file.write("\n" if lines else "")
        count += 1
    if not lines:
        file.write("\n]\n" if count else "[]\n")
    return count


@contextmanager
def _replacing(target: Path) -> Iterator[TextIO]:
    """A file that takes the target's place when it is complete; when writing fails nothing of it stays."""
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f".{target.name}.part")
    try:
        with half.open("w", encoding="utf-8", errors="replace", newline="") as file:
            yield file
        half.replace(target)
    finally:
        half.unlink(missing_ok=True)
