"""A topic of Kafka, to read or to write."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, cast

from backedge.engine.io.marked_output import MarkedSink
from backedge.engine.io.streams.kafka_client import FIXED, consumer_of, partitions_of
from backedge.engine.io.streams.kafka_reader import BEGINNING, Feed, PartitionRange, PartitionReader, bounds
from backedge.engine.io.streams.kafka_writer import TopicStore
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.io import FoundSplits, Source, SplitReader
from backedge.graphs.public import public

LOOK_S = 30.0
"""How often a topic without end is looked at for new partitions."""

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@public
@dataclass(frozen=True)
class KafkaTopic(Source[dict[str, Any]], MarkedSink):
    """A topic of Kafka, to read or to write, each record once. The topic must exist.

    Read, a record is a dict with key and value, which are bytes or None, partition, offset, and timestamp in
    milliseconds. Only what is committed is read. `start` is "earliest", "latest", or a dict with the offset of each
    partition; one that it lacks begins with its earliest record. With `until="now"` the source ends with the records
    that are there when the run starts.

    Written, a record is a dict with a value and, if it has one, a key: bytes, text or None.

    `config` has further settings of librdkafka, such as those for SASL.

    >>> KafkaTopic("localhost:9092", "orders").label
    'orders'
    """

    servers: str
    topic: str
    start: Literal["earliest", "latest"] | dict[int, int] = field(default="earliest", hash=False)
    until: Literal["now"] | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, hash=False)

    def __post_init__(self) -> None:
        servers, topic, start, until = map(self.__dict__.__getitem__, ("servers", "topic", "start", "until"))
        for is_right, given, wanted in (
            (isinstance(servers, str) and servers, f"{servers=}", "HOST:PORT, or several with commas"),
            (isinstance(topic, str) and _NAME.fullmatch(topic), f"{topic=}", "up to 249 letters, digits, dots, - or _"),
            (_is_start(start), f"{start=}", "'earliest', 'latest', or offsets such as {0: 1200, 1: 700}"),
            (until in (None, "now"), f"{until=}", "'now', or leave it out"),
        ):
            if not is_right:
                raise BadOptionError(f"KafkaTopic is given {given}: give {wanted}")
        fixed = sorted(FIXED & self.config.keys())
        if fixed:
            raise BadOptionError(f"KafkaTopic is given {fixed[0]!r} in its config, where it is fixed: leave it out")

    @property
    def bounded(self) -> bool:
        return self.until is not None

    @property
    def label(self) -> str | None:
        return self.topic

    @property
    def title(self) -> str:
        return f"topic {self.topic!r} of {self.servers}"

    def absolute(self) -> KafkaTopic:
        return self

    # -- reading -------------------------------------------------------------------------------------------------

    def validate_input(self) -> None:
        """Raise unless the topic is there."""
        partitions_of(self, consumer_of(self))

    def splits(self) -> Sequence[str]:
        """The partitions as they are now."""
        consumer = consumer_of(self)
        return [str(self._range(consumer, partition)) for partition in partitions_of(self, consumer)]

    @property
    def look_s(self) -> float | None:
        """None if the splits depend on when they are listed: what is found before the first cut is found again."""
        return None if self.bounded or self.start == "latest" else LOOK_S

    @property
    def splits_end(self) -> bool:
        return self.bounded

    def find_splits(self, known: Collection[str]) -> FoundSplits:
        """The partitions that are new."""
        consumer, found = consumer_of(self), {PartitionRange.named(split).partition for split in known}
        new = [each for each in partitions_of(self, consumer) if each not in found]
        return FoundSplits([str(self._range(consumer, each)) for each in new], is_last=False)

    def _range(self, consumer: Any, partition: int) -> PartitionRange:
        first = end = None
        if self.start == "latest" or self.until is not None:
            first, end = bounds(self, consumer, partition)
        start = self.start.get(partition, first) if isinstance(self.start, dict) else first
        return PartitionRange(partition, end if self.start == "latest" else start, None if self.until is None else end)

    def first_position(self, split: str) -> int:
        start = PartitionRange.named(split).start
        return BEGINNING if start is None else start

    def is_read(self, split: str, position: Any) -> bool:
        end = PartitionRange.named(split).end
        return end is not None and position >= end

    def open_split(self, split: str, position: Any) -> SplitReader[dict[str, Any]]:
        feed = self.__dict__.get("_feed")
        if feed is None:
            consumer = consumer_of(self)
            # It then knows the leaders, for which it would wait half a second when it looks for the first offset.
            partitions_of(self, consumer)
            feed = Feed(copy(self), consumer)
            object.__setattr__(self, "_feed", feed)
        partition, _, end = PartitionRange.named(split)
        return PartitionReader(feed, partition, position, end)

    # -- writing -------------------------------------------------------------------------------------------------

    def store(self) -> TopicStore:
        return TopicStore(self)


def _is_start(start: Any) -> bool:
    if isinstance(start, dict):
        numbers = chain(*cast("dict[Any, Any]", start).items())
        return all(type(number) is int and number >= 0 for number in numbers)
    return start in ("earliest", "latest")
