"""Keys of Redis as sinks: each record once, whatever happens to the writer, its connection or the server."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.connection import Connection, UnixDomainSocketConnection

from backedge import (
    FencedError,
    RedisHash,
    RedisKeyError,
    RedisList,
    RedisLostError,
    RedisStream,
    UnwritableRecordError,
)
from backedge.engine.io.streams import redis as redis_keys
from backedge.testing import check_sink
from tests.databases.sinks_by_hand import Rolls, place_in, transaction
from tests.faults.evidence import Evidence
from tests.files.opened import publish, stage
from tests.gates import HANG_S, wait_for
from tests.redis_keys.redis_process import RedisProcess

KINDS: dict[str, Any] = {
    "list": RedisList,
    "hash": lambda url, key: RedisHash(url, key, field="n"),
    "stream": RedisStream,
}


def content(server: RedisProcess, key: str) -> list[Any]:
    """The records that a key holds."""
    client = server.client
    match client.type(key):
        case "list":
            return list(map(json.loads, client.lrange(key, 0, -1)))
        case "hash":
            return list(map(json.loads, client.hvals(key)))
        case "stream":
            return [{name: int(value) for name, value in fields.items()} for _, fields in client.xrange(key)]
        case _:
            return []


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 300), marks=pytest.mark.long)], ids=["few", "many"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_record_is_there_once_whatever_happens(
    server: RedisProcess, key: str, kind: str, seeds: range, evidence: Evidence
):
    keys = (f"{key} {number}" for number in count())
    happened = check_sink(
        lambda: KINDS[kind](server.url, next(keys)), lambda sink: content(server, sink.key), seeds=seeds
    )
    for fault in ("without an answer", "process dies", "process sleeps"):
        evidence.happened(f"a {fault}", sum(times for what, times in happened.items() if fault in what))


LEFT_OUT = {
    "the fence": ("if attempt ~= ARGV[3] then return {'attempt', attempt or ''} end", ""),
    "the marker": ("redis.call('HEXISTS', KEYS[2], name) == 0", "true"),
}


@pytest.mark.parametrize("left_out", [None, *LEFT_OUT])
def test_a_commit_that_comes_late_or_again_writes_nothing_unless_the_script_lacks_its_rule(
    server: RedisProcess, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str | None
):
    rule, other = LEFT_OUT.get(left_out or "", ("local", "local"))
    assert rule in redis_keys._COMMIT
    monkeypatch.setattr(redis_keys, "_COMMIT", redis_keys._COMMIT.replace(rule, other))
    sink, written = RedisList(server.url, key), {transaction(1): [("1",)]}
    early, late = place_in(tmp_path, run=key), place_in(tmp_path, run=key, attempt=2)
    with closing(sink.store()) as zombie, closing(sink.store()) as later:
        zombie.enter(early)
        later.enter(late)
        for _ in range(2):
            later.commit(late, written)
        if left_out != "the marker":
            later.forget(late, Rolls(forgets=[transaction(1)]))
        with nullcontext() if left_out == "the fence" else pytest.raises(FencedError, match="attempt 2"):
            zombie.commit(early, written)
    assert content(server, key) == ([1] if left_out is None else [1, 1])


def test_markers_and_the_attempt_go_when_nothing_asks_for_them(server: RedisProcess, key: str, tmp_path: Path):
    sink, place = RedisList(server.url, key), place_in(tmp_path, run=key)
    with closing(sink.open_writer(place)) as writer:
        publish(writer, [1], transaction(1))
    markers = f"backedge:{key}:{place.operator}"
    assert server.client.hgetall(markers) == {"attempt": "1", transaction(1): ""}
    sink.roll_back(place, Rolls(forgets=[transaction(1)], is_over=True, before=1))
    assert server.client.hgetall(markers) == {"attempt": "1"}, "a later attempt may have begun"
    sink.roll_back(place, Rolls(is_over=True, before=2))
    assert not server.client.exists(markers) and content(server, key) == [1]


def test_many_records_of_several_arguments_are_written_by_few_commands(server: RedisProcess, key: str, tmp_path: Path):
    server.client.config_resetstat()
    with closing(RedisHash(server.url, key, field="n").open_writer(place_in(tmp_path, run=key))) as writer:
        publish(writer, [{"n": n} for n in range(2_345)], transaction(1))
    assert server.client.info("commandstats")["cmdstat_hset"]["calls"] < 10
    assert sorted(record["n"] for record in content(server, key)) == list(range(2_345))


@pytest.mark.parametrize(
    ("kind", "record", "told"),
    [
        ("list", {"n": {1}}, "set"),
        ("list", float("nan"), "not JSON"),
        ("hash", {"m": 1}, "'n'"),
        ("hash", {"n": 1.5}, "float"),
        ("stream", {"n": None}, "None"),
        ("stream", {1: "x"}, "no text"),
        ("stream", {}, "0 fields"),
        ("stream", 5, "int"),
        ("list", "bad \ud83d", "surrogates"),
        ("hash", {"n": "bad \ud83d"}, "surrogates"),
        ("stream", {"n": "bad \ud83d"}, "surrogates"),
        ("stream", {"bad \ud83d": 1}, "surrogates"),
        ("stream", {"n": 10**5000}, "digits"),
        ("list", {"n": {1: "x", "1": "y"}}, "the same text"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_before_the_cut(
    server: RedisProcess, key: str, tmp_path: Path, kind: str, record: Any, told: str
):
    with closing(KINDS[kind](server.url, key).open_writer(place_in(tmp_path, run=key))) as writer:
        with pytest.raises(UnwritableRecordError, match=f"(?s){key}.*{told}.*record: "):
            writer.write([{"n": 1}, record])
        assert not writer.prepare(transaction(1))


def test_a_key_of_another_type_is_refused_and_the_records_wait_for_it(server: RedisProcess, key: str, tmp_path: Path):
    sink, place = RedisList(server.url, key), place_in(tmp_path, run=key)
    with closing(sink.open_writer(place)) as writer:
        stage(writer, [1], transaction(1))
        server.client.set(key, "x")
        with pytest.raises(RedisKeyError, match=f"a string is in place of list '{key}'"):
            writer.commit(transaction(1))
        with pytest.raises(RedisKeyError, match="a string"):
            sink.validate_output(place, fresh=False)
        server.client.delete(key)
        writer.commit(transaction(1))
    assert content(server, key) == [1]


def test_a_server_that_became_a_replica_has_the_run_try_again(server: RedisProcess, key: str, tmp_path: Path):
    sink, place = RedisList(server.url, key), place_in(tmp_path, run=key)
    with closing(sink.open_writer(place)) as writer:
        stage(writer, [1], transaction(1))
        server.client.execute_command("REPLICAOF", "localhost", "1")
        with pytest.raises(RedisLostError, match="replica"):
            writer.commit(transaction(1))
        server.client.execute_command("REPLICAOF", "NO", "ONE")
        writer.commit(transaction(1))
    assert content(server, key) == [1]


@pytest.mark.slow
def test_a_server_that_is_killed_between_and_during_commits_has_each_record_once(
    server: RedisProcess, key: str, tmp_path: Path, evidence: Evidence
):
    """It is down while a task commits, which waits for it."""
    with closing(RedisStream(server.url, key).open_writer(place_in(tmp_path, run=key))) as writer:
        for epoch in (1, 2, 3):
            stage(writer, [{"n": epoch}], transaction(epoch))
            server.kill()
            with ThreadPoolExecutor(1) as pool:
                commit = pool.submit(writer.commit, transaction(epoch))
                server.start()
                commit.result(HANG_S)
            writer.commit(transaction(epoch))
            evidence.happened("servers that were killed", 1)
    evidence.same([record["n"] for record in content(server, key)], [1, 2, 3])


@pytest.mark.slow
@pytest.mark.parametrize("delivered", [True, False])
def test_a_commit_whose_reply_is_lost_counts_once(
    server: RedisProcess, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delivered: bool
):
    """The connection breaks behind the command, or in front of it; the client sends it again."""
    send, lost = Connection.send_packed_command, list[bool]()

    def sent(connection: Any, command: Any, *more: Any, **options: Any) -> None:
        is_it = any(b"HEXISTS" in bytes(part) for part in command) and not lost
        if is_it:
            lost.append(True)
            if delivered:
                send(connection, command, *more, **options)
                wait_for(lambda: content(server, key) == [1], "the server has carried it out")
            connection.disconnect()
            raise redis.exceptions.ConnectionError("the connection is lost")
        send(connection, command, *more, **options)

    monkeypatch.setattr(UnixDomainSocketConnection, "send_packed_command", sent)
    with closing(RedisList(server.url, key).open_writer(place_in(tmp_path, run=key))) as writer:
        publish(writer, [1], transaction(1))
    assert lost and content(server, key) == [1]
