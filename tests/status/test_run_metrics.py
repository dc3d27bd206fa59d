"""What Prometheus gets to know of a run, by the statuses that its supervisor passes on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.supervisor.run_metrics import METRICS, RunMetrics
from backedge.recovery.stores.run_status import CountedStatus, FailureStatus, HistogramStatus, OperatorStatus, RunStatus
from tests.page.statuses import rich

DEPLOY = Path(__file__).parents[2] / "deploy"


BUCKETS = {"inf": 1, "0.5": 2}


class Prometheus:
    """Adds counters up and keeps the last value of a gauge, as Ray's agents do."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = defaultdict(float)

    def metric(
        self, name: str, meaning: str, tags: tuple[str, ...], is_counter: bool
    ) -> Callable[[float, Mapping[str, str]], None]:
        def record(value: float, given: Mapping[str, str]) -> None:
            assert tuple(given) == tags
            if not is_counter:
                self.values[name, *given.values()] = value
                return
            assert value > 0, "Ray refuses anything else"
            self.values[name, *given.values()] += value

        return record

    def of(self, name: str, *tags: str) -> float:
        return self.values[f"backedge_{name}", "retries", *tags]


def empty() -> RunStatus:
    return RunStatus("retries", "4f", "starting", True, 0.0, 0.0, None, 0, None, 0)


def full(records: int = 300) -> RunStatus:
    """A status in which every figure is there."""
    status = rich(records)
    operators = tuple(
        replace(
            operator,
            tasks=tuple(replace(task, hops=7, bytes_in=80, busy_s=1.5, held_s=0.5) for task in operator.tasks),
            counted={operator.name: CountedStatus({"thoughts": 5}, {"seconds": HistogramStatus(3, 1.5, BUCKETS)})},
        )
        for operator in status.operators
    )
    return replace(status, operators=operators, spilled_bytes=9)


def test_every_metric_is_told_with_the_tags_that_it_declares():
    found = Prometheus()
    RunMetrics(empty(), found.metric).on_status(full())
    assert {name for name, *_ in found.values} == METRICS.keys()
    told = {("job",), ("job", "operator"), ("job", "operator", "task"), ("job", "operator", "name")}
    assert {metric.tags for metric in METRICS.values()} == {*told, ("job", "operator", "name", "le")}


def test_counters_grow_by_what_is_new_and_gauges_are_what_is_there():
    found = Prometheus()
    metrics = RunMetrics(empty(), found.metric)
    for records in (300, 300, 420):
        metrics.on_status(full(records))
    assert found.of("records_total", "think", "1") == 420
    assert found.of("busy_seconds_total", "think", "1") == 1.5
    assert found.of("backlog_records", "think", "1") == 600, "from both tasks before it"
    assert found.of("waiting_calls", "think", "2") == 32
    assert found.of("loop_records", "plan") == 1_204
    assert found.of("loop_oldest_seconds", "plan") == 12.5
    assert (found.of("epochs_total"), found.of("given_up_epochs_total")) == (6, 1)
    assert found.of("epoch_seconds_total") == pytest.approx(sum(0.55 + 0.02 * epoch for epoch in (1, 2, 3, 5, 6, 7)))
    assert found.of("log_bytes_total", "plan") == 6 * 3_100
    assert (found.of("failures_total"), found.of("restores_total"), found.of("restore_seconds_total")) == (1, 1, 1.5)
    assert found.of("spilled_bytes_total") == 9


def test_the_tasks_of_a_new_attempt_count_from_zero():
    found = Prometheus()
    metrics = RunMetrics(empty(), found.metric)
    metrics.on_status(full(300))
    metrics.on_status(replace(full(500), attempt=3))
    assert found.of("records_total", "think", "0") == 800


def test_a_failure_counts_once_and_its_restore_when_all_tasks_run_again():
    found = Prometheus()
    metrics = RunMetrics(empty(), found.metric)
    failure = FailureStatus(1, 5.0, "it died")
    metrics.on_status(replace(empty(), failures=(failure,)))
    assert (found.of("failures_total"), found.of("restores_total")) == (1, 0)
    metrics.on_status(replace(empty(), failures=(replace(failure, seconds=2.5),)))
    assert (found.of("failures_total"), found.of("restores_total"), found.of("restore_seconds_total")) == (1, 1, 2.5)


def test_what_a_class_has_counted_starts_again_with_an_attempt_and_its_buckets_hold_those_below():
    found = Prometheus()
    metrics = RunMetrics(empty(), found.metric)
    for attempt in (1, 1, 2):
        metrics.on_status(replace(full(), attempt=attempt))
    of = ("think", "seconds")
    assert found.of("counter_total", "think", "thoughts") == 10
    assert (found.of("histogram_count_total", *of), found.of("histogram_sum_total", *of)) == (6, 3.0)
    assert [found.of("histogram_bucket_total", *of, le) for le in ("0.5", "+Inf")] == [4, 6]


def test_what_an_earlier_supervisor_has_told_is_not_told_again():
    found = Prometheus()
    known = replace(full(), operators=(), channels=(), loops=())
    metrics = RunMetrics(known, found.metric)
    metrics.on_status(known)
    assert found.values == {}


def test_a_task_that_is_gone_and_a_run_that_is_over_have_no_backlog():
    found = Prometheus()
    metrics = RunMetrics(empty(), found.metric)
    metrics.on_status(full())
    fewer = tuple(
        OperatorStatus(each.name, each.operators, each.is_source, each.is_sink, each.tasks[:2])
        for each in full().operators
    )
    metrics.on_status(replace(full(), operators=fewer))
    assert (found.of("waiting_calls", "think", "2"), found.of("waiting_calls", "think", "1")) == (0, 31)
    metrics.on_status(replace(full(), state="finished"))
    assert found.of("waiting_calls", "think", "1") == found.of("loop_records", "plan") == 0
    assert found.of("records_total", "think", "1") == 300


@pytest.mark.parametrize("file", ["grafana_dashboard.json", "prometheus_rules.yaml"])
def test_dashboard_and_alerts_name_metrics_that_exist(file: str):
    named = set(re.findall(r"\bray_(\w+)", (DEPLOY / file).read_text()))
    assert named and named <= METRICS.keys()


@pytest.mark.usefixtures("local_ray")
def test_names_of_any_letters_reach_ray():
    """Ray refuses all but ASCII, which ended the run."""
    told: list[Mapping[str, str]] = []

    def metric(
        name: str, meaning: str, tags: tuple[str, ...], is_counter: bool
    ) -> Callable[[float, Mapping[str, str]], None]:
        record = cluster.metric(name, meaning, tags, is_counter)

        def tell(value: float, given: Mapping[str, str]) -> None:
            record(value, given)
            told.append(given)

        return tell

    metrics = RunMetrics(replace(empty(), job="größe"), metric)
    metrics.on_status(replace(full(), job="größe"))
    assert {given["job"] for given in told} == {"gr\\xf6\\xdfe"}
