"""One column of a table, as it is known after all its cells have been seen once."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, Field

from .sketches import Distinct, Frequent, Numbers
from .values import Kind, Value, format_value, reader

BINS = 16
_MOSTLY = 0.95
_ODD_SHOWN = 3
_ODD_LENGTH = 40

Type = Literal["integer", "number", "boolean", "date", "datetime", "text", "empty"]


class TopValue(BaseModel):
    value: str
    count: int


class Quantiles(BaseModel):
    p05: float | str
    p25: float | str
    median: float | str
    p75: float | str
    p95: float | str


class Column(BaseModel):
    """Statistics of a column. Dates are ISO texts."""

    name: str
    type: Type
    missing: int = Field(description="Cells with nothing in them, or with NA, null and the like")
    distinct: int = Field(description="Different values")
    distinct_is_estimate: bool = Field(description="True when there are too many to count each")
    minimum: float | str | None = None
    maximum: float | str | None = None
    mean: float | str | None = None
    deviation: float | None = Field(default=None, description="Standard deviation")
    quantiles: Quantiles | None = None
    histogram: list[int] | None = Field(
        default=None, description="Values in each of the equal parts between minimum and maximum"
    )
    lengths: tuple[int, int] | None = Field(
        default=None, description="The shortest and the longest text, in characters"
    )
    top: list[TopValue] = Field(default_factory=list, description="The most frequent values, where any comes twice")
    remarks: list[str] = Field(default_factory=list, description="What is odd about the column")


class Cells:
    """Takes the cells of one column, batch by batch."""

    def __init__(self, name: str, decimal_comma: bool = False) -> None:
        self.name = name
        self.kinds: Counter[Kind] = Counter()
        self._read = reader(decimal_comma)
        self._numbers = Numbers()
        self._moments = Numbers()
        self._distinct = Distinct()
        self._frequent = Frequent()
        self._shortest, self._longest = sys.maxsize, 0
        self._odd: dict[Kind, list[str]] = {}

    def add(self, cells: Sequence[str]) -> None:
        """One batch; most work is done once for each different text in it."""
        counts = Counter(cells)
        parsed = {text: self._read(text) for text in counts}
        for text, (kind, _) in parsed.items():
            self.kinds[kind] += counts[text]
        self._remember_odd(parsed)
        self._numbers.add(_worth(cells, parsed, ("integer", "number")))
        self._moments.add(_worth(cells, parsed, ("date", "datetime")))
        for text in [text for text, (kind, _) in parsed.items() if kind == "missing"]:
            del counts[text]
        self._distinct.add(counts)
        self._frequent.add(counts)
        lengths = [len(text) for text in counts]
        self._shortest, self._longest = min([self._shortest, *lengths]), max([self._longest, *lengths])

    def missing(self, count: int) -> None:
        """So many rows came before the column was there."""
        if count:
            self.kinds["missing"] += count

    @property
    def type(self) -> Type:
        return _type(self.kinds)

    def column(self, top: int) -> Column:
        """Everything known, with the `top` most frequent values."""
        frequent = [TopValue(value=value, count=count) for value, count in self._frequent.top(top)]
        column = Column(
            name=self.name,
            type=self.type,
            missing=self.kinds["missing"],
            distinct=min(self._distinct.count(), self.kinds.total() - self.kinds["missing"]),
            distinct_is_estimate=self._distinct.is_estimate,
            lengths=(self._shortest, self._longest) if self.type == "text" else None,
            top=frequent if frequent and frequent[0].count > 1 else [],
            remarks=list(self._remarks()),
        )
        if column.type in ("integer", "number"):
            _measure(column, self._numbers, column.type, "number")
            column.deviation = _figures(self._numbers.deviation)
        elif column.type in ("date", "datetime"):
            _measure(column, self._moments, column.type, column.type)
        return column

    def _remember_odd(self, parsed: Mapping[str, Value]) -> None:
        """A few texts of each kind, to show if the kind turns out not to be the column's."""
        for kind in self.kinds:
            kept = self._odd.setdefault(kind, [])
            if len(kept) < _ODD_SHOWN:
                new = (text for text, value in parsed.items() if value[0] == kind and text[:_ODD_LENGTH] not in kept)
                kept += [text[:_ODD_LENGTH] for text in itertools.islice(new, _ODD_SHOWN - len(kept))]

    def _remarks(self) -> Iterator[str]:
        filled = self.kinds.total() - self.kinds["missing"]
        odd = [kind for kind in self.kinds if kind not in ("missing", self.type, *_WITHIN.get(self.type, ()))]
        if self.type != "text" and odd:
            count = sum(self.kinds[kind] for kind in odd)
            shown = ", ".join(repr(text) for kind in odd for text in self._odd[kind])
            yield f"{count:,} of {filled:,} values are no {self.type}, such as {shown}; numbers leave them out"
        if self.type == "text" and filled and (share := 1 - self.kinds["text"] / filled) > 0.5:
            yield f"{share:.0%} of the values are numbers, dates or truths; the rest is text, such as " + ", ".join(
                repr(text) for text in self._odd["text"]
            )
        if filled > 1 and self._distinct.count() == 1:
            yield "every value is the same"


_WITHIN: dict[str, tuple[Kind, ...]] = {"number": ("integer",), "datetime": ("date",)}


def _type(kinds: Counter[Kind]) -> Type:
    """The narrowest type nearly all values have; where they have none in common, text."""
    filled = kinds.total() - kinds["missing"]
    if not filled:
        return "empty"
    wholes: tuple[Type, ...] = ("integer", "number", "boolean", "date", "datetime")
    for all_of_them in (1.0, _MOSTLY):
        for each in wholes:
            count = kinds[each] + sum(kinds[kind] for kind in _WITHIN.get(each, ()))  # type: ignore[index]
            if count >= all_of_them * filled:
                return each
    return "text"


def _worth(cells: Sequence[str], parsed: Mapping[str, Value], kinds: Collection[Kind]) -> list[float]:
    """Return the numeric values of the cells of these kinds, in order."""
    worth = {text: value for text, (kind, value) in parsed.items() if kind in kinds}
    if len(worth) == len(parsed):
        return [worth[text] for text in cells]
    return [worth[text] for text in cells if text in worth] if worth else []


def _measure(column: Column, numbers: Numbers, ends: Kind, between: Kind) -> None:
    """The least and the greatest are values of the column; what lies between may be a broken number."""
    column.minimum, column.maximum = format_value(numbers.minimum, ends), format_value(numbers.maximum, ends)
    column.mean = _short(format_value(numbers.mean, between))
    shares = [_short(format_value(each, between)) for each in numbers.quantiles(0.05, 0.25, 0.5, 0.75, 0.95)]
    column.quantiles = Quantiles(**dict(zip(Quantiles.model_fields, shares, strict=True)))
    column.histogram = numbers.histogram(_bins(column, numbers))


def _bins(column: Column, numbers: Numbers) -> int:
    """Return into how many parts the values are counted: at most `BINS`, and each as many steps wide as the others.
    Twelve months in sixteen parts would show gaps that are not in the data."""
    steps = column.distinct
    if column.type == "integer":
        steps = round(numbers.maximum - numbers.minimum) + 1
    elif column.type == "number" or column.distinct_is_estimate:
        return BINS
    return max(math.ceil(steps / math.ceil(steps / BINS)), 1)


def _short(value: float | str) -> float | str:
    return _figures(value) if isinstance(value, float) else value


def _figures(value: float) -> float:
    """Six figures are as many as anyone compares."""
    return float(f"{value:.6g}")
