"""Spans of epochs, restores and calls, in the memory of the test and at a collector."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from backedge.engine.on_ray import tracing
from backedge.engine.on_ray.actor.background import Background
from backedge.engine.on_ray.tracing import ENDPOINT, CallSpans, RunSpans
from backedge.engine.operators.async_calls import Call
from backedge.graphs.ids import TaskId
from backedge.recovery.stores.run_status import RunStatus
from tests.page.statuses import DAY_S, rich
from tests.status.collector import collector

EMPTY = RunStatus("retries", "4f", "starting", True, 0.0, 0.0, None, 0, None, 0)
THINK = TaskId("orders", 1)
"""The task of a chain has the name of its first operator."""


class Memory:
    """Keeps the spans of a tracer."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer: Tracer = provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if span.name == name]


def test_an_epoch_is_a_span_from_its_first_trigger_to_its_manifest():
    memory = Memory()
    spans = RunSpans(EMPTY, memory.tracer, flush=lambda: None)
    for _ in range(2):
        spans.on_status(rich())
    found = {(span.attributes or {})["backedge.epoch"]: span for span in memory.named("epoch")}
    assert len(memory.named("epoch")) == len(found) == 7, "the open one is not over, and no other is sent twice"
    sixth, fourth = found[6], found[4]
    assert (sixth.start_time, sixth.end_time) == (int((DAY_S + 12) * 1e9), int((DAY_S + 12.6) * 1e9))
    attributes = dict(sixth.attributes or {})
    assert attributes["backedge.job"] == "retries" and attributes["backedge.savepoint"] == "before the upgrade"
    assert (attributes["backedge.written_bytes"], attributes["backedge.log_bytes"]) == (123_000, 3_100)
    assert (fourth.status.is_ok, fourth.status.description) == (False, "attempt 1 failed")


def test_a_restore_is_a_span_once_all_tasks_run_again():
    memory = Memory()
    spans = RunSpans(EMPTY, memory.tracer, flush=lambda: None)
    (failure,) = rich().failures
    spans.on_status(replace(EMPTY, failures=(replace(failure, seconds=None),)))
    assert memory.named("restore") == []
    spans.on_status(replace(EMPTY, failures=(failure,)))
    (restore,) = memory.named("restore")
    assert (restore.end_time or 0) - (restore.start_time or 0) == 1_500_000_000
    assert (restore.attributes or {})["backedge.lost_records"] == 4_321


def test_what_an_earlier_supervisor_has_sent_is_not_sent_again_and_the_end_flushes():
    memory, flushed = Memory(), list[str]()
    spans = RunSpans(rich(), memory.tracer, flush=lambda: flushed.append("flushed"))
    spans.on_status(rich())
    assert memory.named("epoch") == memory.named("restore") == flushed == []
    spans.on_status(replace(rich(), state="finished"))
    assert flushed == ["flushed"]


def test_a_call_is_a_span_until_its_answer_and_says_what_it_raised_and_the_end_flushes():
    memory, answered, flushed = Memory(), threading.Semaphore(0), list[str]()
    spans = CallSpans("retries", memory.tracer, flush=lambda: flushed.append("flushed"))
    background = Background(None, answered.release, spans)

    def ask(record: int) -> float:
        return 1 / record

    for call_id, record in enumerate((2, 0)):
        background.call(THINK, call_id, Call(ask, record, None, "think"))
        answered.acquire()
    assert flushed == []
    background.close()
    assert flushed == ["flushed"], "the process of an actor ends with the run"
    good, bad = memory.named("call")
    assert dict(good.attributes or {}) == {
        "backedge.job": "retries",
        "backedge.operator": "think",
        "backedge.task": 1,
    }
    assert (good.status.is_ok, bad.status.is_ok) == (True, False)
    assert bad.status.description == "ZeroDivisionError: division by zero"


# -- the environment -----------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Without a collector; what a test makes of it is gone afterwards."""
    monkeypatch.delenv(ENDPOINT, raising=False)
    tracing._provider.cache_clear()
    yield monkeypatch
    if (provider := tracing._provider()) is not None:
        provider.shutdown()
    tracing._provider.cache_clear()


def test_without_a_collector_nothing_is_traced(environment: pytest.MonkeyPatch):
    assert tracing.tracer() is None and tracing.call_spans("retries") is None
    assert not tracing.lacks_exporter()


def test_spans_reach_the_collector_that_the_environment_names(environment: pytest.MonkeyPatch):
    with collector() as found:
        environment.setenv(ENDPOINT, found.endpoint)
        tracer = tracing.tracer()
        assert tracer is not None and not tracing.lacks_exporter()
        RunSpans(EMPTY, tracer, tracing.flush).on_status(replace(rich(), state="finished"))
    assert found.services == {"backedge"}
    assert len(found.named("epoch")) == 7 and len(found.named("restore")) == 1


def test_the_end_of_a_run_does_not_wait_for_a_collector_that_does_not_answer(monkeypatch: pytest.MonkeyPatch):
    answers, left = threading.Event(), threading.Event()

    class Stuck:
        def force_flush(self) -> None:
            answers.wait()
            left.set()

    monkeypatch.setattr(tracing, "_provider", Stuck)
    monkeypatch.setattr(tracing, "FLUSH_S", 0.01)
    tracing.flush()
    assert not left.is_set()
    answers.set()
    assert left.wait(20.0)


def test_a_collector_without_an_exporter_is_noticed(environment: pytest.MonkeyPatch):
    known = builtins.__import__

    def without_exporter(name: str, *more: Any) -> Any:
        if name.startswith("opentelemetry.exporter.otlp"):
            raise ImportError(name)
        return known(name, *more)

    environment.setattr(builtins, "__import__", without_exporter)
    environment.setenv(ENDPOINT, "http://127.0.0.1:1")
    assert tracing.tracer() is None and tracing.lacks_exporter()
    assert "pip install 'backedge[otel]'" in tracing.NO_EXPORTER
