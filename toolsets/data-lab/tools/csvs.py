"""CSV as it is found in the wild: any of four delimiters, headers with gaps, rows of odd lengths."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

DELIMITERS = ",;\t|"
FIELD_LIMIT = 1024 * 1024
_SAMPLE_ROWS = 50


@dataclass(frozen=True)
class Dialect:
    delimiter: str
    header: bool


def sniff(sample: str, header: bool, *, tabs: bool = False) -> Dialect:
    """The delimiter that cuts the sample into the most even rows."""
    return Dialect("\t" if tabs else max(DELIMITERS, key=lambda each: _evenness(sample, each)), header)


def rows(file: BinaryIO, encoding: str, dialect: Dialect, columns: dict[str, int], name: str) -> Iterator[list[str]]:
    """The rows below the header, which fills `columns`; empty lines are left out, and cells beyond the header."""
    csv.field_size_limit(FIELD_LIMIT)
    text = io.TextIOWrapper(file, encoding, "replace", newline="")
    reader = csv.reader(text, delimiter=dialect.delimiter)
    try:
        found = (row for row in reader if row)
        first = next(found, [])
        for title in titles(first if dialect.header else [""] * len(first)):
            columns[title] = len(columns)
        for row in found if dialect.header else itertools.chain([first], found):
            yield row if len(row) <= len(columns) else row[: len(columns)]
    except csv.Error as error:
        raise ValueError(f"{name!r} line {reader.line_num}: {error}") from None
    finally:
        text.detach()


def titles(first: list[str]) -> list[str]:
    """A name of its own for each column, also where the header has none, or has it twice."""
    found: list[str] = []
    for index, cell in enumerate(first):
        title = " ".join(cell.split())[:100] or f"column {index + 1}"
        number = 2
        plain = title
        while title in found:
            title, number = f"{plain} ({number})", number + 1
        found.append(title)
    return found


def _evenness(sample: str, delimiter: str) -> tuple[float, int]:
    """Return the share of the first rows with as many cells as the first, and that number; one cell is no table."""
    lines = sample.splitlines(keepends=True)
    try:
        found = [row for row in itertools.islice(csv.reader(lines, delimiter=delimiter), _SAMPLE_ROWS) if row]
    except csv.Error:
        return 0.0, 0
    width = len(found[0]) if found else 0
    if width < 2:
        return 0.0, 0
    return sum(len(row) == width for row in found) / len(found), width
