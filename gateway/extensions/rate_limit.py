"""Rate limits: so many calls a minute, per tool and per category, for each caller."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..calls import Call
from ..errors import RateLimited
from ..tools import Category, Tool
from . import Extension

REMEMBERED = 10_000


@dataclass
class _Bucket:
    """Holds at most a minute's worth of calls and refills evenly."""

    tokens: float
    filled_at: float

    def refill(self, per_minute: int, now: float) -> None:
        self.tokens = min(float(per_minute), self.tokens + (now - self.filled_at) * per_minute / 60)
        self.filled_at = now


class RateLimit(Extension):
    """Refuses the call that is one too many, saying the limit and when to come back.

    A refused call uses nothing up. Buckets are this process's own and bounded in number.
    """

    def __init__(
        self,
        categories: Mapping[str, Category],
        per_tool: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._categories = categories
        self._per_tool = per_tool
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    def concerns(self, tool: Tool) -> bool:
        limits = (self._per_tool.get(tool.id, tool.calls_per_minute), self._categories[tool.category].calls_per_minute)
        return limits != (None, None)

    async def before_execute(self, call: Call) -> None:
        taken = [self._bucket(scope, limit, call) for scope, limit in self._limits(call)]
        for bucket in taken:
            bucket.tokens -= 1

    def _limits(self, call: Call) -> Iterator[tuple[str, int]]:
        tool = call.target
        limit = self._per_tool.get(tool.id, tool.calls_per_minute)
        if limit is not None:
            yield f"tool {tool.id}", limit
        category = self._categories[tool.category]
        if category.calls_per_minute is not None:
            yield f"category {category.name}", category.calls_per_minute

    def _bucket(self, scope: str, limit: int, call: Call) -> _Bucket:
        key = (scope, call.caller.principal)
        now = self._clock()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(float(limit), now)
            if len(self._buckets) > REMEMBERED:
                self._buckets.popitem(last=False)
        bucket.refill(limit, now)
        if bucket.tokens < 1:
            wait = math.ceil((1 - bucket.tokens) * 60 / limit)
            raise RateLimited(
                f"{scope} may be called {limit} times a minute; try again in {wait} s",
                limit=limit,
                scope=scope,
                retry_after=wait,
            )
        return bucket
