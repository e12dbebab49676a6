"""Metrics, for Prometheus and OTLP receivers. They are read from what the gateway counts anyway, when somebody asks for
them, so that a call pays nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.admin import upstreams
from gateway.db import DATABASE_FILE
from gateway.db.usage import BUILTIN, UNKNOWN
from gateway.extensions.telemetry import BUCKETS, ToolMetrics

if TYPE_CHECKING:
    from gateway.gateway import Gateway

# Approvals that are counted; more wait never, as their number is limited.
_APPROVALS = 1000


async def write_metrics(gateway: Gateway, accept: str) -> tuple[bytes, str]:
    """Return the metrics and their content type, as far as possible one that a client accepts."""
    encode, content_type = choose_encoder(accept)
    return await asyncio.to_thread(encode, await read_metrics(gateway)), content_type


async def read_metrics(gateway: Gateway) -> CollectorRegistry:
    """Return the metrics as they are now; those of the process are read when they are collected."""
    families = [*await _describe_gateway(gateway), *_describe_calls(gateway)]
    registry = CollectorRegistry()
    for collector in (_Collected(families), PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
        registry.register(collector)
    return registry


class _Collected(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def _describe_gateway(gateway: Gateway) -> list[Metric]:
    database = gateway.settings.data_dir / DATABASE_FILE
    waiting = await gateway.approvals.records.entries(waiting=True, limit=_APPROVALS)
    states = GaugeMetricFamily(
        "toolgate_upstream_up", "Whether an upstream server answered when it was last used.", labels=["server", "state"]
    )
    for server in await upstreams.list_upstreams(gateway):
        states.add_metric([server.name, server.state], float(server.state == "ok"))
    return [
        InfoMetricFamily("toolgate", "The gateway.", {"version": __version__}),
        _gauge("toolgate_tools", "Tools that are offered.", len(gateway.catalog)),
        _gauge("toolgate_tool_problems", "Tools that are left out or renamed.", len(gateway.catalog.problems)),
        _gauge("toolgate_approvals_waiting", "Calls in the approval queue.", len(waiting)),
        _gauge("toolgate_calls_running", "Calls in progress.", gateway.telemetry.running),
        _gauge("toolgate_calls_queued", "Calls that wait for a slot of limits.concurrency.", gateway.queued_calls),
        _gauge("toolgate_database_bytes", "Size of the database.", await asyncio.to_thread(_size, database)),
        states,
    ]


def _describe_calls(gateway: Gateway) -> Iterator[Metric]:
    """Yield the counts of each tool, and the durations of each server's tools together, which keeps the number of time
    series small."""
    calls = CounterMetricFamily("toolgate_calls", "Calls by their outcome.", labels=["tool", "server", "outcome"])
    durations: Mapping[str, ToolMetrics] = defaultdict(ToolMetrics)
    for tool, metrics in [*gateway.telemetry.tools.items(), (UNKNOWN, gateway.telemetry.unknown)]:
        server = UNKNOWN if tool == UNKNOWN else tool.rpartition(":")[0] or BUILTIN
        for outcome, count in metrics.outcomes.items():
            calls.add_metric([tool, server, outcome], count)
        durations[server].include(metrics)
    yield calls
    seconds = HistogramMetricFamily("toolgate_call_duration_seconds", "Durations of calls.", labels=["server"])
    for server, metrics in durations.items():
        total, buckets = 0, []
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), metrics.buckets, strict=True):
            total += count
            buckets.append((bound, float(total)))
        if total:
            seconds.add_metric([server], buckets, metrics.seconds)
    yield seconds


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value)


def _size(path: Path) -> int:
    size = 0
    for each in path.parent.glob(f"{path.name}*"):
        with suppress(FileNotFoundError):  # journal files come and go
            size += each.stat().st_size
    return size
