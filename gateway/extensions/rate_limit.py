"""Rate limits: calls per minute, by tool and by category, for each caller."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.calls import Call
from gateway.errors import RateLimited
from gateway.extensions import Extension
from gateway.tools import Category, Tool

BUCKET_LIMIT = 10_000


@dataclass
class _Bucket:
    """A token bucket: holds the calls of one minute at most and refills evenly."""

    tokens: float
    filled_at: float

    def refill(self, per_minute: int, now: float) -> None:
        self.tokens = min(float(per_minute), self.tokens + (now - self.filled_at) * per_minute / 60)
        self.filled_at = now


class RateLimit(Extension):
    """Refuses calls above the limit, and says when to call again.

    A refused call uses up no token. Each process has its own buckets, limited in number.
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
        self._buckets: OrderedDict[tuple[str, str, str], _Bucket] = OrderedDict()

    def applies_to(self, tool: Tool) -> bool:
        limits = (self._per_tool.get(tool.id, tool.calls_per_minute), self._categories[tool.category].calls_per_minute)
        return limits != (None, None)

    async def before_execute(self, call: Call) -> None:
        tool = call.target
        category = self._categories[tool.category]
        limit = self._per_tool.get(tool.id, tool.calls_per_minute)
        tool_bucket = None if limit is None else self._find_bucket("tool", tool.id, limit, call)
        if category.calls_per_minute is not None:
            self._find_bucket("category", category.name, category.calls_per_minute, call).tokens -= 1
        if tool_bucket is not None:
            tool_bucket.tokens -= 1

    def _find_bucket(self, kind: str, name: str, limit: int, call: Call) -> _Bucket:
        """Return the bucket, refilled; raise `RateLimited` if it is empty."""
        key = (kind, name, call.caller.principal)
        now = self._clock()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(float(limit), now)
            if len(self._buckets) > BUCKET_LIMIT:
                self._buckets.popitem(last=False)
        bucket.refill(limit, now)
        if bucket.tokens < 1:
            wait = math.ceil((1 - bucket.tokens) * 60 / limit)
            raise RateLimited(
                f"{kind} {name} may be called {limit} times a minute; try again in {wait} s",
                limit=limit,
                scope=f"{kind} {name}",
                retry_after=wait,
            )
        return bucket
