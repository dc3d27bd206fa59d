"""Commits the records of a cut and their marker in one transaction of Kafka.

The transaction begins when the cut is complete: none is open between two cuts, so none expires.

- The transactional id is the name of the task that has prepared the records, with its attempt. Whoever commits what
  that task has prepared takes this id: `init_transactions` ends what was left open, and fences everybody who has taken
  the id before. So there is one writer at a time of what one task has prepared.
- The marker is the offset that the consumer group of the same name has committed for partition 0 of the topic: the
  attempt that has taken the id, and the epoch of the last transaction. A task's transactions are committed in the order
  of their epochs, so one number says which are there. Kafka commits offsets with the records, and one request reads
  them. A topic of markers would have to be created, compacted and searched.
- The marker is read behind `init_transactions`, when nobody else can change it. Who was fenced takes the id again, and
  learns from the marker whether a later attempt has it. If the marker is missing, the cluster has forgotten it, and
  whether the records are there is unknown: that is an error. A task sets it when it begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from queue import Empty, Queue
from random import random
from threading import Thread
from typing import Any, cast

from backedge.engine.batches.columns import Records, as_records
from backedge.engine.io.files.names import turn_of
from backedge.engine.io.files.parts import unwritable
from backedge.engine.io.streams.kafka_client import (
    PATIENCE_S,
    PAUSE_S,
    Topic,
    asked,
    consumer_of,
    driver,
    partitions_of,
    producer_of,
    raise_if,
    understood,
)
from backedge.engine.io.streams.kafka_errors import KafkaLostError, KafkaTopicError
from backedge.graphs.io import Rollback, SinkPlace
from backedge.recovery.protocol.protocol_errors import FencedError

Message = tuple[bytes | None, bytes | None]
"""A key and a value."""

BYTES_MAX = 1_000_000
"""The default of `message.max.bytes`."""

FRAME_BYTES = 36
"""What librdkafka adds to key and value before it compares them with that: the most that it writes around them."""

_FIELDS = frozenset({"key", "value"})

_EPOCHS = 2**40
"""The number of epochs: a marker is the attempt times this, and the epoch."""

_TAKES_MAX = 20
"""How often an id is taken again from other tasks of the same attempt."""


class TopicStore:
    """The topic, for one task of a sink."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.title = topic.title
        self._own: _Producer | None = None
        """Commits what this task has prepared itself."""

    def check(self) -> None:
        partitions_of(self._topic, consumer_of(self._topic))

    def enter(self, place: SinkPlace) -> Callable[[Records], list[Message]]:
        self._own = _Producer(
            self._topic, f"backedge.{place.run}.{place.operator}.{place.task}.attempt-{place.attempt}", place.attempt
        )
        self._own.begin()
        return _MessageCheck(place.operator, self._topic)

    def commit(self, place: SinkPlace, written: Mapping[str, Records]) -> None:
        for name, transactions in _by_task(place, written).items():
            own = self._own
            producer = own if own is not None and own.name == name else _Producer(self._topic, name, place.attempt)
            producer.commit({each: written[each] for each in transactions})

    def how_to_skip(self, place: SinkPlace, transactions: Sequence[str]) -> str:
        return " and ".join(
            _set_by_hand(self._topic, name, _epoch_of(of[-1])) for name, of in _by_task(place, transactions).items()
        )

    def forget(self, place: SinkPlace, rollback: Rollback) -> None:
        """The cluster forgets markers by itself."""

    def close(self) -> None:
        self._own = None


def _by_task(place: SinkPlace, transactions: Iterable[str]) -> dict[str, list[str]]:
    """The transactions by the transactional id with which they are committed, in their order."""
    found: dict[str, list[str]] = {}
    for transaction in transactions:
        found.setdefault(f"backedge.{place.run}.{transaction.rpartition('.epoch-')[0]}", []).append(transaction)
    return found


def _epoch_of(transaction: str) -> int:
    # That of a task that has ended has none, and is its last.
    return turn_of(transaction).epoch or _EPOCHS - 1


def _set_by_hand(topic: Topic, name: str, epoch: int) -> str:
    """What sets a marker, as text for a message."""
    return (
        f"execute in Python: from confluent_kafka import *; Consumer({{'bootstrap.servers': {topic.servers!r}, "
        f"'group.id': {name!r}}}).commit(offsets=[TopicPartition({topic.topic!r}, 0, {epoch})], asynchronous=False)"
    )


