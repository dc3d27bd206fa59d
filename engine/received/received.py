"""`Received`: what arrives over HTTP or a socket, or is generated, in a durable log that flows read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from msgspec import structs

from backedge.engine.on_ray import cluster
from backedge.engine.received.doors import DoorSpec
from backedge.engine.received.log_state import Header
from backedge.engine.received.received_actor import EndpointSpec, ReceivedActor
from backedge.engine.received.segments import decoded, last_header, read_segment, segment_file
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.io import OtherInputError, Source, SplitReader
from backedge.graphs.options import check_function, is_whole
from backedge.graphs.public import public
from backedge.recovery.stores.store_calls import exists
from backedge.recovery.stores.store_protocol import Store
from backedge.recovery.stores.store_schemes import store_at, store_opener

SPACE = "backedge-received"
BYTES_MAX = 1 << 30
BYTES_MIN = 1 << 16
BODY_BYTES_MAX = 8 << 20
BODIES_MIN = 4
"""How many of the largest bodies the log has room for. Numbers may be longer in the log than in a body."""

LOCAL = "127.0.0.1"
LOCAL_HOSTS = (LOCAL, "localhost", "::1")
TOKEN_LETTERS_MIN = 16
CALLS_MAX = 64
PORT_MAX = (1 << 16) - 1
IDLE_S = 0.05
TRIES, AGAIN_S = 50, 0.2
"""A process that has died is there again after a second, or a few where the host is busy."""
FOR_EVER = -1


@public
class ReceivedError(Exception):
    """An endpoint that cannot be opened, or that is in use otherwise. The message says what is wrong.

    Fix: give the endpoint a port that is free, or the same options wherever it is named; `close()` ends one.
    """


@public
@dataclass(frozen=True)
class Received(Source[Any]):
    """What others send and cannot send again: a durable log in front of flows.

    `Received.http(log, port)` answers a POST when its records are durable in the log: a folder, or what a URI names.
    `Received.lines(log, port)` reads lines from a socket, and answers with the number of those that are durable.
    `Received.generator(log, make)` goes on behind a `yield` when the list of records is durable.
    `bytes_max` limits what the log takes up. Senders must wait while it is full: nothing that was acknowledged is
    dropped. Cuts of the flows that read the log free it.

    The first run that reads the log starts the endpoint, a process of its own, on the host of the program. It stays
    when the run is over, and when processes die, until `close()`.

    >>> orders = Received.http("orders", port=8070)
    >>> orders.label, orders.bounded
    ('orders', False)
    """

    log: str
    door: DoorSpec
    bytes_max: int = BYTES_MAX
    begin: int = 1
    """The first segment that the flow reads."""

    settles = True

    @staticmethod
    def http(
        log: str | os.PathLike[str],
        port: int,
        *,
        host: str = LOCAL,
        token: str | None = None,
        bytes_max: int = BYTES_MAX,
    ) -> Received:
        """Records that are POSTed to http://host:port/, as a JSON list or as lines of JSON.

        Another host than this one wants a `token`, which senders give as `Authorization: Bearer TOKEN`.
        """
        return _received("http", log, host, port, token, bytes_max)

    @staticmethod
    def lines(
        log: str | os.PathLike[str],
        port: int,
        *,
        host: str = LOCAL,
        token: str | None = None,
        bytes_max: int = BYTES_MAX,
    ) -> Received:
        """Records that are sent to a socket, one line of JSON each. With a `token`, the first line must be it."""
        return _received("lines", log, host, port, token, bytes_max)

    @staticmethod
    def generator(
        log: str | os.PathLike[str], make: Callable[[], Iterable[list[Any]]], *, bytes_max: int = BYTES_MAX
    ) -> Received:
        """Records in the lists that `make()` yields, in a process of their own. It goes on when a list is durable.

        So what stands behind a `yield` may tell a sender that the records are kept. `make` is called again when the
        process has died, or when it has raised.
        """
        check_function(make, "Received.generator", may_yield=True)
        found = _received("generator", log, LOCAL, PORT_MAX, None, bytes_max)
        return replace(found, door=structs.replace(found.door, make=cluster.pickled(make)))

    def __repr__(self) -> str:
        place = "" if self.door.make else f", port={self.door.port}"
        return f"Received.{self.door.kind}({self.log!r}{place})"

    @property
    def bounded(self) -> bool:
        return False

    @property
    def label(self) -> str:
        return self.log.rstrip("/").rsplit("/", 1)[-1]

    @property
    def relative_path(self) -> str | None:
        return None if "://" in self.log or os.path.isabs(self.log) else self.log

    def absolute(self) -> Received:
        return self if self.relative_path is None else replace(self, log=os.path.abspath(self.log))

    @property
    def idle_s(self) -> float:
        return IDLE_S

    def begin_run(self, reader: str) -> Received:
        """Start the endpoint unless it runs, and join its log."""
        if "://" not in self.log and cluster.hosts() > 1:
            raise BadOptionError(
                f"Received has its log in {self.log!r}, a folder of one host, but the cluster has {cluster.hosts()}: "
                "give one that all have mounted, and confirm this by writing it as file:///FOLDER"
            )
        self.start()
        return replace(self, begin=self._ask("join", reader))

    def settle(self, reader: str, kept: Sequence[Mapping[str, Any]]) -> None:
        """The cuts that are kept need nothing before these positions."""
        if not all(kept):
            return  # a cut without positions may need everything
        with suppress(cluster.RayError):
            if (actor := cluster.find_actor(self._name, SPACE)) is not None:
                needed = [segment for positions in kept for segment, *_ in positions.values()]
                actor.settle.remote(reader, min(needed))

    def first_position(self, split: str) -> tuple[int, int]:
        index, splits = map(int, split.split("-of-"))
        return self.begin + (index - self.begin) % splits, 0

    def open_split(self, split: str, position: Any) -> SplitReader[Any]:
        return SegmentsReader(store_at(self.log), int(split.split("-of-")[1]), *position)

    def start(self) -> str:
        """Start the endpoint unless it runs, and return its address. The first run that reads it does so, too."""
        cluster.connect()
        is_new = cluster.find_actor(self._name, SPACE) is None
        # The same function need not have the same bytes in another process.
        if _without_code(self._ask("spec")) != _without_code(self._spec()):
            raise self._error("runs with other options: give the same wherever it is named, or end it with close()")
        address, fault = self._ask("ready")
        if fault:
            # One that others use opens when what hinders it has gone.
            if is_new:
                self.close()
            raise self._error(f"cannot be opened ({fault}): give another port, or another folder")
        return address

    def close(self) -> None:
        """End the endpoint. The log stays, and a later run goes on with it."""
        cluster.connect()
        if (actor := cluster.find_actor(self._name, SPACE)) is not None:
            cluster.kill(actor)

    def forget(self, reader: str) -> None:
        """Let a reader go that will read no more. `reader`: the name of its flow, a dot, and that of the source."""
        self.start()
        self._ask("forget", reader)

    @property
    def _name(self) -> str:
        return blake2b(self.absolute().log.encode(), digest_size=12).hexdigest()

    def _spec(self) -> EndpointSpec:
        return EndpointSpec(self.absolute().log, self.bytes_max, self.door)

    def _actor(self) -> cluster.Actor:
        """The endpoint, which is started if it is not there."""
        if (found := cluster.find_actor(self._name, SPACE)) is not None:
            return found
        try:
            return cluster.start_actor(
                ReceivedActor,
                self._spec(),
                name=self._name,
                space=SPACE,
                needs=cluster.Needs(),
                strategy=cluster.near_here(),
                threads=CALLS_MAX,
                restarts=FOR_EVER,
                is_detached=True,
            )
        except ValueError as error:  # another process has just started it, or the last one is not quite gone
            raise _GoneError(cluster.first_line(error)) from error

    def _ask(self, method: str, *arguments: Any) -> Any:
        """What a method of the endpoint returns. If its process has just died, it will be there again."""
        gone = _GoneError, cluster.ActorDiedError, cluster.ActorUnavailableError
        for tries_left in reversed(range(TRIES)):
            try:
                return cluster.get(getattr(self._actor(), method).remote(*arguments))
            except gone as error:
                if not tries_left:
                    raise self._error(f"does not answer ({cluster.first_line(error)}): try again") from error
            except cluster.RayTaskError as error:
                raise self._error(f"reports this: {error.cause}") from error
            time.sleep(AGAIN_S)

    def _error(self, what: str) -> ReceivedError:
        return ReceivedError(f"the endpoint of the log in {self.log} {what}")


def _without_code(spec: EndpointSpec) -> EndpointSpec:
    return structs.replace(spec, door=structs.replace(spec.door, make=b""))


class _GoneError(Exception):
    """The endpoint is not there yet, or any more."""


class SegmentsReader:
    """Reads every so-many-th segment of a log, from a position: the segment, how many of its records were read, and the
    name of the log once that is known.
    """

    is_done = False

    def __init__(self, store: Store, step: int, segment: int, record: int, log: str = "") -> None:
        self._segment = segment
        self._record = record
        self._log = log
        self._store = store
        self._step = step
        self._records: list[Any] | None = None
        self._check()

    @property
    def position(self) -> tuple[int, int, str]:
        return self._segment, self._record, self._log

    def read(self, records_max: int) -> list[Any]:
        """The next records of the open segment, or of the next one if that is there."""
        if self._records is None:
            try:
                header, lines = read_segment(self._store, self._segment)
            except FileNotFoundError:
                return []
            self._check_log(header)
            # It can be seen before it is durable, and a cut must not contain more than what is.
            self._store.make_durable([segment_file(self._segment)])
            self._records = decoded(lines)
        records = self._records[self._record : self._record + records_max]
        self._record += len(records)
        if self._record == len(self._records):
            self._segment, self._record = self._segment + self._step, 0
            self._records = None
        return records

    def _check(self) -> None:
        """Raise if the log no longer has the segment, or has never had it."""
        segment = self._segment
        if exists(self._store, segment_file(segment)):
            return
        last = last_header(self._store)
        first, end = (1, 0) if last is None else (last.first, last.segment)
        if not first <= segment <= end + self._step:
            raise OtherInputError(
                f"the log in {self._store.location} has segments {first} to {end}, and the run goes on with {segment}: "
                "it is another log, or another run of this name has read further; start a new run without resume"
            )
        if last is not None:
            self._check_log(last)

    def _check_log(self, header: Header) -> None:
        if self._log not in ("", header.log):
            raise OtherInputError(
                f"the log in {self._store.location} is not the one that the run has read, which somebody has removed "
                "or replaced: put that back, or start a new run without resume, which reads what is there"
            )
        self._log = header.log


def _received(
    kind: str, log: str | os.PathLike[str], host: str, port: int, token: str | None, bytes_max: int
) -> Received:
    what = f"Received.{kind}"
    place = os.fspath(log)
    store_opener(place)
    if not is_whole(port) or not 0 < port <= PORT_MAX:
        raise BadOptionError(f"{what} has port={port!r}: give a number from 1 to {PORT_MAX}")
    if not is_whole(bytes_max) or bytes_max < BYTES_MIN:
        raise BadOptionError(f"{what} has bytes_max={bytes_max!r}: give at least {BYTES_MIN:,} bytes")
    if token is not None and (not token.isascii() or not token.isprintable() or len(token) < TOKEN_LETTERS_MIN):
        raise BadOptionError(
            f"{what} has a token that is no secret: give {TOKEN_LETTERS_MIN} letters and digits or more"
        )
    if token is None and host not in LOCAL_HOSTS:
        raise BadOptionError(f"{what} has host={host!r}, where others reach it: give it a token=, too")
    body_bytes_max = min(BODY_BYTES_MAX, bytes_max // BODIES_MIN)
    return Received(place, DoorSpec(kind, host, port, token, body_bytes_max), bytes_max)
