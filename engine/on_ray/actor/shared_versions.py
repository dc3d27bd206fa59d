"""The versions that the tasks of one process publish and read (rule 17).

A process that publishes copies the value into memory which the processes of its host map (`host_memory.py`). They find
it there without asking anyone, once the supervisor has told them who publishes. A process of another host asks the
publisher, which puts the bytes into the object store of Ray when the first one asks; Ray brings them to each host once.
The version of a restored cut is read from the store of the cuts, by the first process that asks for it.

Memory is lost with the process that has filled it. So whatever fails here ends the attempt: no function is to blame,
and the next attempt restores its versions from a cut.
"""

from __future__ import annotations

from collections.abc import Collection
from threading import Lock
from typing import Any, NamedTuple

from backedge.engine.batches.constant_bytes import constant_in
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.actor.host_memory import Board, BoardReader, HostMemory
from backedge.engine.on_ray.job_store import TasksInFolder
from backedge.engine.on_ray.transport.shared_ring import can_share_memory
from backedge.engine.operators.version_memory import OwnMemory, held_on, put_on_shelf
from backedge.graphs.ids import Attempt
from backedge.graphs.task_errors import describe
from backedge.graphs.versions import AttemptOverError, Versions
from backedge.recovery.cut.cut import Version
from backedge.recovery.protocol.versions import Found, Name, PublishedTwiceError, Shelf, are_kept
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.task_files import VersionFile


class Publisher(NamedTuple):
    """The process that publishes versions of a name: its board, for its host, and its actor, for others."""

    board: str
    actor: cluster.Actor


class OnShelf(NamedTuple):
    """What this process publishes under a name. Without a board, others ask it. `put`: what they have asked for."""

    shelf: Shelf[Any]
    board: Board | None
    put: dict[int, list[cluster.Pending]]


class SharedVersions:
    """Those of one attempt. `supervisor` has the directory. Calls of `map_async` read from threads of their own.

    - _published: what the tasks of this process publish, by name. _boards: those of other processes of this host.
    - _values: what this process has read, decoded: the last versions of each name, as many as are kept.
    """

    def __init__(self, attempt: Attempt, supervisor: cluster.Actor, store: TasksInFolder | None) -> None:
        self.attempt = attempt
        self._supervisor = supervisor
        self._store = store
        self._lock, self._offering = Lock(), Lock()
        self._published: dict[str, OnShelf] = {}
        self._boards: dict[str, BoardReader] = {}
        self._values: dict[str, dict[int, Any]] = {}

    def read(self, versions: Versions, number: int) -> Any:
        known = self._values.get(versions.name, {})
        if number in known:
            return known[number]
        with self._lock:
            known = self._values.get(versions.name, {})
            if number not in known:
                known = {**known, number: constant_in(self._data_of(versions, number))}
                value = known[number]
                self._values[versions.name] = {kept: known[kept] for kept in are_kept(known, versions.keep)}
                return value
            return known[number]

    def publish(self, versions: Versions, number: int, value: Any, kept: Collection[int]) -> Version:
        shelf, board, put = self._published.get(versions.name) or self._begin(versions, number)
        memory, version = put_on_shelf(shelf, OwnMemory if board is None else HostMemory, versions, number, value, kept)
        if board is not None:
            board.put(number, memory, shelf.kept)
        with self._offering:
            for gone in put.keys() - shelf.kept:
                del put[gone]
        return version

    def _begin(self, versions: Versions, number: int) -> OnShelf:
        """Let the directory know that this process publishes, before any number can be in a record."""
        board = Board(versions.keep) if can_share_memory() else None
        publisher = Publisher("" if board is None else board.offer, cluster.own_actor())
        if not self._ask("publishes", (versions.name, number), publisher):
            raise AttemptOverError(f"attempt {self.attempt} is over")
        self._published[versions.name] = OnShelf(Shelf(versions.keep), board, {})
        return self._published[versions.name]

    def offer(self, of: str, number: int) -> tuple[tuple[int, ...], list[cluster.Pending] | None]:
        """For a process that cannot map the memory: the numbers that are kept, and a reference to this version.

        Called from a thread of Ray.
        """
        if of not in self._published:
            return (), None  # the directory knows this process already
        shelf, _, put = self._published[of]
        with self._offering:
            if number not in put and (data := held_on(shelf, number)) is not None:
                put[number] = [cluster.put(data)]
            return shelf.kept, put.get(number)

    def _data_of(self, versions: Versions, number: int) -> memoryview:
        ours, board = self._published.get(versions.name), self._boards.get(versions.name)
        data = None
        if ours is not None:
            data = held_on(ours.shelf, number)
        elif board is not None:
            data = board.hold(number)
        return self._asked_for(versions, number) if data is None else data

    def _asked_for(self, versions: Versions, number: int) -> memoryview:
        """The bytes of a version of the cut, of another host, or of a process that this one does not know yet."""
        name = versions.name, number
        found: Found[Any, Publisher] | None = self._ask("find", name)
        if found is None:
            raise AttemptOverError(f"attempt {self.attempt} is over")
        kept = found.kept
        if found.publisher is not None:
            since, data = self._published_by(found.publisher, name)
            kept = since or kept
            if data is not None:
                return data
        if number not in kept:
            raise versions.not_kept(number, kept)
        if isinstance(found.where, VersionFile):
            found = self._ask("loaded", name, found.where, [cluster.put(self._stored(found.where))])
        if found is None or found.where is None:
            raise AttemptOverError(f"version {number} of {versions.name!r} is lost with its process")
        return self._got(found.where)

    def _published_by(self, publisher: Publisher, name: Name) -> tuple[Collection[int], memoryview | None]:
        """The numbers that a task keeps, and the bytes of a version that it has published."""
        of, number = name
        if of in self._published:
            shelf = self._published[of].shelf
            return shelf.kept, held_on(shelf, number)
        board = self._boards.get(of) or BoardReader.opened(publisher.board)
        if board is not None:
            self._boards[of] = board
            return board.kept, board.hold(number)
        offered = self._answer_of(publisher.actor.offer.remote(self.attempt, of, number), "the publisher")
        if offered is None:
            raise AttemptOverError(f"attempt {self.attempt} is over")
        kept, reference = offered
        return kept, None if reference is None else self._got(reference)

    def _stored(self, version: VersionFile) -> bytes:
        if self._store is None:
            raise RuntimeError(f"version {version.number} of {version.of!r} is in a cut, but the run keeps none")
        try:
            return self._store.read_version(version)
        except (OSError, StoreError) as error:
            raise AttemptOverError(describe(error)) from error

    def _ask(self, what: str, name: Name, *arguments: Any) -> Any:
        """Ask the directory, which the supervisor has."""
        return self._answer_of(self._supervisor.versions.remote(what, self.attempt, name, *arguments), "the supervisor")

    def _answer_of(self, pending: cluster.Pending, whose: str) -> Any:
        try:
            return cluster.get(pending)
        except PublishedTwiceError:
            raise
        except cluster.RayError as error:
            raise AttemptOverError(f"{whose} does not answer: {cluster.first_line(error)}") from error

    def _got(self, reference: list[cluster.Pending]) -> memoryview:
        return memoryview(self._answer_of(reference[0], "the process that has a version"))
