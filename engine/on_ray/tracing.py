"""Spans for OpenTelemetry: of each epoch, each restore, and each call of `map_async`.

They are off unless OTEL_EXPORTER_OTLP_ENDPOINT names a collector, in the environment of the processes of a run. The
other variables of OpenTelemetry apply as well. Epochs and restores are found in the status of the run, a few seconds
after they have ended, so nothing is traced where the protocol runs. OpenTelemetry is imported only if it is on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from backedge.graphs.ids import TaskId
from backedge.recovery.stores.run_status import EpochStatus, FailureStatus, RunStatus

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


NO_EXPORTER = f"{ENDPOINT} is set, but what sends spans is not installed: pip install 'backedge[otel]'"
FLUSH_S = 2.0
"""How long the end of a run waits for a collector that does not answer. OpenTelemetry itself would wait for 10 s."""


def lacks_exporter() -> bool:
    """Whether the environment names a collector, and nothing is installed that could send it spans."""
    return bool(os.environ.get(ENDPOINT)) and _provider() is None


def tracer() -> Tracer | None:
    """Sends spans to the collector that the environment names, if there is one."""
    provider = _provider()
    return None if provider is None else provider.get_tracer("backedge")


def flush() -> None:
    """Send the spans that still wait."""
    provider = _provider()
    if provider is not None:
        sending = threading.Thread(target=provider.force_flush, name="spans", daemon=True)
        sending.start()
        sending.join(FLUSH_S)


@cache
def _provider() -> TracerProvider | None:
    """One for this process: it has a thread of its own."""
    if not os.environ.get(ENDPOINT):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        return None
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME", "backedge")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class _Ended(NamedTuple):
    """Something that is over; its times are times of day, in seconds. `fault` says why it failed."""

    name: str
    began_s: float
    ended_s: float
    attributes: dict[str, Any]
    fault: str = ""


class RunSpans:
    """Spans of the epochs and restores of one pipeline of a run. Those of the first status have been sent before.

    - sent: what identifies those that are known.
    """

    def __init__(self, first: RunStatus, tracer: Tracer, flush: Callable[[], None]) -> None:
        self._tracer = tracer
        self._flush = flush
        self._sent = {id for id, _ in _ended(first)}

    def on_status(self, status: RunStatus) -> None:
        """Send the spans of what has ended since the last status."""
        ended = dict(_ended(status))
        for id in ended.keys() - self._sent:
            self._send(status.job, ended[id])
        self._sent = set(ended)
        if status.is_over:
            self._flush()  # this process may end at once

    def _send(self, job: str, ended: _Ended) -> None:
        known = {f"backedge.{name}": value for name, value in ended.attributes.items() if value is not None}
        began_ns, ended_ns = int(ended.began_s * 1e9), int(ended.ended_s * 1e9)
        span = self._tracer.start_span(ended.name, attributes={"backedge.job": job, **known}, start_time=began_ns)
        if ended.fault:
            _fail(span, ended.fault)
        span.end(ended_ns)


def _ended(status: RunStatus) -> Iterator[tuple[tuple[object, ...], _Ended]]:
    for epoch in status.epochs:
        if epoch.state != "open" and epoch.began_s is not None:
            # A number that a failed attempt has used comes again.
            yield ("epoch", epoch.attempt, epoch.epoch), _of_epoch(epoch, epoch.began_s, status.at_s)
    for failure in status.failures:
        if failure.seconds is not None:
            yield ("restore", failure.attempt, failure.at_s), _of_restore(failure, failure.seconds)


def _of_epoch(epoch: EpochStatus, began_s: float, now_s: float) -> _Ended:
    attributes = {
        "epoch": epoch.epoch,
        "attempt": epoch.attempt,
        "mode": epoch.mode,
        "savepoint": epoch.savepoint,
        "align_s": epoch.align_s,
        "write_s": epoch.write_s,
        "manifest_s": epoch.manifest_s,
        "slowest": epoch.slowest,
        "written_bytes": epoch.written_bytes,
        "log_bytes": sum(log.bytes for log in epoch.loops.values()),
    }
    # The moment at which an epoch was given up is not kept.
    return _Ended("epoch", began_s, epoch.complete_s or now_s, attributes, epoch.reason)


def _of_restore(failure: FailureStatus, seconds: float) -> _Ended:
    attributes = {
        "attempt": failure.attempt,
        "reason": failure.reason,
        "epoch": failure.restored,
        "in_loops": failure.in_loops,
        "lost_records": failure.lost_records,
        "lost_s": failure.lost_s,
    }
    return _Ended("restore", failure.at_s, failure.at_s + seconds, attributes)


def call_spans(job: str) -> CallSpans | None:
    """For the calls of an actor, if they are traced."""
    spans = tracer()
    return None if spans is None else CallSpans(job, spans, flush)


class CallSpans:
    """Spans of the calls that one actor makes in an attempt.

    - open: those of the calls without an answer.
    """

    def __init__(self, job: str, tracer: Tracer, flush: Callable[[], None]) -> None:
        self._job = job
        self._tracer = tracer
        self._flush = flush
        self._open: dict[tuple[TaskId, int], Span] = {}

    def on_call(self, task: TaskId, call_id: int, operator: str) -> None:
        attributes = {"backedge.job": self._job, "backedge.operator": operator, "backedge.task": task.index}
        self._open[task, call_id] = self._tracer.start_span("call", attributes=attributes)

    def on_answer(self, task: TaskId, call_id: int, error: BaseException | None) -> None:
        """A call has ended; `error` is what it raised."""
        span = self._open.pop((task, call_id))
        if error is not None:
            span.record_exception(error)
            _fail(span, f"{type(error).__name__}: {error}")
        span.end()

    def close(self) -> None:
        """Send what waits: at the end of a run this process ends at once."""
        self._flush()


def _fail(span: Span, why: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_status(Status(StatusCode.ERROR, why))
