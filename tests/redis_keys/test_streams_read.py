"""Streams of Redis as sources: each entry once, from the position of the cut, and none that is gone unnoticed."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import BadOptionError, EntriesGoneError, NoInputError, RedisKeyError, RedisLostError, RedisStream
from backedge.engine.io.files.checks import check_source as list_splits
from backedge.testing import check_source
from tests.files.opened import reader, rest, source
from tests.redis_keys.redis_process import RedisProcess


def filled(server: RedisProcess, key: str, count: int = 20) -> list[dict[str, Any]]:
    """The records of a stream with so many entries."""
    ids = [server.client.xadd(key, {"n": n, "text": f"ü{n}"}) for n in range(count)]
    return [{"id": id, "fields": {"n": str(n), "text": f"ü{n}"}} for n, id in enumerate(ids)]


@pytest.mark.slow
@pytest.mark.parametrize("until", ["now", None])
def test_each_entry_is_read_once(server: RedisProcess, key: str, until: Any):
    check_source(RedisStream(server.url, key, until=until), filled(server, key), seeds=range(5))


@pytest.mark.slow
def test_a_stream_that_was_trimmed_and_thinned_before_is_read_from_what_is_left(server: RedisProcess, key: str):
    records = filled(server, key)
    server.client.xtrim(key, maxlen=15, approximate=False)
    for gone in (8, 12, 19):
        server.client.xdel(key, records[gone]["id"])
    left = [record for n, record in enumerate(records) if n >= 5 and n not in (8, 12, 19)]
    check_source(RedisStream(server.url, key, until="now"), left, seeds=range(3))


def test_it_begins_and_ends_where_it_is_told(server: RedisProcess, key: str):
    filled(server, key, 3)
    latest = reader(RedisStream(server.url, key, start="latest"))
    now = RedisStream(server.url, key, until="now")
    bounded = reader(now)
    new = server.client.xadd(key, {"n": 3})
    assert latest.read(10) == [{"id": new, "fields": {"n": "3"}}] and not latest.exhausted
    assert latest.read(10) == [] and len(rest(bounded)) == 3


@pytest.mark.parametrize("gone", ["trimmed", "deleted", "removed", "made again"])
def test_entries_that_are_gone_before_they_were_read_are_noticed(server: RedisProcess, key: str, gone: str):
    records = filled(server, key)
    described = RedisStream(server.url, key)
    first = reader(described)
    first.read(5)
    positions = first.positions()
    server.client.xtrim(key, minid=records[5]["id"], approximate=False)
    assert reader(described, positions=positions).read(3) == records[5:8], "what was read may go"
    match gone:
        case "trimmed":
            server.client.xtrim(key, minid=records[6]["id"], approximate=False)
        case "deleted":
            server.client.xdel(key, records[12]["id"])
        case _:
            server.client.delete(key)
    if gone == "made again":
        filled(server, key, 3)
    with pytest.raises(EntriesGoneError, match=key):
        reader(described, positions=positions).read(3)


@pytest.mark.parametrize("until", ["now", None])
def test_an_entry_that_is_deleted_before_one_that_was_gone_at_the_start_is_missed(
    server: RedisProcess, key: str, until: Any
):
    records = filled(server, key)
    server.client.xdel(key, records[15]["id"])
    opened = reader(RedisStream(server.url, key, until=until))
    assert opened.read(5) == records[:5]
    server.client.xdel(key, records[8]["id"])
    server.client.xadd(key, {"n": 20, "text": "after the start"})
    with pytest.raises(EntriesGoneError, match=f"1 entries behind {records[4]['id']}"):
        opened.read(100)


def test_without_the_check_of_what_is_gone_a_trimmed_entry_is_missed(
    server: RedisProcess, key: str, monkeypatch: pytest.MonkeyPatch
):
    """What the check is for."""
    monkeypatch.setattr("backedge.engine.io.streams.redis._StreamReader._check", lambda self, known: None)
    records = filled(server, key)
    first = reader(RedisStream(server.url, key))
    first.read(5)
    server.client.xtrim(key, minid=records[9]["id"], approximate=False)
    assert first.read(1) == [records[9]]


def test_what_cannot_be_read_is_refused_by_name(server: RedisProcess, key: str):
    with pytest.raises(RedisKeyError, match=f"no stream '{key}'"):
        list_splits(source(RedisStream(server.url, key)))
    server.client.rpush(key, 1)
    with pytest.raises(RedisKeyError, match=f"a list is in place of stream '{key}'"):
        list_splits(source(RedisStream(server.url, key)))
    with pytest.raises((RedisLostError, NoInputError), match=r"localhost:1\b"):
        list_splits(source(RedisStream("redis://:secret@localhost:1", key)))
    server.client.xadd(f"{key} of bytes", {"n": b"\xff"})
    with pytest.raises(RedisKeyError, match="not UTF-8"):
        reader(RedisStream(server.url, f"{key} of bytes")).read(1)
    with pytest.raises(BadOptionError, match="until"):
        RedisStream(server.url, key, until="later")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadOptionError, match="redis://HOST") as bad:
        RedisStream("http://me:secret@host", key)
    assert "secret" not in str(bad.value) + repr(RedisStream("redis://:secret@localhost", key))
    for database in ("orders", "3/4"):  # redis-py takes them for 0 and 34
        with pytest.raises(BadOptionError, match="redis://HOST:PORT/DATABASE"):
            RedisStream(f"redis://localhost/{database}", key)


def test_a_replica_that_has_lost_its_main_server_has_the_run_try_again(server: RedisProcess, key: str):
    filled(server, key)
    opened = reader(RedisStream(server.url, key))
    server.client.config_set("replica-serve-stale-data", "no")
    server.client.execute_command("REPLICAOF", "localhost", "1")
    with pytest.raises(RedisLostError, match="MASTER is down"):
        opened.read(5)
    server.client.execute_command("REPLICAOF", "NO", "ONE")
    assert len(opened.read(5)) == 5
