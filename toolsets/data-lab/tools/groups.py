"""Rows with the same x become one point, however many rows there are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from .values import Kind

Aggregate = Literal["sum", "mean", "count", "min", "max"]
Period = Literal["day", "week", "month", "quarter", "year"]
Key = float | str
KEYS_LIMIT = 20_000
_DAY = 86_400
_WEEK = 7 * _DAY
_MONDAY = 4 * _DAY  # the first one after 1970 began
_TIMES = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, *(_DAY * days for days in (1, 2, 7, 14, 28)))


class Group:
    """Running statistics of the rows of one point, for every aggregate; two groups can be merged."""

    __slots__ = ("count", "maximum", "minimum", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)

    def merge(self, other: Group) -> None:
        self.count += other.count
        self.sum += other.sum
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    def value(self, how: Aggregate) -> float:
        found = {
            "sum": self.sum,
            "mean": self.sum / self.count,
            "count": float(self.count),
            "min": self.minimum,
            "max": self.maximum,
        }[how]
        return plain(found)


class Groups:
    """Points of several series. When numbers or dates along x become too many, neighbours are put together."""

    def __init__(self, *, moments: bool = False) -> None:
        self._step = _time_step if moments else _step
        self.series: dict[str, dict[Key, Group]] = {}
        self.rows: Counter[str] = Counter()
        self.width = 0.0
        self._size = 0

    def add(self, name: str, key: Key, value: float) -> None:
        points = self.series.setdefault(name, {})
        if self.width and isinstance(key, float):
            key = self._floor(key)
        group = points.get(key)
        if group is None:
            group = points[key] = Group()
            self._size += 1
        group.add(value)
        self.rows[name] += 1
        if self._size > KEYS_LIMIT:
            if isinstance(key, str):
                raise ValueError(
                    f"there are more than {KEYS_LIMIT:,} different values along 'x'; choose a column of numbers, dates "
                    "or fewer categories, or use 'where'"
                )
            self.coarsen(KEYS_LIMIT // 4)

    def coarsen(self, parts: int) -> None:
        """About so many different x: equal parts of the range, each called by its beginning."""
        keys = self.every_x()
        if len(keys) <= parts:
            return
        low, high = min(keys), max(keys)
        self.width = self._step((high - low) / parts)  # type: ignore[operator]
        for name, points in self.series.items():
            merged: dict[Key, Group] = {}
            for key, group in points.items():
                merged.setdefault(self._floor(key), Group()).merge(group)  # type: ignore[arg-type]
            self.series[name] = merged
        self._size = sum(map(len, self.series.values()))

    def keep(self, names: Iterable[str], keys: Iterable[Key] | None = None) -> None:
        """Forget all other series, and all other x."""
        kept = None if keys is None else set(keys)
        self.series = {
            name: {key: group for key, group in self.series[name].items() if kept is None or key in kept}
            for name in names
        }

    def every_x(self) -> list[Key]:
        """Every x, each once, in the order they came."""
        return list(dict.fromkeys(key for points in self.series.values() for key in points))

    def totals(self) -> dict[Key, Group]:
        """Each x over all series."""
        found: dict[Key, Group] = {}
        for points in self.series.values():
            for key, group in points.items():
                found.setdefault(key, Group()).merge(group)
        return found

    def _floor(self, key: float) -> float:
        return float(f"{math.floor(key / self.width + 1e-9) * self.width:.12g}")


def plain(value: float) -> float:
    """The number without the noise of arithmetic, and whole where it is."""
    rounded = float(f"{value:.10g}")
    return int(rounded) if rounded.is_integer() else rounded


def axis_of(kinds: Iterable[Kind]) -> Literal["number", "date", "datetime", "category"]:
    """Return the kind of nearly all values along an axis."""
    counts = Counter(kind for kind in kinds if kind != "missing")
    most = 0.95 * counts.total()
    if counts["integer"] + counts["number"] >= most > 0:
        return "number"
    if counts["date"] + counts["datetime"] >= most > 0:
        return "datetime" if counts["datetime"] else "date"
    return "category"


def begin(moment: float, period: Period) -> float:
    """The beginning of the period a moment is in."""
    if period == "day":
        return moment // _DAY * _DAY
    if period == "week":
        return (moment - _MONDAY) // _WEEK * _WEEK + _MONDAY
    date = datetime.fromtimestamp(moment, UTC)
    month = {"month": date.month, "quarter": (date.month - 1) // 3 * 3 + 1, "year": 1}[period]
    return datetime(date.year, month, 1, tzinfo=UTC).timestamp()


def _time_step(width: float) -> float:
    """The next length of time that a clock or a calendar knows."""
    return next((float(step) for step in _TIMES if step >= width), _step(width / _DAY) * _DAY)


def _step(width: float) -> float:
    """The next of 1, 2, 2.5, 5, 10, … so that the parts begin at numbers one can read."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= width * (1 - 1e-9))
