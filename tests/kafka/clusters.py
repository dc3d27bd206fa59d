"""Clusters for tests, and what a test does with topics without a run.

BACKEDGE_KAFKA=HOST:PORT has the tests that break nothing use that cluster, in topics that they create.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from backedge.engine.io.reader import SourceReader
from backedge.graphs.io import Source
from tests.gates import HANG_S

ADDRESS = os.environ.get("BACKEDGE_KAFKA", "")
_NUMBERS = count(1)


def new_name() -> str:
    return f"backedge-test-{next(_NUMBERS)}-{uuid4().hex[:8]}"


class Cluster:
    """One that is there already."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers})
        self._created: dict[str, int] = {}

    def create(self, topic: str, partitions: int = 1) -> str:
        """Create a topic, or give it more partitions."""
        if topic in self._created:
            _done(self._admin.create_partitions([NewPartitions(topic, partitions)]))
        else:
            _done(self._admin.create_topics([NewTopic(topic, partitions)]))
        self._created[topic] = partitions
        return topic

    def remove_before(self, topic: str, partition: int, offset: int) -> None:
        """Remove records, as retention does."""
        _done(self._admin.delete_records([TopicPartition(topic, partition, offset)]))

    def close(self) -> None:
        if self._created:
            _done(self._admin.delete_topics(list(self._created)))


def _done(futures: dict[Any, Any]) -> None:
    for future in futures.values():
        future.result(HANG_S)


class Mock:
    """The cluster that librdkafka has for tests. Python has no functions for it: they are called in its library."""

    def __init__(self) -> None:
        folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
        self._library: Any = ctypes.CDLL(str(next(folder.glob("librdkafka-*"))))
        for name in ("conf_new", "new", "mock_cluster_new"):
            getattr(self._library, f"rd_kafka_{name}").restype = ctypes.c_void_p
        self._library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        settings = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        reason = ctypes.create_string_buffer(512)
        self._library.rd_kafka_conf_set(settings, b"log_level", b"3", reason, 512)
        self._owner = ctypes.c_void_p(self._library.rd_kafka_new(0, settings, reason, 512))
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_mock_cluster_new(self._owner, 1))
        self.servers = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def create(self, topic: str, partitions: int = 1) -> str:
        self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)
        return topic

    def remove_before(self, topic: str, partition: int, offset: int) -> None:
        remove = self._library.rd_kafka_mock_partition_delete_records
        assert remove(self._cluster, topic.encode(), partition, ctypes.c_int64(offset)) == 0

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._owner)


def producer(servers: str, **settings: Any) -> Any:
    return Producer({"bootstrap.servers": servers, "log_level": 3, **settings})


def transactional(servers: str, name: str = "") -> Any:
    made = producer(servers, **{"transactional.id": name or new_name()})
    made.init_transactions(HANG_S)
    return made


def put(servers: str, topic: str, values: Iterable[str], partition: int = -1, key: str | None = None) -> None:
    """Write values without a transaction."""
    writer = producer(servers)
    for value in values:
        while True:
            try:
                writer.produce(topic, value, key, partition)
                break
            except BufferError:
                writer.poll(0.1)
    assert writer.flush(HANG_S) == 0


def values_in(servers: str, topic: str, partitions: int = 1) -> list[str]:
    """Every committed value, in the order of partitions and offsets. Ours is not involved."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "tests",
            "log_level": 3,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found: dict[int, list[str]] = {number: [] for number in range(partitions)}
    consumer.list_topics(topic)  # without it, the first fetch waits half a second
    consumer.assign([TopicPartition(topic, number, 0) for number in found])
    open_partitions, deadline_s = set(found), time.monotonic() + HANG_S
    while open_partitions:
        assert time.monotonic() < deadline_s, f"partitions {open_partitions} of {topic} do not end"
        for message in consumer.consume(10_000, 0.1):
            error = message.error()
            if error is None:
                found[message.partition()].append(message.value().decode())
            elif error.name() == "_PARTITION_EOF":
                open_partitions.discard(message.partition())
            elif error.fatal():
                raise KafkaException(error)
    consumer.close()
    return [value for values in found.values() for value in values]


def reader(source: Source[Any], positions: Mapping[str, Any] | None = None) -> Any:
    """The reader of the only task, of all splits or from these positions."""
    listed = {split: source.first_position(split) for split in source.splits() or ()}
    return SourceReader("in", source, listed if positions is None else positions)


def read(source: Source[Any], wanted: int | None = None, records_max: int = 1000, opened: Any = None) -> list[Any]:
    """What a source has, up to its end or so many records."""
    opened, found, deadline_s = opened or reader(source), list[Any](), time.monotonic() + HANG_S
    while len(found) < wanted if wanted is not None else not opened.exhausted:
        assert time.monotonic() < deadline_s, f"{len(found)} records, and no more: {found[-1:]}"
        found += opened.read(records_max)
    return found
