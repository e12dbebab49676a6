"""A small OTLP receiver: an HTTP server that keeps the spans and metrics it gets."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, Metric, NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver:
    """The spans that were received, the attributes of the last resource, and the metrics as they were sent last."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.resource: dict[str, str] = {}
        self.metrics: dict[str, Metric] = {}

    def add_metrics(self, body: bytes) -> None:
        for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            assert "service.instance.id" in {each.key for each in group.resource.attributes}
            self.metrics = {metric.name: metric for scope in group.scope_metrics for metric in scope.metrics}

    def add_spans(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = {each.key: each.value.string_value for each in group.resource.attributes}
            self.spans += [span for scope in group.scope_spans for span in scope.spans]

    def named(self, name: str, kind: int) -> list[Span]:
        return [span for span in self.spans if span.name == name and span.kind == kind]


def read_attributes(item: Span | NumberDataPoint | HistogramDataPoint) -> dict[str, str]:
    return {each.key: each.value.string_value for each in item.attributes}


@contextmanager
def receive_spans() -> Iterator[OtlpReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            add = {"/v1/traces": receiver.add_spans, "/v1/metrics": receiver.add_metrics}.get(self.path)
            found = add is not None and self.headers["content-type"] == "application/x-protobuf"
            if add is not None and found:
                add(body)
            self.send_response(200 if found else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = OtlpReceiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def receive_in_another_process() -> Iterator[str]:
    """The URL of a receiver whose CPU is not that of this process."""
    with subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


if __name__ == "__main__":
    with receive_spans() as own:
        print(own.url, flush=True)
        threading.Event().wait()
