"""The versions that the tasks of one process publish and read (rule 17), in the object store of Ray.

A process that publishes puts the bytes there and tells the supervisor, before anything can name the number. A process
that reads asks the supervisor once for each version; Ray brings the bytes to its host, where all processes map the same
memory. The version of a restored cut is read from the store of the cuts, by the first process that asks for it.

An object is lost with the process that has put it there. So whatever fails here ends the attempt: no function is to
blame, and the next attempt restores its versions from a cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

from msgspec.structs import replace

from backedge.engine.batches.constant_bytes import constant_of, pieces_in
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.job_store import TasksInFolder
from backedge.engine.operators.published import made_version
from backedge.graphs.ids import Attempt
from backedge.graphs.task_errors import describe
from backedge.graphs.versions import AttemptOverError, Versions
from backedge.recovery.cut.cut import Version
from backedge.recovery.protocol.versions import Found, Name, PublishedTwiceError, are_kept
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.task_files import VersionFile


class SharedVersions:
    """Those of one attempt. `supervisor` has the directory. Calls of `map_async` read from threads of their own.

    - _values: what this process has read, decoded: the last versions of each name, as many as are kept.
    """

    def __init__(self, attempt: Attempt, supervisor: cluster.Actor, store: TasksInFolder | None) -> None:
        self._attempt = attempt
        self._supervisor = supervisor
        self._store = store
        self._lock = Lock()
        self._values: dict[str, dict[int, Any]] = {}

    def read(self, versions: Versions, number: int) -> Any:
        known = self._values.get(versions.name, {})
        if number in known:
            return known[number]
        with self._lock:
            known = self._values.get(versions.name, {})
            if number not in known:
                known = {**known, number: self._value_of(versions, number)}
                value = known[number]
                self._values[versions.name] = {kept: known[kept] for kept in are_kept(known, versions.keep)}
                return value
            return known[number]

    def publish(self, versions: Versions, number: int, value: Any, kept: Sequence[Version]) -> Version:
        version, pieces = made_version(self._attempt, versions, number, value, kept)
        reference = cluster.put_pieces(pieces)
        if not self._ask("publish", (versions.name, number), versions.keep, [reference]):
            raise AttemptOverError
        # The bytes that wait for a cut are those that everyone maps.
        return version if version.data is not pieces else replace(version, data=self._get(reference))

    def _value_of(self, versions: Versions, number: int) -> Any:
        name = (versions.name, number)
        found: Found[Any] | None = self._ask("find", name)
        if found is not None and isinstance(found.where, VersionFile):
            pieces = pieces_in(memoryview(self._stored(found.where)))
            found = self._ask("loaded", name, found.where, [cluster.put_pieces(pieces)])
        if found is None:
            raise AttemptOverError(f"attempt {self._attempt} is over")
        if found.where is None:
            raise versions.not_kept(number, found.kept)
        return constant_of(self._get(found.where[0]))

    def _stored(self, version: VersionFile) -> bytes:
        if self._store is None:
            raise RuntimeError(f"version {version.number} of {version.of!r} is in a cut, but the run keeps none")
        try:
            return self._store.read_version(version)
        except (OSError, StoreError) as error:
            raise AttemptOverError(describe(error)) from error

    def _ask(self, what: str, name: Name, *arguments: Any) -> Any:
        """Ask the directory, which the supervisor has."""
        try:
            return cluster.get(self._supervisor.versions.remote(what, self._attempt, name, *arguments))
        except PublishedTwiceError:
            raise
        except cluster.RayError as error:
            raise AttemptOverError(f"the supervisor does not answer: {cluster.first_line(error)}") from error

    def _get(self, reference: Any) -> Any:
        try:
            return cluster.get(reference)
        except cluster.RayError as error:
            raise AttemptOverError(f"a version is lost: {cluster.first_line(error)}") from error
