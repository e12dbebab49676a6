"""Charts of data files: many rows become a few points one can look at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from covalt_toolset import tool

from .conditions import Where
from .groups import Aggregate, Groups, Key, Period, axis_of, begin, plain
from .selection import Selection
from .sketches import SAMPLE, Numbers, Sample
from .tables import open_table
from .values import Value, format_value, reader

ChartKind = Literal["line", "area", "bar", "scatter", "histogram"]
AxisType = Literal["number", "date", "datetime", "category"]
Point = tuple[int | float | str, int | float]
SERIES_LIMIT = 8
BARS_LIMIT = 40
BINS = 30
_LABEL = 60


class Axis(BaseModel):
    label: str
    type: AxisType


class Series(BaseModel):
    name: str
    points: list[Point] = Field(description="Pairs of x and y; dates are ISO texts")


class Chart(BaseModel):
    title: str
    kind: ChartKind
    x: Axis
    y: Axis
    series: list[Series]
    width: float | None = Field(description="How much of x one point stands for, where neighbours were put together")
    rows: int = Field(description="Rows of the file that were meant")
    remarks: list[str] = Field(description="What was put together or left out")


@tool(name="Chart Data", permission="read-only", access="read", idempotent=True, timeout=600)
def chart_data(
    path: str,
    x: str,
    y: str | None = None,
    kind: ChartKind = "line",
    aggregate: Aggregate | None = None,
    series: str | None = None,
    period: Period | None = None,
    where: Where | None = None,
    title: Annotated[str, Field(max_length=200)] | None = None,
    points: Annotated[int, Field(ge=10, le=1000)] = 200,
) -> Chart:
    """Draw a chart of a CSV, TSV, JSON or JSONL file for a person, who sees it as an interactive page; you get its
    points. Rows with the same x become one point. Use 'line' for a course over time or numbers, 'area' for sums
    that stand upon each other, 'bar' to compare categories, 'scatter' to see how two numbers go together, 'histogram'
    for how one number is spread.

    Args:
        path: The data file, relative to the workspace
        x: The column along the bottom: dates, numbers or categories
        y: The column of numbers to draw; leave it out to count rows. A histogram takes none
        kind: What to draw
        aggregate: How rows with the same x become one. Left out, lines show the mean, bars and areas the sum
        series: A column of categories that splits the data into several lines, bars or colours, at most 8
        period: Put dates along x together by calendar, such as one point for each month
        where: Only the rows for which all of these conditions hold
        title: What stands above the chart
        points: How many points to draw at most, over all series
    """
    _check(kind, y, aggregate, period)
    wanted = [x, *([y] if y else []), *([series] if series else [])]
    selection = Selection(open_table(path), path, wanted, where or [])
    if kind == "histogram":
        return _histogram(selection, x, title)
    if kind == "scatter":
        return _scatter(selection, wanted, series, title, points)
    how = aggregate or ("count" if y is None else "mean" if kind == "line" else "sum")
    return _Course(selection, x, y, series, how, period).chart(kind, title, points)


def _check(kind: ChartKind, y: str | None, aggregate: Aggregate | None, period: Period | None) -> None:
    if kind == "scatter" and y is None:
        raise ValueError("a scatter chart needs 'y', a column of numbers")
    if kind == "histogram" and y is not None:
        raise ValueError("a histogram shows how the numbers in 'x' are spread; leave 'y' out, or choose kind 'bar'")
    if kind in ("scatter", "histogram") and (aggregate or period):
        raise ValueError(f"a {kind} chart puts no rows together; leave 'aggregate' and 'period' out")
    if kind == "area" and aggregate in ("mean", "min", "max"):
        raise ValueError(f"areas stand upon each other, which says nothing of a {aggregate}; choose kind 'line'")
    if y is None and aggregate not in (None, "count"):
        raise ValueError(f"'aggregate' {aggregate!r} needs 'y', a column of numbers")


def _histogram(selection: Selection, x: str, title: str | None) -> Chart:
    numbers, read, whole = Numbers(), reader(selection.decimal_comma), True
    for rows in selection.batches():
        found = [read(row[0]) for row in rows]
        whole = whole and all(kind != "number" for kind, _ in found)
        numbers.add([value for kind, value in found if kind in ("integer", "number")])
    if not numbers.count:
        raise ValueError(f"there are no numbers in {x!r}; choose kind 'bar' to count its values")
    # Whole numbers in parts of a broken width would show gaps that are not in the data.
    steps = round(numbers.maximum - numbers.minimum) + 1 if whole else BINS
    counts = numbers.histogram(math.ceil(steps / math.ceil(steps / BINS)))
    width = (numbers.maximum - numbers.minimum) / len(counts)
    points: list[Point] = [(plain(numbers.minimum + width * index), count) for index, count in enumerate(counts)]
    sampled = [f"estimated from {SAMPLE:,} of {numbers.count:,} numbers, chosen by chance"]
    return Chart(
        title=title or f"How {x} is spread",
        kind="histogram",
        x=Axis(label=x, type="number"),
        y=Axis(label="rows", type="number"),
        series=[Series(name=x, points=points)],
        width=plain(width),
        rows=selection.rows,
        remarks=[
            *(sampled if numbers.is_sampled else []),
            *_count_left_out(selection.rows - numbers.count, f"have no number in {x!r}"),
        ],
    )


def _scatter(selection: Selection, wanted: Sequence[str], series: str | None, title: str | None, points: int) -> Chart:
    x, y = wanted[:2]
    sample: Sample[tuple[Value, Value, str]] = Sample(points)
    read = reader(selection.decimal_comma)
    for rows in selection.batches():
        pairs = [(read(row[0]), read(row[1]), row[2] if series else y) for row in rows]
        sample.add([pair for pair in pairs if pair[0][0] in _MEASURED and pair[1][0] in ("integer", "number")])
    if not sample.seen:
        raise ValueError(f"there are no rows with a number in both {x!r} and {y!r}")
    axis = axis_of(left[0] for left, _, _ in sample.values)
    lines: dict[str, list[Point]] = {}
    for left, right, name in sample.values:
        lines.setdefault(_name(name), []).append((_format_value(left[1], axis), plain(right[1])))
    names = sorted(lines, key=lambda name: -len(lines[name]))
    drawn = [f"{len(sample.values):,} of {sample.seen:,} points are drawn, chosen by chance"]
    return Chart(
        title=title or f"{y} against {x}",
        kind="scatter",
        x=Axis(label=x, type=axis),
        y=Axis(label=y, type="number"),
        series=[Series(name=name, points=lines[name]) for name in names[:SERIES_LIMIT]],
        width=None,
        rows=selection.rows,
        remarks=[
            *(drawn if sample.seen > len(sample.values) else []),
            *_count_left_out(selection.rows - sample.seen, f"have no number in {x!r} or {y!r}"),
            *_series_left_out(names),
        ],
    )


class _Course:
    """The points of a line, area or bar chart."""

    def __init__(
        self,
        selection: Selection,
        x: str,
        y: str | None,
        series: str | None,
        how: Aggregate,
        period: Period | None,
    ) -> None:
        self.selection, self.x, self.y, self.series, self.how, self.period = selection, x, y, series, how, period
        self.groups = Groups()
        self.axis: AxisType | None = None
        self._order: dict[Key, int] = {}
        self._read = reader(selection.decimal_comma)
        for rows in selection.batches():
            if self.axis is None and rows:
                self.axis = axis_of(self._read(row[0])[0] for row in rows)
                self.groups = Groups(moments=self.axis in ("date", "datetime"))
            for row in rows:
                self._add(row)

    def chart(self, kind: ChartKind, title: str | None, points: int) -> Chart:
        groups, x = self.groups, self.x
        if self.axis is None or not groups.series:
            raise ValueError(
                f"there is nothing to draw: of {self.selection.rows} rows, none has both {self._required_columns()}"
            )
        if self.period and self.axis == "category":
            raise ValueError(f"'period' is for dates, and {x!r} has none that are written as 2024-01-31")
        names = [name for name, _ in groups.rows.most_common()]
        groups.keep(names[:SERIES_LIMIT])
        remarks = [*self._shorten(kind, points), *_series_left_out(names)]
        used = groups.rows.total()
        if self.axis == "datetime" and self._is_whole_days():
            self.axis = "date"
        counted = "rows" if self.y is None else self.y if self.how == "sum" else f"{self.how} of {self.y}"
        return Chart(
            title=title or f"{counted} by {self.period or x}",
            kind=kind,
            x=Axis(label=x, type=self.axis),
            y=Axis(label=counted, type="number"),
            series=[Series(name=name, points=self._points(name)) for name in names[:SERIES_LIMIT]],
            width=groups.width or None,
            rows=self.selection.rows,
            remarks=[*remarks, *_count_left_out(self.selection.rows - used, f"lack {self._required_columns()}")],
        )

    def _add(self, row: Sequence[str]) -> None:
        key = self._key(row[0])
        kind, value = self._read(row[1]) if self.y is not None and self.how != "count" else ("number", 1.0)
        if key is not None and kind in ("integer", "number"):
            self.groups.add(_name(row[-1]) if self.series else self.y or "rows", key, value)

    def _key(self, cell: str) -> Key | None:
        if self.axis == "category":
            return _name(cell)
        kind, value = self._read(cell)
        if self.axis == "number":
            return value if kind in ("integer", "number") else None
        if kind not in ("date", "datetime"):
            return None
        return begin(value, self.period) if self.period else value

    def _shorten(self, kind: ChartKind, points: int) -> list[str]:
        """Bring the points down to what can be looked at, and say how."""
        groups = self.groups
        limit = BARS_LIMIT if kind == "bar" else max(points // len(groups.series), 10)
        keys = groups.every_x()
        if self.axis != "category":
            if not self.period or len(keys) > points:
                groups.coarsen(limit)
            return ["neighbours along x were put together"] if groups.width else []
        totals = groups.totals()
        if kind == "bar":
            keys.sort(key=lambda key: -totals[key].value(self.how))
        kept = keys[:limit]
        self._order = {key: index for index, key in enumerate(kept)}
        groups.keep(groups.series, kept)
        return [f"{len(kept)} of {len(keys):,} categories are drawn"] if len(keys) > limit else []

    def _points(self, name: str) -> list[Point]:
        points = self.groups.series[name]
        keys = sorted(points, key=self._order.__getitem__ if self.axis == "category" else None)
        return [(_format_value(key, self.axis or "category"), points[key].value(self.how)) for key in keys]

    def _is_whole_days(self) -> bool:
        return all(isinstance(key, float) and key % 86_400 == 0 for key in self.groups.every_x())

    def _required_columns(self) -> str:
        return f"{self.x!r} and a number in {self.y!r}" if self.y is not None else f"{self.x!r}"


_MEASURED = ("integer", "number", "date", "datetime")


def _name(cell: str) -> str:
    name = " ".join(cell.split()) or "(missing)"
    return name if len(name) <= _LABEL else f"{name[: _LABEL - 1]}…"


def _format_value(key: Key, axis: AxisType) -> float | str:
    if isinstance(key, str):
        return key
    return format_value(key, axis) if axis == "date" or axis == "datetime" else plain(key)


def _count_left_out(count: int, why: str) -> list[str]:
    return [f"{count:,} rows {why} and are left out"] if count > 0 else []


def _series_left_out(names: Sequence[str]) -> list[str]:
    return [f"the {SERIES_LIMIT} largest of {len(names)} series are drawn"] if len(names) > SERIES_LIMIT else []
