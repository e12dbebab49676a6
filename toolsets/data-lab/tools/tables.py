"""A data file as batches of rows, one after the other: however long the file, only one batch is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from covalt_toolset import get_context

from . import csvs, jsons
from .encodings import detect
from .workspace import inside

Format = Literal["csv", "json", "jsonl"]
FORMATS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".txt": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
BATCH_ROWS = 10_000
BATCH_CHARACTERS = 8 * 1024 * 1024
COLUMNS_LIMIT = 1_000
_SAMPLE = 256 * 1024


@dataclass(frozen=True)
class Batch:
    """Rows of cells as text, each under the column of its position; a row may be shorter than the columns.

    The columns of a later batch begin with those of an earlier one: a JSON file may bring new ones.
    """

    columns: tuple[str, ...]
    rows: list[list[str]]


@dataclass(frozen=True)
class Table:
    """A data file and how it is to be read."""

    path: Path
    format: Format
    encoding: str
    size: int
    dialect: csvs.Dialect | None = None

    @property
    def decimal_comma(self) -> bool:
        """True if numbers may have a decimal comma: only when the delimiter is no comma."""
        return self.dialect is not None and self.dialect.delimiter == ";"

    def batches(self) -> Iterator[Batch]:
        """All rows. Whoever watches the call sees how far it is."""
        columns: dict[str, int] = {}
        rows: list[list[str]] = []
        characters = count = 0
        with self.path.open("rb") as file:
            for row in self._rows(file, columns):
                rows.append(row)
                count += 1
                characters += sum(map(len, row))
                if len(rows) >= BATCH_ROWS or characters >= BATCH_CHARACTERS:
                    yield Batch(tuple(columns), rows)
                    get_context().progress(min(file.tell(), self.size), self.size, f"{count:,} rows read")
                    rows, characters = [], 0
        yield Batch(tuple(columns), rows)

    def objects(self) -> Iterator[jsons.Object]:
        """The rows of a JSON file as they stand there."""
        with self.path.open("rb") as file:
            yield from self._objects(file)

    def _rows(self, file: BinaryIO, columns: dict[str, int]) -> Iterator[list[str]]:
        if self.dialect is not None:
            return csvs.rows(file, self.encoding, self.dialect, columns, self.path.name)
        return jsons.rows(self._objects(file), columns, COLUMNS_LIMIT)

    def _objects(self, file: BinaryIO) -> Iterator[jsons.Object]:
        read = jsons.objects if self.format == "json" else jsons.lines
        return read(file, self.encoding, self.path.name)


def open_table(path: str, header: bool = True) -> Table:
    """The table in a file of the workspace, its encoding and dialect found out; refused when it is no data file."""
    target = inside(path)
    if not target.is_file():
        raise FileNotFoundError(f"there is no file {path!r} in the workspace")
    kind = FORMATS.get(target.suffix.lower())
    if kind is None:
        raise ValueError(f"{path!r} is no data file that is read here; there are {', '.join(FORMATS)}")
    with target.open("rb") as file:
        sample = file.read(_SAMPLE)
    if not sample.strip():
        raise ValueError(f"{path!r} is empty")
    encoding = detect(sample)
    dialect = None
    if kind == "csv":
        dialect = csvs.sniff(sample.decode(encoding, "replace"), header, tabs=target.suffix.lower() in (".tsv", ".tab"))
    return Table(target, kind, encoding, target.stat().st_size, dialect)
