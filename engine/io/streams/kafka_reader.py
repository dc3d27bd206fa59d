"""Reads partitions of a topic: a split is a partition, a position the offset of the next record.

The name of a split says where reading begins and ends, unless that is at the beginning or never: "3", "3 from 17",
"3 to 1200", "3 from 17 to 1200". So an attempt that has no cut to go on from reads the same records as the first one.
"""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

from backedge.engine.io.streams.kafka_client import (
    PATIENCE_S,
    Topic,
    asked,
    driver,
    is_end,
    is_for_good,
    is_gone,
    partitions_of,
    raise_if,
    understood,
)
from backedge.engine.io.streams.kafka_errors import KafkaTopicError, OffsetGoneError

BEGINNING = -2
"""The position before the first record, as Kafka writes it."""

SILENCE_S = 30.0
"""After how long without a message a task asks whether the cluster is there: librdkafka connects again for ever."""

_SPLIT = re.compile(r"(\d+)(?: from (\d+))?(?: to (\d+))?")


class PartitionRange(NamedTuple):
    """A partition, from an offset or the beginning, to before an offset or for ever.

    >>> print(PartitionRange(3), PartitionRange(3, 17, 1200), sep=", ")
    3, 3 from 17 to 1200
    """

    partition: int
    start: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        begins = "" if self.start is None else f" from {self.start}"
        return f"{self.partition}{begins}" + ("" if self.end is None else f" to {self.end}")

    @staticmethod
    def named(split: str) -> PartitionRange:
        """The range that a split names.

        >>> PartitionRange.named("3 to 1200")
        PartitionRange(partition=3, start=None, end=1200)
        """
        found = _SPLIT.fullmatch(split)
        if found is None:
            raise KafkaTopicError(f"a topic has no split {split!r}: resume with the source that the run began with")
        partition, start, end = found.groups()
        return PartitionRange(int(partition), *(None if each is None else int(each) for each in (start, end)))


def bounds(topic: Topic, consumer: Any, partition: int) -> tuple[int, int]:
    """The offset of the first record, and that behind the last one that can be read."""
    found = driver().TopicPartition(topic.topic, partition)
    return asked(topic, lambda: consumer.get_watermark_offsets(found, timeout=PATIENCE_S))


class Feed:
    """What one task reads. Its partitions share a consumer, and so its connections.

    What came with one fetch is handed out before the next one, so no partition waits behind a busy one.
    """

    def __init__(self, topic: Topic, consumer: Any) -> None:
        self._topic = topic
        self._consumer = consumer
        self._fetched: dict[int, list[Any]] = {}
        """Messages of each open partition that were not yet handed out."""
        self._ends: dict[int, int] = {}
        """The offset at which each partition ended when its end was last reached."""
        self._heard_s = time.monotonic()

    def open(self, partition: int, offset: int) -> None:
        self._fetched[partition] = []
        with understood(self._topic):
            self._consumer.incremental_assign([driver().TopicPartition(self._topic.topic, partition, offset)])

    def close(self, partition: int) -> None:
        del self._fetched[partition]
        with understood(self._topic):
            self._consumer.incremental_unassign([driver().TopicPartition(self._topic.topic, partition)])

    def take(self, partition: int, records_max: int) -> list[Any]:
        """The next messages of a partition; none if none have come, or those of others are to be taken first."""
        if not any(self._fetched.values()):
            self._fetch(records_max)
        found = self._fetched[partition]
        self._fetched[partition] = found[records_max:]
        return found[:records_max]

    def end(self, partition: int) -> int:
        return self._ends.get(partition, BEGINNING)

    def _fetch(self, records_max: int) -> None:
        messages = self._consumer.consume(records_max, 0)
        now_s = time.monotonic()
        if messages:
            self._heard_s = now_s
        elif now_s - self._heard_s >= SILENCE_S:
            partitions_of(self._topic, self._consumer)
            self._heard_s = time.monotonic()
        for message in messages:
            error, partition = message.error(), message.partition()
            if error is None:
                # One that is closed may have had messages under way.
                if partition in self._fetched:
                    self._fetched[partition].append(message)
            elif is_end(error):
                self._ends[partition] = message.offset()
            elif is_gone(error):
                raise self._gone(partition, error)
            elif is_for_good(error):
                with understood(self._topic):
                    raise_if(error)

    def _gone(self, partition: int, error: Any) -> OffsetGoneError:
        first, end = bounds(self._topic, self._consumer, partition)
        return OffsetGoneError(
            f"partition {partition} of {self._topic.title} has offsets {first} to {end}, and not the one to read "
            f"next ({error.str()}): retention has removed it, or the topic was created again; begin a new run with "
            "start='earliest' to read what is left, and let retention.ms be longer than a run may stand still"
        )


class PartitionReader:
    """One partition, from `position` to before `end`, if it has one."""

    def __init__(self, feed: Feed, partition: int, position: int, end: int | None) -> None:
        self.position = position
        self._feed = feed
        self._partition = partition
        self._end = end
        feed.open(partition, position)

    @property
    def is_done(self) -> bool:
        return self._end is not None and self.position >= self._end

    def read(self, records_max: int) -> list[dict[str, Any]]:
        partition, end = self._partition, self._end
        found = self._feed.take(partition, records_max)
        if found:
            self.position = found[-1].offset() + 1
            if end is not None and self.position > end:
                found = [message for message in found if message.offset() < end]
        else:
            # The last offsets may be those of markers and of records that were never committed.
            self.position = max(self.position, self._feed.end(partition))
        if self.is_done:
            self._feed.close(partition)
        return [
            {
                "key": message.key(),
                "value": message.value(),
                "partition": partition,
                "offset": message.offset(),
                "timestamp": message.timestamp()[1],
            }
            for message in found
        ]
