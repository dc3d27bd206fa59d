"""Keys of Redis: streams to read and to write, lists and hashes to write.

A script of the server writes the records of a cut and their markers: all of it or nothing, and no other client in
between. The markers of a sink are the fields of one hash, `backedge:RUN:SINK`, whose field `attempt` has the latest
attempt that has opened the sink: the script refuses those of earlier ones.

A source reads a stream from the id in the cut. Redis does not say what was trimmed, so the position also counts the
entries up to there, as `entries-added` of the stream does: if more of them are gone than were read, some were not read.
Of deleted entries Redis names only the last. Where the end is reached, the count shows whether there were others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from backedge.engine.batches.columns import Records, as_records
from backedge.engine.io.files.file_errors import UnwritableRecordError
from backedge.engine.io.files.parts import check_names
from backedge.engine.io.marked_output import Check, MarkedSink, one_line, superseded
from backedge.engine.io.packages import package
from backedge.engine.io.streams.redis_errors import EntriesGoneError, RedisKeyError, RedisLostError
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.io import Rollback, SinkPlace, Source, SplitReader
from backedge.graphs.public import public
from backedge.graphs.task_errors import describe, show

_PATIENCE_S, _PAUSE_S = 30, 0.1
"""How long a task waits for a server that is away, and between two attempts to reach it."""

_ARGUMENTS_MAX = 1_000
"""How many a command of the script has: Lua takes 8,000."""

_ENTER = """
local known = tonumber(redis.call('HGET', KEYS[1], 'attempt') or '0')
if known < tonumber(ARGV[1]) then redis.call('HSET', KEYS[1], 'attempt', ARGV[1]) end
"""
_COMMIT = """
local type = redis.call('TYPE', KEYS[1]).ok
if type ~= 'none' and type ~= ARGV[1] then return {'type', type} end
local attempt = redis.call('HGET', KEYS[2], 'attempt')
if attempt ~= ARGV[3] then return {'attempt', attempt or ''} end
local at = 4
while at <= #ARGV do
    local name, calls = ARGV[at], tonumber(ARGV[at + 1])
    local is_new = redis.call('HEXISTS', KEYS[2], name) == 0
    at = at + 2
    for _ = 1, calls do
        local count = tonumber(ARGV[at])
        if is_new then redis.call(ARGV[2], KEYS[1], unpack(ARGV, at + 1, at + count)) end
        at = at + 1 + count
    end
    if is_new then redis.call('HSET', KEYS[2], name, '') end
end
return {'done', ''}
"""
_FORGET = """
for at = 2, #ARGV do redis.call('HDEL', KEYS[1], ARGV[at]) end
if redis.call('HLEN', KEYS[1]) == 1 and redis.call('HGET', KEYS[1], 'attempt') == ARGV[1] then
    redis.call('DEL', KEYS[1])
