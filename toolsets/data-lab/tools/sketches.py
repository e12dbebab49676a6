"""Answers about more values than one can keep: how they are spread, how many differ, which are frequent."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

SAMPLE = 10_000
DISTINCT = 4_096
FREQUENT = 10_000
_VALUE_LENGTH = 120
_HASHES = 1 << 64

T = TypeVar("T")


class Sample(Generic[T]):
    """A fair sample of a long sequence: every value has the same chance to be in it. Up to its size it is all of
    them."""

    def __init__(self, size: int = SAMPLE) -> None:
        self.values: list[T] = []
        self.seen = 0
        self._size = size
        self._random = random.Random(0)  # noqa: S311 - the same file gives the same picture
        self._weight = 1.0
        self._next = 0

    def add(self, values: Sequence[T]) -> None:
        """Vitter's problem, Li's answer: jump straight to the next value that is taken."""
        start = min(max(self._size - self.seen, 0), len(values))
        self.values.extend(values[:start])
        if start and len(self.values) == self._size:
            self._next = self.seen + start - 1
            self._jump()
        while self._next < self.seen + len(values) and len(self.values) == self._size:
            self.values[self._random.randrange(self._size)] = values[self._next - self.seen]
            self._jump()
        self.seen += len(values)

    def _jump(self) -> None:
        self._weight *= math.exp(math.log(1.0 - self._random.random()) / self._size)
        self._next += int(math.log(1.0 - self._random.random()) / math.log1p(-self._weight)) + 1


class Distinct:
    """The number of distinct values: exact while they are few, else estimated from the smallest hashes."""

    def __init__(self) -> None:
        self._smallest: set[int] = set()
        self._bound = _HASHES
        self.is_estimate = False

    def add(self, values: Collection[str]) -> None:
        self._smallest.update(number for value in values if (number := hash(value) % _HASHES) < self._bound)
        if len(self._smallest) > 4 * DISTINCT:
            self._smallest = set(heapq.nsmallest(DISTINCT, self._smallest))
            self._bound = max(self._smallest)
            self.is_estimate = True

    def count(self) -> int:
        if not self.is_estimate:
            return len(self._smallest)
        kept = heapq.nsmallest(DISTINCT, self._smallest)
        return int(float(f"{(len(kept) - 1) * _HASHES / kept[-1]:.2e}"))


class Frequent:
    """The most frequent values. When there are too many different ones the rare are forgotten, so that a count
    is never too high, and may be too low."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, counts: Counter[str]) -> None:
        self._counts.update(counts)
        for value in [value for value in counts if len(value) > _VALUE_LENGTH]:
            self._counts[f"{value[:_VALUE_LENGTH]}…"] += self._counts.pop(value)
        if len(self._counts) > 4 * FREQUENT:
            self._counts = Counter(dict(self._counts.most_common(FREQUENT)))

    def top(self, count: int) -> list[tuple[str, int]]:
        return self._counts.most_common(count)


class Numbers:
    """Sum, spread and shape of numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf
        self._squares = 0.0
        self._sample: Sample[float] = Sample()

    def add(self, numbers: Sequence[float]) -> None:
        """One batch; means and squares are merged so that large sums do not swallow small differences."""
        if not numbers:
            return
        size = len(numbers)
        mean = math.fsum(numbers) / size
        apart = mean - self.mean
        total = self.count + size
        self._squares += math.fsum([(each - mean) ** 2 for each in numbers])
        self._squares += apart**2 * self.count * size / total
        self.mean += apart * size / total
        self.count = total
        self.minimum = min(self.minimum, min(numbers))
        self.maximum = max(self.maximum, max(numbers))
        self._sample.add(numbers)

    @property
    def deviation(self) -> float:
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else 0.0

    @property
    def is_sampled(self) -> bool:
        return self._sample.seen > SAMPLE

    def quantiles(self, *shares: float) -> list[float]:
        ordered = sorted(self._sample.values)
        return [_quantile(ordered, share) for share in shares]

    def histogram(self, bins: int) -> list[int]:
        """Return the count of numbers in each of `bins` equal parts of the range; estimated when sampled."""
        if self.minimum == self.maximum:
            return [self.count]
        width = (self.maximum - self.minimum) / bins
        ordered = sorted(self._sample.values)
        edges = [bisect_left(ordered, self.minimum + width * index) for index in range(bins)] + [len(ordered)]
        scale = self.count / len(ordered)
        return [round((after - before) * scale) for before, after in itertools.pairwise(edges)]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest values, as most programs have it."""
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
