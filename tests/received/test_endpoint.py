"""An endpoint in this process: what it answers, when, and what of it a reader then reads."""

from __future__ import annotations

import asyncio
import gzip
import pickle
import shutil
import threading
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import structs

from backedge import OutcomeUnknownError, Received, SnapshotCorruptError, StoreError
from backedge.engine.received import doors
from backedge.engine.received.doors import DoorSpec, GeneratorDoor, HttpDoor, LinesDoor, MalformedError, records_in
from backedge.engine.received.log_state import SEGMENT_BYTES
from backedge.engine.received.received import SegmentsReader
from backedge.engine.received.received_actor import Endpoint, EndpointSpec
from backedge.engine.received.received_log import NotKeptError, ReceivedLog, TooLargeError
from backedge.engine.received.segments import LOG, encoded, listed, read_segment, segment_file
from backedge.graphs.io import OtherInputError
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_protocol import Store

BYTES_MAX = 1 << 20
BODY_BYTES_MAX = 1000
TOKEN = "only-for-this-test"


class Gated(FolderStore):
    """A folder. `before` and `after` are called around the creation of each segment."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.before: Callable[[str], object] = lambda name: None
        self.after: Callable[[str], object] = lambda name: None

    def create(self, name: str, data: bytes) -> bool:
        self.before(name)
        created = super().create(name, data)
        self.after(name)
        return created


def spec(token: str | None = None) -> DoorSpec:
    return DoorSpec("http", "127.0.0.1", 0, token, BODY_BYTES_MAX)


def with_door(
    store: Store,
    use: Callable[[aiohttp.ClientSession, HttpDoor, ReceivedLog], Awaitable[None]],
    token: str | None = None,
    bytes_max: int = BYTES_MAX,
) -> None:
    """Serve a log over HTTP while `use` uses it."""

    async def serve() -> None:
        log = ReceivedLog(store, bytes_max)
        await log.open()
        door = HttpDoor(spec(token), log)
        await door.open()
        writing = asyncio.ensure_future(log.write())
        try:
            async with aiohttp.ClientSession() as session:
                await use(session, door, log)
        finally:
            writing.cancel()
            await door.close()

    asyncio.run(serve())


async def post(session: aiohttp.ClientSession, door: HttpDoor, body: str | bytes, **headers: str) -> tuple[int, Any]:
    async with session.post(door.address, data=body, headers=headers) as answer:
        return answer.status, await answer.json()


def records_of(store: Store) -> list[Any]:
    """All records of a log, as a flow with one task reads them."""
    reader = SegmentsReader(store, 1, min(listed(store)), 0)
    found: list[Any] = []
    for _ in range(max(listed(store))):
        found += reader.read(1000)
    return found


def test_a_request_is_answered_when_it_is_durable_and_not_before(tmp_path: Path):
    store, may_create, creating = Gated(str(tmp_path / "log")), threading.Event(), threading.Event()
    store.before = lambda name: (creating.set(), may_create.wait())

    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        first = asyncio.ensure_future(post(session, door, '[{"a": 1}, {"a": 2}]'))
        await asyncio.to_thread(creating.wait)
        later = [asyncio.ensure_future(post(session, door, f'{{"a": {number}}}')) for number in (3, 4)]
        while len(log.state.waiting) < len(later):
            await asyncio.sleep(0)
        assert not first.done()
        assert listed(store) == []
        may_create.set()
        assert [await one for one in (first, *later)] == [(200, {"records": count}) for count in (2, 1, 1)]
        assert listed(store) == [1, 2], "requests that wait for a segment go into the next one together"

    with_door(store, use)
    assert records_of(store) == [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]


@pytest.mark.parametrize(
    ("body", "records"),
    [
        ('[1, "two", null, {"three": [3.5]}]', [1, "two", None, {"three": [3.5]}]),
        ('{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ("  [[1], [2]]  ", [[1], [2]]),
        (f"[{10**40}, 1e300]", [10**40, 1e300]),
        ("[]", []),
        ("", []),
    ],
)
def test_a_body_is_a_list_or_lines_of_json(body: str, records: list[Any], tmp_path: Path):
    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        assert await post(session, door, body) == (200, {"records": len(records)})
        assert await post(session, door, '["last"]') == (200, {"records": 1})

    with_door(store := FolderStore(str(tmp_path / "log")), use)
    assert records_of(store) == [*records, "last"]


@pytest.mark.parametrize(
    "body", [b"{", b"[1,", b"\xff", b"NaN", b'["\\ud800"]', b"[" * 900, b"cos\nsystem\n(S'ls'\ntR."]
)
def test_what_is_not_json_is_refused_and_leaves_nothing(body: bytes, tmp_path: Path):
    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        status, answer = await post(session, door, body)
        assert (status, "as JSON" in answer["error"]) == (400, True)

    with_door(store := FolderStore(str(tmp_path / "log")), use)
    assert listed(store) == []


def packed(data: bytes) -> bytes:
    """Without the time, which would be in the names of the tests."""
    return gzip.compress(data, mtime=0)


PACKED = packed(b"12345\n67890\n")


@pytest.mark.parametrize(
    ("body", "coding", "status"),
    [
        (PACKED, "gzip", 200),
        (PACKED + packed(b"") + PACKED, "GZIP", 200),
        (zlib.compress(b"1\n"), "deflate", 200),
        (zlib.compress(b"1\n", wbits=-15), "deflate", 200),
        (b"1", "identity", 200),
        (b"", "gzip", 200),
        *((PACKED[:end], "gzip", 400) for end in range(1, len(PACKED))),
        (PACKED + PACKED[:12], "gzip", 400),
        (PACKED + b"more", "gzip", 400),
        (zlib.compress(b"1\n")[:-1], "deflate", 400),
        (zlib.compress(b"", wbits=-15) * 65, "deflate", 400),
        (b"1", "br", 400),
        (packed(b"[" + b" " * BODY_BYTES_MAX + b"]"), "gzip", 413),
    ],
)
def test_a_packed_body_is_taken_whole_or_not_at_all(body: bytes, coding: str, status: int, tmp_path: Path):
    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        assert (await post(session, door, body, **{"Content-Encoding": coding}))[0] == status

    with_door(store := FolderStore(str(tmp_path / "log")), use)
    if status != 200:
        assert listed(store) == []


def test_deep_nesting_is_refused():
    with pytest.raises(MalformedError, match="recursion"):
        records_in(b"[" * 1_000_000)


def test_a_body_that_is_too_large_is_refused(tmp_path: Path):
    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        async with session.post(door.address, data=b" " * (BODY_BYTES_MAX + 1)) as answer:
            assert answer.status == 413

    with_door(FolderStore(str(tmp_path / "log")), use)


def test_without_a_token_web_pages_are_refused(tmp_path: Path):
    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        assert (await post(session, door, "[1]", Origin="http://elsewhere"))[0] == 403
        assert (await post(session, door, "[1]"))[0] == 200

    with_door(FolderStore(str(tmp_path / "log")), use)


def test_with_a_token_only_those_are_heard_who_know_it(tmp_path: Path):
    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        for given in ({}, {"Authorization": "Bearer another-token-of-some"}, {"Authorization": TOKEN}):
            assert (await post(session, door, "[1]", **given))[0] == 401
            async with session.get(door.address, headers=given) as answer:
                assert answer.status == 401
        assert (await post(session, door, "[1]", Authorization=f"Bearer {TOKEN}", Origin="http://ours"))[0] == 200

    with_door(store := FolderStore(str(tmp_path / "log")), use, token=TOKEN)
    assert records_of(store) == [1]


def test_what_the_store_does_not_keep_is_refused_and_what_comes_later_is_kept(tmp_path: Path):
    store = Gated(str(tmp_path / "log"))

    def is_full(name: str) -> None:
        raise OSError(28, "No space left on device")

    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        store.before = is_full
        status, answer = await post(session, door, "[1]")
        assert (status, "No space left" in answer["error"]) == (503, True)
        store.before = lambda name: None
        assert (await post(session, door, "[2]"))[0] == 200

    with_door(store, use)
    assert records_of(store) == [2]


@pytest.mark.parametrize("is_created", [True, False])
def test_where_the_outcome_is_unknown_the_same_segment_is_created_until_it_is_known(is_created: bool, tmp_path: Path):
    store, errors = Gated(str(tmp_path / "log")), 2

    def fail(name: str) -> None:
        nonlocal errors
        if errors and name != LOG:
            errors -= 1
            raise OutcomeUnknownError(5, "the reply is lost")

    if is_created:
        store.after = fail
    else:
        store.before = fail

    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        assert (await post(session, door, "[1]"))[0] == 200
        assert (await post(session, door, "[2]"))[0] == 200

    with_door(store, use)
    assert records_of(store) == [1, 2]


def test_a_second_writer_ends_the_first(tmp_path: Path):
    store = FolderStore(str(tmp_path / "log"))

    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        assert (await post(session, door, "[1]"))[0] == 200
        other = ReceivedLog(store, BYTES_MAX)
        await other.open()
        writing = asyncio.ensure_future(other.write())
        await other.keep(b"2\n")
        for _ in range(2):
            status, answer = await post(session, door, "[3]")
            assert (status, "another process writes" in answer["error"]) == (503, True)
        with pytest.raises(NotKeptError, match="another process writes"):
            await log.join("flow")
        writing.cancel()

    with_door(store, use)
    assert records_of(store) == [1, 2]


def test_a_full_log_says_who_holds_it_and_frees_itself(tmp_path: Path):
    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        flows = ["shop.orders", "shop.prices"]
        assert [await log.join(flow) for flow in flows] == [1, 1]
        while (await post(session, door, "[1]"))[0] == 200:
            pass
        log.settle("shop.prices", log.state.header.segment)
        async with session.post(door.address, data="[1]") as answer:
            refused = (await answer.json())["error"]
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        assert "shop.orders has read least of it" in refused, "what one flow has read is kept for the other"
        waiting = asyncio.ensure_future(log.keep_in_time(b"2\n"))
        log.settle("shop.orders", log.state.header.segment)
        await waiting
        async with session.get(door.address) as answer:
            shown = await answer.json()
        assert shown["readers"] == dict.fromkeys(flows, shown["first"])
        assert min(listed(store)) == shown["first"] > 1
        for flow in flows:
            log.forget(flow)

    with_door(store := FolderStore(str(tmp_path / "log")), use, bytes_max=6 * SEGMENT_BYTES)


def test_a_restart_goes_on_with_the_log_and_removes_what_no_reader_needs(tmp_path: Path):
    store = FolderStore(str(tmp_path / "log"))

    async def first(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        await log.join("flow")
        await post(session, door, "[1]")
        log.settle("flow", 2)
        await post(session, door, "[2]")

    async def second(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        assert await log.join("flow") == 2, "it is known"
        assert listed(store) == [2, 3]
        await post(session, door, "[3]")

    with_door(store, first)
    store.write({segment_file(1): b"left by a crash"})
    with_door(store, second)
    assert records_of(store) == [1, 2, 3]


def test_a_store_that_lists_nothing_is_not_taken_for_an_empty_one(tmp_path: Path):
    store = FolderStore(str(tmp_path / "log"))

    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        await post(session, door, "[1]")

    with_door(store, use)
    store.remove([segment_file(1)])
    with pytest.raises(OSError, match="lists no segment"):
        asyncio.run(ReceivedLog(store, BYTES_MAX).open())


def test_a_changed_segment_is_not_read(tmp_path: Path):
    store = FolderStore(str(tmp_path / "log"))

    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        await post(session, door, "[1]")
        await post(session, door, "[2]")

    with_door(store, use)
    whole = store.read(segment_file(1))
    for wrong in (whole[:-2] + b"7\n", whole[:40], store.read(segment_file(2))):
        store.write({segment_file(1): wrong})
        with pytest.raises((SnapshotCorruptError, StoreError), match=segment_file(1)):
            read_segment(store, 1)


def test_tasks_read_the_segments_in_turn_from_their_positions(tmp_path: Path):
    store = FolderStore(str(tmp_path / "log"))

    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        for number in range(4):
            await post(session, door, f"[{number}, {number}.5]")

    with_door(store, use)
    orders = Received.http(tmp_path / "log", port=1)
    positions = {split: orders.first_position(split) for split in ("0-of-3", "1-of-3", "2-of-3")}
    assert sorted(positions.values()) == [(1, 0), (2, 0), (3, 0)]
    reader = orders.open_split("1-of-3", positions["1-of-3"])
    assert (reader.read(1), reader.position[:2]) == ([0], (1, 1))
    again = orders.open_split("1-of-3", reader.position)
    assert (again.read(10), again.read(1), again.read(10), again.read(10)) == ([0.5], [3], [3.5], [])
    assert (again.position[:2], again.is_done) == ((7, 0), False)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_log_in_the_place_of_the_one_that_was_read_is_refused(is_open: bool, tmp_path: Path):
    """It has the segment at which the run goes on, and others before it, which would never be read."""

    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        for number in range(3):
            await post(session, door, f"[{number}]")

    store = FolderStore(str(tmp_path / "log"))
    with_door(store, use)
    orders = Received.http(tmp_path / "log", port=1)
    opened = orders.open_split("0-of-1", orders.first_position("0-of-1"))
    assert opened.read(1) == [0]
    shutil.rmtree(tmp_path / "log")
    with_door(store, use)
    with pytest.raises(OtherInputError, match="is not the one that the run has read"):
        (opened if is_open else orders.open_split("0-of-1", opened.position)).read(1)


@pytest.mark.parametrize("segment", [1, 9])
def test_a_position_outside_of_the_log_is_refused(segment: int, tmp_path: Path):
    store = FolderStore(str(tmp_path / "log"))

    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        await log.join("flow")
        await post(session, door, "[1]")
        log.settle("flow", 2)
        await post(session, door, "[2]")

    with_door(store, use)
    asyncio.run(ReceivedLog(store, BYTES_MAX).open())  # removes what the end of the first may have left
    with pytest.raises(OtherInputError, match="has segments 2 to 3"):
        SegmentsReader(store, 1, segment, 0)


def test_an_endpoint_opens_when_what_hinders_it_is_gone(tmp_path: Path):
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def use() -> None:
        taken = await asyncio.start_server(ignore, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        door = DoorSpec("lines", "127.0.0.1", port, None, BODY_BYTES_MAX)
        endpoint = Endpoint(EndpointSpec(str(tmp_path / "log"), BYTES_MAX, door))
        running = asyncio.ensure_future(endpoint.run())
        assert "in use" in (await endpoint.ready())[1]
        taken.close()
        assert await endpoint.join("flow") == 1
        assert await endpoint.ready() == (f"127.0.0.1:{port}", "")
        running.cancel()
        await endpoint.door.close()

    asyncio.run(use())


# -- lines -------------------------------------------------------------------------------------------------------------


def with_lines(
    store: Store,
    use: Callable[[asyncio.StreamReader, asyncio.StreamWriter, ReceivedLog], Awaitable[None]],
    token: str | None = None,
    bytes_max: int = BYTES_MAX,
) -> None:
    """Serve a log at a socket while `use` uses a connection."""

    async def serve() -> None:
        log = ReceivedLog(store, bytes_max)
        await log.open()
        door = LinesDoor(spec(token), log)
        await door.open()
        writing = asyncio.ensure_future(log.write())
        host, port = door.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            await use(reader, writer, log)
        finally:
            writer.close()
            writing.cancel()
            await door.close()

    asyncio.run(serve())


async def answered(reader: asyncio.StreamReader, count: int) -> None:
    """Wait until so many lines are durable."""
    while int(await reader.readline()) < count:
        pass


def test_lines_are_counted_when_they_are_durable(tmp_path: Path):
    async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: ReceivedLog) -> None:
        writer.write(b'{"a": 1}\n[2]\n"half')
        await answered(reader, 2)
        writer.write(b' a line"\n')
        await answered(reader, 3)

    with_lines(store := FolderStore(str(tmp_path / "log")), use)
    assert records_of(store) == [{"a": 1}, [2], "half a line"]


@pytest.mark.parametrize(("line", "reason"), [(b"{\n", b"cannot be read"), (b"1" * 100_000, b"more than 1,000 bytes")])
def test_a_line_that_is_no_record_ends_the_connection(line: bytes, reason: bytes, tmp_path: Path):
    async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: ReceivedLog) -> None:
        writer.write(line)
        assert reason in await reader.readline()
        assert await reader.read() == b""

    with_lines(FolderStore(str(tmp_path / "log")), use)


def test_a_last_line_without_an_end_is_told_that_it_was_not_kept(tmp_path: Path):
    async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: ReceivedLog) -> None:
        writer.write(b"1\n2")
        writer.write_eof()
        assert await reader.readline() == b"1\n"
        assert b"not kept" in await reader.readline()

    with_lines(store := FolderStore(str(tmp_path / "log")), use)
    assert records_of(store) == [1]


@pytest.mark.parametrize(
    ("first", "answer"), [(TOKEN, b"1\n"), ("another", b"error: the first line must be the token")]
)
def test_the_first_line_is_the_token(first: str, answer: bytes, tmp_path: Path):
    async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: ReceivedLog) -> None:
        writer.write(f"{first}\n7\n".encode())
        assert (await reader.readline()).startswith(answer)

    with_lines(FolderStore(str(tmp_path / "log")), use, token=TOKEN)


def test_a_sender_of_lines_waits_while_the_log_is_full(tmp_path: Path):
    async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: ReceivedLog) -> None:
        await log.join("flow")
        sent = 0
        while log.state.header.bytes + SEGMENT_BYTES + 100 < log.bytes_max:
            writer.write(b"7\n")
            sent += 1
            await answered(reader, sent)
        writer.write(b"8\n")
        waiting = asyncio.ensure_future(answered(reader, sent + 1))
        await asyncio.sleep(0)
        assert not waiting.done()
        log.settle("flow", log.state.header.segment + 1)
        await waiting

    with_lines(store := FolderStore(str(tmp_path / "log")), use, bytes_max=6 * SEGMENT_BYTES)
    assert records_of(store)[-1:] == [8]


def test_an_empty_line_counts_as_well(tmp_path: Path):
    async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: ReceivedLog) -> None:
        writer.write(b"1\n\n2\n\n")
        await answered(reader, 4)

    with_lines(store := FolderStore(str(tmp_path / "log")), use)
    assert records_of(store) == [1, 2]


def test_what_is_larger_than_the_log_is_kept_as_it_is_read(tmp_path: Path):
    count = 3 * SEGMENT_BYTES

    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        await log.join("flow")
        keeping = asyncio.ensure_future(log.keep_in_time(b"7\n" * count))
        while not keeping.done():
            read_on()
            # Those that have been read are removed at any time from now on.
            log.settle("flow", max(records, default=0) + 1)
            await asyncio.sleep(0)
        await keeping
        read_on()

    def read_on() -> None:
        records.update({each: read_segment(store, each)[1] for each in listed(store) if each not in records})

    records: dict[int, bytes] = {}
    with_door(store := FolderStore(str(tmp_path / "log")), use, bytes_max=6 * SEGMENT_BYTES)
    assert b"".join(records[segment] for segment in sorted(records)) == b"7\n" * count


def test_a_record_that_is_larger_than_the_log_is_refused(tmp_path: Path):
    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        large = b"1e15," * 190 + b"1e15"
        status, answer = await post(session, door, b"[[" + large + b"]]")
        assert (status, "room for" in answer["error"]) == (413, True), "numbers may be longer in the log"
        with pytest.raises(TooLargeError):
            await log.keep_in_time(encoded([10**SEGMENT_BYTES]))

    with_door(store := FolderStore(str(tmp_path / "log")), use, bytes_max=2 * SEGMENT_BYTES + 1000)
    assert listed(store) == []


@pytest.mark.parametrize("is_lost", [False, True])
def test_who_waits_for_room_is_told_when_others_were_refused(is_lost: bool, tmp_path: Path):
    store, may_create, creating = Gated(str(tmp_path / "log")), threading.Event(), threading.Event()

    def refuse(name: str) -> None:
        creating.set()
        may_create.wait()
        store.before = lambda name: None
        if is_lost:
            store.write({name: b"that of another process"})
        else:
            raise OSError(28, "No space left on device")

    store.before = refuse

    async def use(session: aiohttp.ClientSession, door: HttpDoor, log: ReceivedLog) -> None:
        refused = asyncio.ensure_future(log.keep(b"1" * SEGMENT_BYTES + b"\n"))
        await asyncio.to_thread(creating.wait)
        waiting = asyncio.ensure_future(log.keep_in_time(b"2" * SEGMENT_BYTES + b"\n"))
        while not log.state.is_short:
            await asyncio.sleep(0)
        may_create.set()
        with pytest.raises(NotKeptError):
            await refused
        with pytest.raises(NotKeptError) if is_lost else nullcontext():
            await waiting

    with_door(store, use, bytes_max=4 * SEGMENT_BYTES)


# -- a generator -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_a_number_that_json_does_not_have_is_no_null(number: float):
    with pytest.raises(ValueError, match="JSON does not have"):
        doors.lines_of([{"a": None}, {"b": [(number,)]}])


def test_two_keys_that_become_the_same_text_are_not_one():
    assert doors.lines_of([{1: "x", "2": -0.0, 3.5: 2**64}]) == b'{"1":"x","2":-0.0,"3.5":18446744073709551616}\n'
    with pytest.raises(ValueError, match="same text"):
        doors.lines_of([{"a": {1: "x", "1": "y"}}])


GENERATED: list[list[int]] = []
"""The segments that there were behind each first `yield`."""
ENDED = threading.Event()
FOLDER: list[str] = []


def generate() -> Iterator[Any]:
    call = len(GENERATED)
    yield [call, {"call": call}]
    GENERATED.append(listed(FolderStore(FOLDER[0])))
    if call == 0:
        raise ConnectionError("the sender is gone")
    if call == 1:
        yield "no list"
    ENDED.set()


def test_a_generator_goes_on_when_its_list_is_durable_and_is_made_again_when_it_raises(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(doors, "RETRY_AFTER_S", 0.01)
    FOLDER[:] = [str(tmp_path / "log")]
    store = FolderStore(FOLDER[0])

    async def serve() -> None:
        log = ReceivedLog(store, BYTES_MAX)
        await log.open()
        door = GeneratorDoor(structs.replace(spec(), make=pickle.dumps(generate)), log)
        writing = asyncio.ensure_future(log.write())
        await door.open()
        await asyncio.to_thread(ENDED.wait)
        await door.close()
        writing.cancel()

    asyncio.run(serve())
    assert records_of(store) == [record for call in range(3) for record in (call, {"call": call})]
    assert GENERATED == [[1], [1, 2], [1, 2, 3]]
    told = capfd.readouterr().err
    assert "the sender is gone" in told
    assert "yield a list of records" in told
