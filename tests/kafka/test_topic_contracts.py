"""Topics pass the harness for all sources and sinks: drawn runs, whose processes die, sleep and come back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from backedge import KafkaTopic
from backedge.testing import check_sink, check_source
from tests.kafka.broker import Broker
from tests.kafka.clusters import new_name, put, read

pytestmark = pytest.mark.slow

PARTITIONS = 2

WITHOUT_FENCE = 19
"""The first schedule that finds a writer whose transactional ids fence nobody."""


@pytest.mark.parametrize("until", ["now", pytest.param(None, marks=pytest.mark.long)])
def test_a_topic_gives_each_record_once_from_wherever_a_run_goes_on(cluster: Any, until: Any):
    topic = cluster.create(new_name(), PARTITIONS)
    for partition in range(PARTITIONS):
        put(cluster.servers, topic, map(str, range(4)), partition)
    source = KafkaTopic(cluster.servers, topic, until=until)
    check_source(source, read(replace(source, until="now")), seeds=range(2))


@pytest.mark.parametrize("schedules", [3, pytest.param(60, marks=pytest.mark.long)])
def test_a_topic_has_each_record_once_whatever_happens(broker: Broker, schedules: int):
    def new() -> KafkaTopic:
        return KafkaTopic(broker.servers, broker.create(new_name(), PARTITIONS))

    def published(sink: KafkaTopic) -> list[Any]:
        return [{"value": value} for value in broker.values(sink.topic)]

    happened = check_sink(new, published, record=numbered, seeds=range(WITHOUT_FENCE, WITHOUT_FENCE + schedules))
    assert happened


def numbered(number: int) -> dict[str, Any]:
    return {"value": json.dumps(number).encode()}