class _Producer:
    """Writes what one task has prepared. It takes the name of that task, and takes it again when it is fenced."""

    def __init__(self, topic: Topic, name: str, attempt: int) -> None:
        self.name = name
        self._topic = topic
        self._attempt = attempt
        # A transaction may last as long as the cluster lets it.
        self._patience_s = max(PATIENCE_S, int(topic.config.get("transaction.timeout.ms", 0)) / 1000)
        self._producer: Any = None
        self._group: Any = None
        self._epoch: int | None = None
        """The epoch of the last transaction that is there; None while the name is not taken."""

    def begin(self) -> None:
        """Take the name of a task that has prepared nothing yet."""
        if self._take() is None:
            self._write((), 0)

    def commit(self, written: Mapping[str, Records]) -> None:
        """Write what is not there yet of these transactions of the task."""
        for _ in range(_TAKES_MAX):
            try:
                epoch = self._take() if self._epoch is None else self._epoch
                if epoch is None:
                    raise KafkaTopicError(
                        f"{self._topic.title} has no marker of {self.name}: the cluster has forgotten it, which it "
                        "does after offsets.retention.minutes, or the topic was created again; whether the records of "
                        f"{', '.join(written)} are there is unknown: look for them; if they are, "
                        f"{_set_by_hand(self._topic, self.name, max(map(_epoch_of, written)))}; if not, do so with 0 "
                        "as the last number; then resume"
                    )
                lacking = [each for each in written if _epoch_of(each) > epoch]
                if lacking:
                    self._write(chain.from_iterable(written[each] for each in lacking), _epoch_of(lacking[-1]))
                return
            except _TakenError:
                self._epoch = None
                time.sleep(PAUSE_S * random())
        raise KafkaLostError(
            f"{self._topic.title}: other tasks take the transactional id {self.name!r} again and again"
        )

    def _take(self) -> int | None:
        """Take the name, and return the epoch of the last transaction; None if there is no marker."""
        topic = self._topic
        self._producer, group = producer_of(topic, self.name), consumer_of(topic, self.name)
        for _ in range(2):
            # The second time opens the connection for which the search for a coordinator would wait half a second.
            partitions_of(topic, self._producer)
        with understood(topic):
            self._producer.init_transactions(self._patience_s)
            self._group = group.consumer_group_metadata()
        marker = asked(topic, lambda: _committed(group, topic))
        group.close()
        if marker is None:
            return None
        attempt, self._epoch = divmod(marker, _EPOCHS)
        if attempt > self._attempt:
            raise FencedError(
                f"attempt {attempt} has taken over what {self.name} writes to {topic.title}: attempt {self._attempt} "
                "was taken for dead, and nothing that it still does counts"
            )
        if attempt < self._attempt:
            self._write((), self._epoch)
        return self._epoch

    def _write(self, records: Iterable[Message], epoch: int) -> None:
        """Write records and the marker in one transaction."""
        kafka, producer, topic = driver(), self._producer, self._topic.topic
        try:
            with understood(self._topic, refused=RuntimeError):
                producer.begin_transaction()
                for key, value in records:
                    _produce(producer, topic, key, value)
                self._send(kafka.TopicPartition(topic, 0, self._attempt * _EPOCHS + epoch))
                producer.commit_transaction(self._patience_s)
        except FencedError as error:
            raise _TakenError from error
        except (RuntimeError, KafkaLostError):
            # Readers would wait behind it until it expires. If this fails as well, the next producer ends it.
            with suppress(kafka.KafkaException):
                producer.abort_transaction(PATIENCE_S)
            raise
        self._epoch = epoch

    def _send(self, marker: Any) -> None:
        """Make the marker part of the transaction.

        librdkafka ignores the time limit of this call, and may wait for a coordinator that has left the cluster for
        ever (its issues 5456 and 5511): so another thread waits.
        """
        outcome: Queue[Exception | None] = Queue()

        def send() -> None:
            try:
                self._producer.send_offsets_to_transaction([marker], self._group, self._patience_s)
            except Exception as error:  # noqa: BLE001  # raised where it is waited for
                outcome.put(error)
            else:
                outcome.put(None)

        Thread(target=send, daemon=True).start()
        try:
            error = outcome.get(timeout=self._patience_s)
        except Empty:
            raise KafkaLostError(
                f"{self._topic.title}: the coordinator of group {self.name!r} does not answer"
            ) from None
        if error is not None:
            raise error


def _committed(group: Any, topic: Topic) -> int | None:
    try:
        (found,) = group.committed([driver().TopicPartition(topic.topic, 0)], timeout=PATIENCE_S)
        raise_if(found.error)
    except driver().KafkaException as failed:
        # What a new group is to some clusters; to others it has no offset.
        if failed.args[0].name() == "GROUP_ID_NOT_FOUND":
            return None
        raise
    return found.offset if found.offset >= 0 else None


def _produce(producer: Any, topic: str, key: bytes | None, value: bytes | None) -> None:
    while True:
        try:
            producer.produce(topic, value, key)
            return
        except BufferError:
            producer.poll(PAUSE_S)


class _TakenError(Exception):
    """Another producer has taken the name."""


class _MessageCheck:
    """Checks records before the cut that counts them as written, and encodes them."""

    def __init__(self, sink: str, topic: Topic) -> None:
        self._sink = sink
        self._what = f"a record of {topic.title}"
        self._bytes_max = int(topic.config.get("message.max.bytes", BYTES_MAX)) - FRAME_BYTES

    def __call__(self, records: Records) -> list[Message]:
        return [self._message(record) for record in as_records(records)]

    def _message(self, record: Any) -> Message:
        if not isinstance(record, dict) or not _FIELDS >= cast("dict[Any, Any]", record).keys() >= {"value"}:
            raise self._unwritable(
                record, "it is no dict with a value and, perhaps, a key", "map records to such dicts"
            )
        key, value = self._encoded(record, "key"), self._encoded(record, "value")
        if len(key or b"") + len(value or b"") > self._bytes_max:
            fix = "write less at a time, or raise message.max.bytes in the config of the sink, and of the topic"
            raise self._unwritable(record, f"it has more than {self._bytes_max:,} bytes", fix)
        return key, value

    def _encoded(self, record: Any, name: str) -> bytes | None:
        value = record.get(name)
        if value is None or isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            what = f"its {name} is of type {type(value).__name__}, and Kafka holds bytes"
            raise self._unwritable(record, what, "make it bytes or text, as json.dumps does")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise self._unwritable(record, f"its {name} cannot be encoded: {error}", "make it bytes") from error

    def _unwritable(self, record: Any, what: str, fix: str) -> Exception:
        return unwritable(self._sink, self._what, record, what, fix)
