"""Telemetry: counts and durations of calls, per tool."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from gateway.calls import Call, Outcome
from gateway.extensions import Extension

# Upper bounds of the duration buckets, in seconds; one more bucket has all above.
BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)


@dataclass
class ToolMetrics:
    """Outcomes of one tool by code (`OK` for success), and durations."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))

    def include(self, other: ToolMetrics) -> None:
        """Add the counts of `other`."""
        self.outcomes.update(other.outcomes)
        self.seconds += other.seconds
        self.buckets = [own + more for own, more in zip(self.buckets, other.buckets, strict=True)]


# Tools with metrics of their own; later ones share one. A server may list new names without end.
_TOOLS = 10_000


class Telemetry(Extension):
    """Measures every call, refusals and cancellations included. All unknown names are counted together, so that a
    caller who invents names cannot fill the memory."""

    mode = "observer"

    def __init__(self) -> None:
        self.tools: dict[str, ToolMetrics] = {}
        self.unknown = ToolMetrics()
        self.running = 0

    def before_execute(self, call: Call) -> None:
        self.running += 1

    def after_execute(self, call: Call, outcome: Outcome) -> None:
        self._add(call, "OK" if outcome.error is None else outcome.error.code)

    def on_cancel(self, call: Call) -> None:
        self._add(call, "CANCELLED")

    def _add(self, call: Call, code: str) -> None:
        self.running -= 1
        metrics = self.unknown if call.tool is None else self.tools.get(call.tool.id)
        if metrics is None:
            metrics = self.unknown if len(self.tools) >= _TOOLS else ToolMetrics()
            if metrics is not self.unknown:
                self.tools[call.target.id] = metrics
        seconds = time.perf_counter() - call.began
        metrics.outcomes[code] += 1
        metrics.seconds += seconds
        metrics.buckets[bisect_left(BUCKETS, seconds)] += 1
