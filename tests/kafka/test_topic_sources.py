"""A topic as a source: each record once, from the offset that the cut has, only what is committed."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import BadOptionError, KafkaLostError, KafkaTopic, KafkaTopicError, OffsetGoneError
from backedge.engine.io.streams import kafka_client, kafka_reader
from backedge.engine.io.streams.kafka_reader import Feed
from tests.gates import wait_for
from tests.kafka.broker import LOADING, NOT_LEADER, TIMED_OUT, Broker, Strike
from tests.kafka.clusters import new_name, put, read, reader, transactional

NUMBERS = [str(n) for n in range(20)]


def numbers(records: list[Any]) -> list[int]:
    return [int(record["value"]) for record in records]


def test_a_record_has_key_value_partition_offset_and_timestamp(readable: Any):
    topic = readable.create(new_name(), 2)
    put(readable.servers, topic, ["a", "b"], partition=1, key="k")
    found = read(KafkaTopic(readable.servers, topic, until="now"))
    times = [record.pop("timestamp") for record in found]
    assert found == [
        {"key": b"k", "value": b"a", "partition": 1, "offset": 0},
        {"key": b"k", "value": b"b", "partition": 1, "offset": 1},
    ]
    assert all(time > 1_600_000_000_000 for time in times)


def test_a_restored_reader_goes_on_behind_the_position_of_each_partition(readable: Any):
    topic = readable.create(new_name(), 2)
    for partition in (0, 1):
        put(readable.servers, topic, NUMBERS, partition)
    source = KafkaTopic(readable.servers, topic, until="now")
    first = reader(source)
    found = read(source, 13, records_max=7, opened=first)
    rest = read(source, opened=reader(source, positions=first.positions()))
    assert sorted(numbers(found + rest)) == sorted(map(int, NUMBERS * 2))


def test_a_source_until_now_ends_with_what_was_there(readable: Any):
    topic = readable.create(new_name(), 2)
    put(readable.servers, topic, NUMBERS[:5], partition=0)
    source = KafkaTopic(readable.servers, topic, until="now")
    assert list(source.splits()) == ["0 from 0 to 5", "1 from 0 to 0"]
    opened = reader(source)
    put(readable.servers, topic, NUMBERS[5:], partition=0)
    assert numbers(read(source, opened=opened)) == list(range(5))
    assert reader(source, positions=opened.positions()).exhausted


def test_a_source_from_the_latest_begins_where_it_was_listed_and_not_where_it_is_opened(readable: Any):
    topic = readable.create(new_name())
    put(readable.servers, topic, NUMBERS[:5])
    source = KafkaTopic(readable.servers, topic, start="latest")
    (split,) = source.splits()
    put(readable.servers, topic, NUMBERS[5:])
    again = reader(source, positions={split: source.first_position(split)})
    assert split == "0 from 5"
    assert numbers(read(source, 15, opened=again)) == list(range(5, 20))


def test_each_partition_begins_at_the_offset_that_it_is_given(readable: Any):
    topic = readable.create(new_name(), 2)
    for partition in (0, 1):
        put(readable.servers, topic, NUMBERS[:4], partition)
    source = KafkaTopic(readable.servers, topic, start={1: 3}, until="now")
    assert sorted(numbers(read(source))) == [0, 1, 2, 3, 3]


def test_partitions_that_are_new_are_found_and_read_from_their_beginning(cluster: Any):
    topic = cluster.create(new_name(), 2)
    source = KafkaTopic(cluster.servers, topic, start={0: 5, 1: 7})
    known = source.find_splits(()).new
    assert (known, source.find_splits(known).new) == (["0 from 5", "1 from 7"], [])
    cluster.create(topic, 3)
    assert source.find_splits(known) == (["2"], False, ())


def test_a_topic_whose_splits_depend_on_when_it_is_looked_at_has_those_of_the_start():
    """An attempt without a cut to go on from would find others."""
    topics = [KafkaTopic("localhost:1", "t", **options) for options in ({}, {"start": "latest"}, {"until": "now"})]
    assert [topic.look_s is None for topic in topics] == [False, True, True]


def test_offsets_that_retention_has_removed_are_an_error_that_says_what_to_do(readable: Any):
    topic = readable.create(new_name())
    for value in NUMBERS:
        put(readable.servers, topic, [value])
    source = KafkaTopic(readable.servers, topic)
    opened = reader(source)
    read(source, 3, records_max=3, opened=opened)
    readable.remove_before(topic, 0, 7)
    with pytest.raises(OffsetGoneError, match=rf"partition 0 of topic '{topic}' .* 7 to 20.*start='earliest'"):
        read(source, 20, opened=reader(source, positions={"0": 3}))
    assert numbers(read(source, 13)) == list(range(7, 20))


def test_records_of_the_start_that_are_gone_before_any_was_read_are_missed(readable: Any):
    topic = readable.create(new_name())
    for value in NUMBERS:
        put(readable.servers, topic, [value])
    source = KafkaTopic(readable.servers, topic, until="now")
    opened = reader(source)
    readable.remove_before(topic, 0, 7)
    with pytest.raises(OffsetGoneError, match="7 to 20"):
        read(source, opened=opened)


def test_only_what_is_committed_is_read(cluster: Any):
    topic = cluster.create(new_name())
    put(cluster.servers, topic, ["0"])
    aborting, committing = transactional(cluster.servers), transactional(cluster.servers)
    for writer, value in ((aborting, "aborted"), (committing, "1")):
        writer.begin_transaction()
        writer.produce(topic, value, partition=0)
        writer.flush()
    source = KafkaTopic(cluster.servers, topic)
    opened = reader(source)
    assert numbers(read(source, 1, opened=opened)) == [0]
    assert list(KafkaTopic(cluster.servers, topic, until="now").splits()) == ["0 from 0 to 1"], "then open ones"
    aborting.abort_transaction()
    committing.commit_transaction()
    put(cluster.servers, topic, ["2"])
    assert numbers(read(source, 2, opened=opened)) == [1, 2]


def test_a_partition_that_ends_with_what_was_never_committed_is_read_to_its_end(cluster: Any):
    topic = cluster.create(new_name())
    for value in ("0", "aborted"):
        writer = transactional(cluster.servers)
        writer.begin_transaction()
        writer.produce(topic, value, partition=0)
        writer.flush()
        (writer.commit_transaction if value == "0" else writer.abort_transaction)()
    source = KafkaTopic(cluster.servers, topic, until="now")
    assert list(source.splits()) == ["0 from 0 to 4"], "two records and two markers"
    assert numbers(read(source)) == [0]


class Scripted:
    """A consumer whose fetches the test gives."""

    def __init__(self, *fetches: list[Any]) -> None:
        self.fetches = list(fetches)

    def consume(self, records_max: int, timeout: float) -> list[Any]:
        return self.fetches.pop(0) if self.fetches else []

    def incremental_assign(self, partitions: list[Any]) -> None:
        return None


class ScriptedMessage:
    """A message of a partition."""

    def __init__(self, partition: int, value: int) -> None:
        self.value = value
        self.partition = lambda: partition

    def error(self) -> None:
        return None


def test_no_partition_waits_behind_a_busy_one():
    busy = [[ScriptedMessage(0, 2 * n), ScriptedMessage(0, 2 * n + 1), ScriptedMessage(1, 100 + n)] for n in range(3)]
    feed = Feed(KafkaTopic("localhost:1", "t"), Scripted(*busy))
    for partition in (0, 1):
        feed.open(partition, 0)
    taken = [[message.value for message in feed.take(partition, 2)] for _ in range(3) for partition in (0, 0, 1)]
    assert taken == [[0, 1], [], [100], [2, 3], [], [101], [4, 5], [], [102]]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"servers": ""}, "servers"),
        ({"topic": "a b"}, "topic"),
        ({"topic": 5}, "topic"),
        ({"start": "newest"}, "start"),
        ({"start": {0: -1}}, "start"),
        ({"until": "tomorrow"}, "until"),
        ({"config": {"isolation.level": "read_uncommitted"}}, "isolation.level"),
        ({"config": {"transactional.id": "mine"}}, "transactional.id"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_its_name(options: dict[str, Any], named: str):
    with pytest.raises(BadOptionError, match=named):
        KafkaTopic(**{"servers": "localhost:9092", "topic": "orders", **options})


def test_a_password_is_in_no_description():
    assert "secret" not in repr(KafkaTopic("localhost:1", "t", config={"sasl.password": "secret"}))


def test_a_setting_that_librdkafka_refuses_is_not_blamed_on_the_topic():
    topic = KafkaTopic("localhost:1", "t", config={"sasl.mechanismus": "PLAIN"})
    with pytest.raises(KafkaTopicError, match=r'"sasl.mechanismus": correct config='):
        topic.validate_input()


def test_a_topic_that_is_missing_and_servers_that_do_not_answer_are_told_apart(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
):
    for call in (KafkaTopic.validate_input, KafkaTopic.splits):
        with pytest.raises(KafkaTopicError, match=r"'no-such-topic' of .*create the topic"):
            call(KafkaTopic(cluster.servers, "no-such-topic"))
    monkeypatch.setattr(kafka_client, "PATIENCE_S", 0.2)
    with pytest.raises(KafkaLostError, match=r"127.0.0.1:1: .*start the servers"):
        KafkaTopic("127.0.0.1:1", "orders", config={"log_level": 0}).validate_input()


def test_a_cluster_that_is_away_while_a_topic_is_silent_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kafka_reader, "SILENCE_S", 0.0)
    with Broker() as broker:
        topic = KafkaTopic(broker.servers, broker.create(new_name()), config={"log_level": 0})
        opened = reader(topic)
        assert opened.read(10) == opened.read(10) == []
    monkeypatch.setattr(kafka_client, "PATIENCE_S", 0.2)
    with pytest.raises(KafkaLostError, match="start the servers"):
        wait_for(lambda: opened.read(10), "it is noticed")


@pytest.mark.slow
def test_errors_that_pass_neither_lose_nor_double_a_record(broker: Broker):
    topic = broker.create(new_name())
    source = KafkaTopic(broker.servers, topic)
    opened, found = reader(source), list[Any]()
    strikes = [
        *(Strike("Fetch", error=error) for error in (NOT_LEADER, TIMED_OUT, LOADING)),
        *(Strike("Fetch", side) for side in ("before", "after")),
        Strike("Metadata", "after"),
    ]
    for number, strike in enumerate(strikes):
        put(broker.servers, topic, [str(number)])
        broker.plan(strike)
        if strike.request == "Metadata":
            opened = reader(source, positions=opened.positions())

        def is_read(opened: Any = opened, strike: Strike = strike, count: int = number + 1) -> bool:
            found.extend(opened.read(1000))
            return strike.has_happened.is_set() and len(found) >= count

        wait_for(is_read, strike)
    assert numbers(found) == list(range(len(strikes)))
