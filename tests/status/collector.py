"""A collector of OpenTelemetry in this process: an HTTP server that keeps the spans that it gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """What has arrived.

    - endpoint: where spans are to be sent.
    - services: the names of the senders.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.services: set[str] = set()
        self._spans: list[Any] = []

    def receive(self, body: bytes) -> None:
        """Keep the spans of one request."""
        for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {a.value.string_value for a in sent.resource.attributes if a.key == "service.name"}
            self._spans += [span for scope in sent.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Any]:
        """The spans of this name."""
        return [span for span in self._spans if span.name == name]


def attributes(span: Any) -> dict[str, Any]:
    """The attributes of a span, without the prefix of their names."""
    values = {a.key.removeprefix("backedge."): a.value for a in span.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


@contextmanager
def collector() -> Iterator[Collector]:
    """Receive spans, for as long as the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            found.receive(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Collector(f"http://127.0.0.1:{server.server_port}")
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield found
        finally:
            server.shutdown()
            serving.join()
