"""A small OTLP receiver: an HTTP server that keeps the spans it gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver:
    """The spans that were received, and the attributes of the last resource."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.resource: dict[str, str] = {}

    def add(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = {each.key: each.value.string_value for each in group.resource.attributes}
            self.spans += [span for scope in group.scope_spans for span in scope.spans]

    def named(self, name: str, kind: int) -> list[Span]:
        return [span for span in self.spans if span.name == name and span.kind == kind]


def read_attributes(span: Span) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


@contextmanager
def receive_spans() -> Iterator[OtlpReceiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
            if found:
                receiver.add(body)
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