end
"""


def _driver() -> Any:
    return package("redis", "redis")


@dataclass(frozen=True)
class _Key:
    """A key of a Redis server. No message contains the URL, which may have a password."""

    url: str = field(repr=False)
    key: str

    key_type: ClassVar[str]
    """What Redis calls it."""

    def __post_init__(self) -> None:
        for option, value in (("url", self.url), ("key", self.key)):
            given: Any = value
            if not isinstance(given, str) or not given:
                raise BadOptionError(f"{type(self).__name__} lacks {option}: give text")
        parse = _driver().connection.parse_url
        try:
            # redis-py takes database 0 for one that is no number.
            if parse(self.url).get("path") is None and not re.fullmatch(r"/?\d*", urlsplit(self.url).path):
                raise ValueError
        except ValueError:
            raise BadOptionError(
                f"the url of {type(self).__name__}({self.key!r}) is none: write redis://HOST:PORT/DATABASE, or "
                "rediss://... for TLS, or unix:///PATH"
            ) from None

    @property
    def label(self) -> str | None:
        return self.key

    @property
    def title(self) -> str:
        known = _driver().connection.parse_url(self.url)
        server = known.get("path") or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}"
        return f"{self.key_type} {self.key!r} of {server}"

    def absolute(self) -> Any:
        return self

    def client(self, *, is_patient: bool = True) -> Any:
        """A client, which connects when it is used and again when the connection is lost."""
        retry = _driver().retry.Retry(_driver().backoff.ConstantBackoff(_PAUSE_S), round(_PATIENCE_S / _PAUSE_S))
        options = {"retry": retry} if is_patient else {"retry": _driver().retry.Retry(_driver().backoff.NoBackoff(), 0)}
        return _driver().Redis.from_url(self.url, socket_timeout=_PATIENCE_S, **options)

    def check_type(self, client: Any, *, must_exist: bool) -> None:
        """Raise unless the key is of this type."""
        found = client.type(self.key).decode()
        if found == "none" and not must_exist:
            return
        if found != self.key_type:
            there = "there is no" if found == "none" else f"a {found} is in place of"
            raise RedisKeyError(f"{there} {self.title}: give another key, or create it")


@contextmanager
def _told(title: str) -> Generator[None]:
    """What the client raises becomes an error that names the key."""
    errors = _driver().exceptions
    try:
        yield
    except (errors.ConnectionError, errors.TimeoutError) as error:
        if isinstance(error, errors.AuthenticationError):
            raise RedisKeyError(f"{title} cannot be reached ({one_line(error)}): correct user and password") from None
        raise RedisLostError(
            f"{title} cannot be reached ({one_line(error)}): start the server, or correct url"
        ) from None
    except (errors.ReadOnlyError, errors.ClusterDownError, errors.TryAgainError, errors.OutOfMemoryError) as error:
        raise RedisLostError(
            f"{title} is not served at the moment ({one_line(error)}): repair the server, or correct url"
        ) from None
    except errors.NoPermissionError as error:
        raise RedisKeyError(f"{title} is refused ({one_line(error)}): grant the right to the user") from None


# -- writing -----------------------------------------------------------------------------------------------------------


class _KeySink(_Key, MarkedSink):
    """Writes each record once. Subclasses say which command writes it, and with which arguments."""

    command: ClassVar[str]
    wanted: ClassVar[str]
    """The records that can be written, for messages."""

    def arguments(self, record: Any) -> Sequence[Any]:
        """The arguments that write a record; raises if there are none."""
        raise NotImplementedError

    def calls(self, records: list[Sequence[Any]]) -> Iterable[Sequence[Any]]:
        """The arguments of each command: as many records as it takes."""
        size = max(1, _ARGUMENTS_MAX // len(records[0])) if records else 1
        for first in range(0, len(records), size):
            yield [argument for record in records[first : first + size] for argument in record]

    def store(self) -> _KeyStore:
        return _KeyStore(self)


class _KeyStore:
    """One key, and the markers of one sink."""

    def __init__(self, sink: _KeySink) -> None:
        self._sink = sink
        self._client = sink.client()

    @property
    def title(self) -> str:
        return self._sink.title

    def check(self) -> None:
        with _told(self.title):
            self._sink.check_type(self._sink.client(is_patient=False), must_exist=False)

    def enter(self, place: SinkPlace) -> Check:
        with _told(self.title):
            self._client.eval(_ENTER, 1, _markers(place), place.attempt)
        # As they are sent: what cannot be is found before the cut.
        encode = self._client.get_encoder().encode
        return lambda records: [self._arguments(place, record, encode) for record in as_records(records)]

    def commit(self, place: SinkPlace, written: Mapping[str, Records]) -> None:
        sink, arguments = self._sink, list[Any]()
        for name, records in written.items():
            calls = list(sink.calls(cast("list[Sequence[Any]]", records)))
            arguments += (name, len(calls))
            for call in calls:
                arguments += (len(call), *call)
        with _told(self.title):
            keys = (sink.key, _markers(place))
            what, found = self._client.eval(_COMMIT, 2, *keys, sink.key_type, sink.command, place.attempt, *arguments)
        if what == b"type":
            raise RedisKeyError(f"a {found.decode()} is in place of {self.title}: rename it, and resume the run")
        if what == b"attempt":
            raise superseded(place, ", ".join(written), found.decode())

    def how_to_skip(self, place: SinkPlace, transactions: Sequence[str]) -> str:
        fields = " ".join(f"{json.dumps(name)} ''" for name in transactions)
        return f"execute HSET {json.dumps(_markers(place))} {fields}"

    def forget(self, place: SinkPlace, rollback: Rollback) -> None:
        markers = _markers(place)
        with _told(self.title):
            known = {name.decode(): value.decode() for name, value in self._client.hgetall(markers).items()}
            attempt = known.pop("attempt", None)
            dead = [name for name in known if rollback.forgets(name)]
            goes = attempt is not None and rollback.is_over and rollback.removes_open(int(attempt))
            for first in range(0, len(dead) or 1, _ARGUMENTS_MAX):
                self._client.eval(_FORGET, 1, markers, attempt if goes else "", *dead[first : first + _ARGUMENTS_MAX])

    def close(self) -> None:
        self._client.close()

    def _arguments(self, place: SinkPlace, record: Any, encode: Callable[[Any], bytes]) -> Sequence[bytes]:
        try:
            return [encode(argument) for argument in self._sink.arguments(record)]
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise UnwritableRecordError(
                f"sink {place.operator!r} cannot write a record to {self.title} ({describe(error)}): map it to "
                f"{self._sink.wanted}\n  record: {show(record)}"
            ) from error


def _markers(place: SinkPlace) -> str:
    return f"backedge:{place.run}:{place.operator}"


@public
@dataclass(frozen=True)
class RedisList(_KeySink):
    """Appends each record to a list of Redis, once: text and bytes as they are, others as JSON.

    >>> RedisList("redis://localhost:6379", "done").label
    'done'
    """

    key_type = "list"
    command = "RPUSH"
    wanted = "bytes, text, or what JSON can represent"

    def arguments(self, record: Any) -> Sequence[Any]:
        return (_value(record),)


@public
@dataclass(frozen=True)
class RedisHash(_KeySink):
    """Writes each record, a dict, into a hash of Redis, as JSON, in place of the one that has the same `field`.

    >>> RedisHash("redis://localhost:6379", "accounts", field="id").label
    'accounts'
    """

    key_type = "hash"
    command = "HSET"
    wanted = "a dict that JSON can represent, with text or an integer in that field"

    field: str

    def arguments(self, record: Any) -> Sequence[Any]:
        name = record[self.field]
        if type(name) not in (str, int):
            raise TypeError(f"{self.field!r} is of type {type(name).__name__}")
        return name, _value(record)


@public
@dataclass(frozen=True)
class RedisStream(_KeySink, Source[dict[str, Any]]):
    """A stream of Redis, to read or to write, each entry once.

    Read, a record is a dict with the id of an entry and its fields, a dict of text. `start` is "earliest" or "latest":
    what is there, or what is added from now on. With `until="now"` the source ends with the entries that are there when
    the run starts. Written, a record is a dict: its fields, of text, bytes and numbers.

    >>> RedisStream("redis://localhost:6379", "orders").label
    'orders'
    """

    key_type = "stream"
    command = "XADD"
    wanted = "a dict whose keys are text, and whose values are text, bytes or numbers"

    start: Literal["earliest", "latest"] = "earliest"
    until: Literal["now"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, value, known in (
            ("start", self.start, ("earliest", "latest")),
            ("until", self.until, (None, "now")),
        ):
            if value not in known:
                raise BadOptionError(f"RedisStream({self.key!r}) has {option}={value!r}: give one of {known}")

    def arguments(self, record: Any) -> Sequence[Any]:
        fields = [part for pair in record.items() for part in pair]
        wrong = [value for value in fields[1::2] if type(value) not in (str, bytes, int, float)]
        if wrong or not all(isinstance(name, str) for name in fields[::2]):
            raise TypeError(f"it has {show(wrong[0]) if wrong else 'keys that are no text'}")
        if not 0 < len(fields) < _ARGUMENTS_MAX:
            raise ValueError(f"it has {len(fields) // 2} fields, and an entry has 1 to {_ARGUMENTS_MAX // 2 - 1}")
        return "*", *fields

    def calls(self, records: list[Sequence[Any]]) -> Iterable[Sequence[Any]]:
        return records

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def bounded(self) -> bool:
        return self.until is not None

    @property
    def idle_s(self) -> float:
        return 0.1

    def validate_input(self) -> None:
        """Raise unless the stream is there."""
        with _told(self.title):
            self.check_type(self.client(is_patient=False), must_exist=True)

    def splits(self) -> Sequence[str]:
        """One, named after where it begins and ends."""
        with _told(self.title):
            known = self.client().xinfo_stream(self.key)
        if "entries-added" not in known:
            raise RedisKeyError(f"{self.title} does not count its entries: reading streams needs Redis 7 or newer")
        last, added, there = known["last-generated-id"].decode(), known["entries-added"], known["length"]
        begin = ("0-0", added - there) if self.start == "earliest" else (last, added)
        end = "+" if self.until is None else last
        deleted = known["max-deleted-entry-id"].decode()
        names = {"after": begin[0], "count": begin[1], "end": end, "deleted": deleted, "added": added}
        return [urlencode(names)]

    def first_position(self, split: str) -> tuple[str, int]:
        """An id, and how many entries the stream has had up to it."""
        names = dict(parse_qsl(split))
        return names["after"], int(names["count"])

    def is_read(self, split: str, position: Any) -> bool:
        end = dict(parse_qsl(split))["end"]
        return end != "+" and _ordered(position[0]) >= _ordered(end)

    def open_split(self, split: str, position: Any) -> SplitReader[dict[str, Any]]:
        return _StreamReader(self, split, position)


class _StreamReader:
    """Reads entries behind `position`, and verifies with each read that none before them are gone."""

    def __init__(self, stream: RedisStream, split: str, position: tuple[str, int]) -> None:
        names = dict(parse_qsl(split))
        self.position = position
        self.is_done = stream.is_read(split, position)
        self._stream = stream
        self._split = split
        self._end = names["end"]
        self._deleted_before = names["deleted"]
        # Splits of the first cuts do not say it.
        self._added_before = int(names.get("added", 0))
        self._client = stream.client()

    def read(self, records_max: int) -> list[dict[str, Any]]:
        stream, (after, count) = self._stream, self.position
        with _told(stream.title), self._client.pipeline() as both:
            both.xinfo_stream(stream.key)
            both.xrange(stream.key, f"({after}", self._end, records_max)
            try:
                known, entries = both.execute()
            except _driver().exceptions.ResponseError as error:
                if "no such key" not in str(error):
                    raise
                raise EntriesGoneError(
                    f"{stream.title} cannot be read behind {after} ({one_line(error)}): start a new run"
                ) from None
        self._check(known)
        count += len(entries)
        missed = (known["entries-added"] if self._end == "+" else self._added_before) - count
        if len(entries) < records_max and missed > 0:
            raise self._gone(f"{missed:,} entries behind {after}")
        if entries:
            self.position = entries[-1][0].decode(), count
        elif self._end != "+":
            # What was the last entry when the run began has been deleted before that.
            self.position = self._end, count
        self.is_done = stream.is_read(self._split, self.position)
        return [{"id": id.decode(), "fields": self._text(id, fields)} for id, fields in entries]

    def _check(self, known: Mapping[str, Any]) -> None:
        """Raise if entries that are not read yet are gone."""
        after, count = self.position
        added, last = known["entries-added"], known["last-generated-id"].decode()
        deleted = known["max-deleted-entry-id"].decode()
        title, gone = self._stream.title, added - known["length"] - count
        if added < count or _ordered(last) < _ordered(after):
            raise EntriesGoneError(f"{title} is another one than when the run began: start a new run")
        is_later = _ordered(deleted) > _ordered(after) and (
            self._end == "+" or _ordered(deleted) <= _ordered(self._end)
        )
        if gone > 0 or (deleted != self._deleted_before and is_later):
            raise self._gone(
                f"{gone:,} entries behind {after}" if gone > 0 else f"entries behind {after}, such as {deleted},"
            )

    def _gone(self, what: str) -> EntriesGoneError:
        return EntriesGoneError(
            f"{what} of {self._stream.title} were trimmed or deleted before they were read: start a new run, which "
            "reads what is left, and trim a stream only up to what the cuts have read (XTRIM ... MINID)"
        )

    def _text(self, id: bytes, fields: Mapping[bytes, bytes]) -> dict[str, str]:
        try:
            return {name.decode(): value.decode() for name, value in fields.items()}
        except UnicodeDecodeError as error:
            raise RedisKeyError(
                f"entry {id.decode()} of {self._stream.title} has a field that is not UTF-8 ({error}): delete the "
                "entry, and start a new run"
            ) from None


def _ordered(id: str) -> tuple[int, int]:
    """An id as it is ordered.

    >>> _ordered("1526919030474-55")
    (1526919030474, 55)
    """
    time, _, sequence = id.partition("-")
    return int(time), int(sequence)


def _value(record: Any) -> bytes | str:
    if isinstance(record, bytes | str):
        return record
    text = _encode(record)
    check_names([record])
    return text


_encode: Callable[[Any], str] = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
