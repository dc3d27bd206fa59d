"""Records and their marker in one transaction of Kafka: a commit counts once, however it goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from backedge import (
    FencedError,
    KafkaLostError,
    KafkaTopic,
    KafkaTopicError,
    UncommittedOutputError,
    UnwritableRecordError,
)
from backedge.engine.io.streams.kafka_writer import FRAME_BYTES
from tests.databases.sinks_by_hand import place_in, transaction
from tests.every import every
from tests.faults.evidence import Evidence
from tests.files.opened import publish, stage
from tests.gates import HANG_S
from tests.kafka.broker import LOADING, NOT_COORDINATOR, NOT_LEADER, TIMED_OUT, Broker, Strike
from tests.kafka.clusters import new_name, producer, read, values_in

RUN = new_name()
"""In the names of producers and groups: those of another run at the same cluster are others."""


class Opened:
    """A topic, with the writers of a sink."""

    def __init__(self, cluster: Any, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.name = cluster.create(new_name(), 2)
        self.run = f"{RUN}-{self.name}"
        self.sink = KafkaTopic(cluster.servers, self.name)
        self.opened: list[Any] = []

    def place(self, **of: int) -> Any:
        return place_in(self.folder, run=self.run, **of)

    def writer(self, **of: int) -> Any:
        self.opened.append(self.sink.open_writer(self.place(**of)))
        return self.opened[-1]

    def values(self) -> list[str]:
        return sorted(values_in(self.cluster.servers, self.name, 2))

    def close(self) -> None:
        for writer in self.opened:
            writer.close()


@pytest.fixture
def topic(cluster: Any, tmp_path: Path) -> Iterator[Opened]:
    with closing(Opened(cluster, tmp_path)) as made:
        yield made


@pytest.fixture
def struck(broker: Broker, tmp_path: Path) -> Iterator[Opened]:
    """A topic of the broker that can strike."""
    with closing(Opened(broker, tmp_path)) as made:
        yield made


def records(*values: str) -> list[dict[str, Any]]:
    return [{"key": value, "value": value} for value in values]


def test_records_appear_with_the_commit_and_not_before(topic: Opened):
    topic.sink.validate_output(topic.place(), fresh=True)
    writer = topic.writer()
    stage(writer, records("a", "b"), transaction(1))
    assert topic.values() == []
    writer.commit(transaction(1))
    assert topic.values() == ["a", "b"]
    assert not writer.prepare(transaction(2)), "nothing was written since"


def test_keys_and_values_are_bytes_text_or_nothing(topic: Opened):
    publish(
        topic.writer(),
        [{"value": b"x"}, {"key": None, "value": "\u00e4"}, {"key": b"k", "value": None}],
        transaction(1),
    )
    found = [(m["key"], m["value"]) for m in read(replace(topic.sink, until="now"))]
    assert sorted(found, key=repr) == [(None, "\u00e4".encode()), (None, b"x"), (b"k", None)]


def test_another_task_of_a_later_attempt_commits_what_several_have_prepared(topic: Opened):
    """As it is after a change of parallelism, when the first task takes over what all have prepared."""
    names = [transaction(1), transaction(2), transaction(1, task=1), transaction(0, task=1)]
    stores = [topic.sink.store() for _ in range(2)]
    for task, store in enumerate(stores):
        store.enter(topic.place(task=task))
    stores[0].commit(topic.place(), {names[0]: [(None, b"0")]})
    later = topic.sink.store()
    later.enter(topic.place(attempt=2))
    for _ in range(2):
        later.commit(topic.place(attempt=2), {name: [(None, b"%d" % n)] for n, name in enumerate(names)})
    later.commit(topic.place(attempt=2), {transaction(2, attempt=2): [(None, b"4")]})
    assert topic.values() == ["0", "1", "2", "3", "4"]


def test_a_writer_that_was_taken_for_dead_is_fenced(topic: Opened, evidence: Evidence):
    """It knows that nothing of it is there, as it was when it last looked: only the fence stops it."""
    written = {transaction(1): [(None, b"a")]}
    zombie, later = topic.sink.store(), topic.sink.store()
    zombie.enter(topic.place())
    later.enter(topic.place(attempt=2))
    later.commit(topic.place(attempt=2), written)
    with pytest.raises(FencedError, match="taken for dead"):
        zombie.commit(topic.place(), written)
    evidence.happened("commits of an earlier attempt that were refused", 1)
    evidence.same(topic.values(), ["a"])


def test_a_transaction_that_a_dead_writer_left_open_ends_with_the_next_commit(topic: Opened):
    name = f"backedge.{topic.run}.{transaction(1).rpartition('.epoch-')[0]}"
    topic.writer()
    dead = producer(topic.cluster.servers, **{"transactional.id": name})
    dead.init_transactions()
    dead.begin_transaction()
    dead.produce(topic.name, "half", partition=0)
    dead.flush()
    later = topic.sink.store()
    later.enter(topic.place(attempt=2))
    later.commit(topic.place(attempt=2), {transaction(1): [(None, b"a")]})
    assert topic.values() == ["a"]


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_commit_whose_reply_is_lost_counts_once(struck: Opened, side: Any, evidence: Evidence):
    writer = struck.writer()
    stage(writer, records("a", "b"), transaction(1))
    strike = Strike("EndTxn", side, committed := Committed(struck))
    struck.cluster.plan(strike)
    writer.commit(transaction(1))
    assert strike.has_happened.is_set()
    assert committed.values == ([] if side == "before" else ["a", "b"])
    evidence.happened("commits that were lost" if side == "before" else "replies to a commit that were lost", 1)
    evidence.same(struck.values(), ["a", "b"])


class Committed:
    """Notes what can be read while a reply is held back."""

    def __init__(self, topic: Opened) -> None:
        self._topic = topic
        self.values: list[str] = []

    def __call__(self, client: int) -> None:
        self.values = self._topic.values()


@pytest.mark.slow
def test_errors_that_pass_neither_lose_nor_double_a_record(struck: Opened):
    """Without an error, the request has its effect and the connection is cut before the reply."""
    strikes = [
        *(Strike(name, "after") for name in ("Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit")),
        *(Strike("Produce", error=error) for error in (NOT_LEADER, TIMED_OUT)),
        Strike("AddPartitionsToTxn", error=LOADING),
        Strike("AddOffsetsToTxn", error=NOT_COORDINATOR),
        Strike("TxnOffsetCommit", error=LOADING),
        *(Strike("EndTxn", error=error) for error in (LOADING, NOT_COORDINATOR)),
    ]
    struck.cluster.plan(*strikes)
    writer = struck.writer()
    for number in range(len(strikes)):
        publish(writer, records(f"{number:02}"), transaction(number + 1))
    assert struck.cluster.happened == len(strikes)
    assert struck.values() == [f"{number:02}" for number in range(len(strikes))]


class Stuck:
    """A producer that waits for ever for a coordinator, whatever its time limit is."""

    def __init__(self) -> None:
        self.begin_transaction = self.abort_transaction = self.produce = lambda *_: None
        self.released = Event()

    def send_offsets_to_transaction(self, *_: Any) -> None:
        self.released.wait(HANG_S)


def test_a_coordinator_that_does_not_answer_fails_the_attempt(struck: Opened, monkeypatch: pytest.MonkeyPatch):
    store, stuck = struck.sink.store(), Stuck()
    store.enter(struck.place())
    monkeypatch.setattr(store._own, "_producer", stuck)
    monkeypatch.setattr(store._own, "_patience_s", 0.1)
    with pytest.raises(KafkaLostError, match="coordinator"):
        store.commit(struck.place(), {transaction(1): [(None, b"a")]})
    stuck.released.set()


def test_a_marker_that_the_cluster_has_forgotten_is_an_error_that_says_how_to_go_on(struck: Opened):
    stage(struck.writer(), records("a"), transaction(1))
    struck.cluster.offsets.clear()
    later = struck.writer(attempt=2)
    with pytest.raises(KafkaTopicError, match=r"offsets.retention.minutes.* is unknown") as failed:
        later.commit(transaction(1))
    statement = str(failed.value).split("Python: ")[1].split("; if not")[0]
    exec(statement.replace(", 1)]", ", 0)]"), {})
    later.commit(transaction(1))
    assert struck.values() == ["a"]


def test_records_that_the_topic_refuses_are_kept_until_it_takes_them(struck: Opened, evidence: Evidence):
    writer = struck.writer()
    stage(writer, records("a" * 1000), transaction(1))
    for partition in struck.cluster.topics[struck.name]:
        partition.max_bytes = 500
    for _ in range(2):
        with pytest.raises(UncommittedOutputError, match="Message size too large"):
            writer.commit(transaction(1))
        evidence.happened("commits that failed", 1)
    for partition in struck.cluster.topics[struck.name]:
        partition.max_bytes = 1 << 20
    struck.writer(attempt=2).commit(transaction(1))
    evidence.same(struck.values(), ["a" * 1000])


def test_the_statement_of_the_error_gives_up_the_records_of_a_transaction(struck: Opened):
    writer = struck.writer()
    stage(writer, records("a" * 1000), transaction(1))
    for partition in struck.cluster.topics[struck.name]:
        partition.max_bytes = 500
    with pytest.raises(UncommittedOutputError) as failed:
        writer.commit(transaction(1))
    exec(str(failed.value).split("Python: ")[1].split(" and resume")[0], {})
    later = struck.writer(attempt=2)
    later.commit(transaction(1))
    publish(later, records("b"), transaction(2, attempt=2))
    assert struck.values() == ["b"]


@every(
    ("record", "told"),
    [
        ("text", "no dict with a value"),
        ({"key": "k"}, "no dict with a value"),
        ({"value": "x", "topic": "t"}, "no dict with a value"),
        ({"value": 5}, "its value is of type int"),
        ({"value": "x", "key": ("a", 1)}, "its key is of type tuple"),
        ({"value": "bad \ud83d"}, "its value cannot be encoded"),
        ({"value": "x" * 999_963, "key": "ab"}, "more than 999,964 bytes"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_before_the_cut(struck: Opened, record: Any, told: str):
    writer = struck.writer()
    with pytest.raises(UnwritableRecordError, match=told):
        writer.write([{"value": "fine"}, record])
    assert not writer.prepare(transaction(1)), "a batch is taken whole or not at all"


@pytest.mark.parametrize("limit", [5_000, 1_000_000])
def test_the_largest_record_that_is_taken_can_be_committed(struck: Opened, limit: int):
    struck.sink = replace(struck.sink, config={"message.max.bytes": limit})
    writer, value = struck.writer(), "x" * (limit - FRAME_BYTES - 1)
    with pytest.raises(UnwritableRecordError):
        writer.write([{"value": value, "key": "ab"}])
    publish(writer, [{"value": value, "key": "a"}], transaction(1))
    assert struck.values() == [value]


def test_a_topic_that_is_missing_is_refused_before_the_run(cluster: Any, tmp_path: Path):
    with pytest.raises(KafkaTopicError, match=r"'no-such-topic'.*create the topic"):
        KafkaTopic(cluster.servers, "no-such-topic").validate_output(place_in(tmp_path), fresh=True)
