"""Metrics for an OTLP receiver: what /metrics shows, sent at intervals. Imported only where an exporter is set; needs
the extra `otel`."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as otlp
from opentelemetry.sdk.resources import Resource
from prometheus_client.core import Metric
from prometheus_client.registry import CollectorRegistry
from prometheus_client.samples import Sample

from gateway.admin.metrics import read_metrics
from gateway.errors import GatewayError
from gateway.extensions.tracing import SCOPE, UNNAMED_RECEIVER, describe_service, signal_url

if TYPE_CHECKING:
    from gateway.gateway import Gateway

# How long a gateway that stops waits for a receiver.
LAST_SECONDS = 5.0
_CUMULATIVE = otlp.AggregationTemporality.CUMULATIVE


class MetricSender:
    """Sends the metrics of a gateway. `endpoint` is the address of an OTLP receiver; without one, OTEL_* variables name
    it. `instance` tells the processes of one data directory apart."""

    def __init__(self, gateway: Gateway, endpoint: str | None, instance: str) -> None:
        self._gateway = gateway
        self._resource = Resource({"service.instance.id": instance}).merge(describe_service())
        url = signal_url(endpoint, "metrics")
        self._receiver = url or UNNAMED_RECEIVER
        self._exporter = OTLPMetricExporter(endpoint=url)
        self._interval = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or 60_000) / 1000
        self._began_at = time.time_ns()
        self.failure: str | None = None  # why the last attempt failed
        # Reported as a problem with a beginning and an end, and not with each attempt.
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)

    async def run(self) -> None:
        """Send the metrics at intervals, and once more when it is cancelled."""
        try:
            while True:
                await asyncio.sleep(self._interval)
                await self._send()
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self._send()
            self._exporter.shutdown()

    async def _send(self) -> None:
        with suppress(GatewayError):  # a database that does not answer now may answer next time
            registry = await read_metrics(self._gateway)
            result = await asyncio.to_thread(self._export, registry)
            failed = result is not otlp.MetricExportResult.SUCCESS
            self.failure = f"metrics could not be sent to {self._receiver}" if failed else None

    def _export(self, registry: CollectorRegistry) -> otlp.MetricExportResult:
        metrics = list(convert_metrics(registry.collect(), self._began_at, time.time_ns()))
        scope = otlp.ScopeMetrics(SCOPE, metrics, "")
        return self._exporter.export(otlp.MetricsData([otlp.ResourceMetrics(self._resource, [scope], "")]))


def convert_metrics(families: Iterable[Metric], began_at: int, now: int) -> Iterator[otlp.Metric]:
    """Yield the metrics as OTLP has them, under the same names. What describes the gateway in words is left out: the
    resource has it."""

    def make_points(family: Metric, suffix: str) -> list[otlp.NumberDataPoint]:
        samples = [sample for sample in family.samples if sample.name == family.name + suffix]
        return [otlp.NumberDataPoint(sample.labels, began_at, now, float(sample.value)) for sample in samples]

    for family in families:
        data: otlp.Sum | otlp.Gauge | otlp.Histogram
        if family.type == "counter":
            data = otlp.Sum(make_points(family, "_total"), _CUMULATIVE, is_monotonic=True)
        elif family.type == "gauge":
            data = otlp.Gauge(make_points(family, ""))
        elif family.type == "histogram":
            groups = itertools.groupby(family.samples, lambda sample: _labels(sample))
            points = [_make_histogram(dict(labels), list(group), began_at, now) for labels, group in groups]
            data = otlp.Histogram(points, _CUMULATIVE)
        else:
            continue
        if data.data_points:
            yield otlp.Metric(family.name, family.documentation, family.unit, data)


def _labels(sample: Sample) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in sample.labels.items() if name != "le")


def _make_histogram(
    labels: dict[str, str], samples: Sequence[Sample], began_at: int, now: int
) -> otlp.HistogramDataPoint:
    """One point of the samples of a histogram: its buckets, each of which counts those before it too, and its sum."""
    buckets = [sample for sample in samples if "le" in sample.labels]
    totals = [int(sample.value) for sample in buckets]
    counts = [total - before for before, total in itertools.pairwise([0, *totals])]
    [seconds] = [sample.value for sample in samples if sample.name.endswith("_sum")]
    bounds = [float(sample.labels["le"]) for sample in buckets[:-1]]
    unknown: float = None  # type: ignore[assignment]  # optional in OTLP
    return otlp.HistogramDataPoint(labels, began_at, now, totals[-1], seconds, counts, bounds, unknown, unknown)
