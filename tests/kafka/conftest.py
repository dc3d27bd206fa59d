"""Clusters of Kafka: one for each test, or the one at BACKEDGE_KAFKA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.kafka.broker import Broker
from tests.kafka.clusters import ADDRESS, Cluster, Mock


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker that can strike."""
    with Broker() as made:
        yield made


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Any]:
    """A cluster that keeps what transactions promise."""
    if not ADDRESS:
        yield broker
        return
    with closing(Cluster(ADDRESS)) as made:
        yield made


@pytest.fixture(params=["cluster", "mock"])
def readable(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A cluster without transactions, also the mock of librdkafka."""
    if request.param == "cluster":
        yield request.getfixturevalue("cluster")
        return
    with closing(Mock()) as made:
        yield made
