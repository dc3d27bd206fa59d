"""The constants of a run in the object store of Ray: one copy on each host, which processes read where it is.

The supervisor reads them from the store of the cuts, verifies them, and puts them there. A successor does so again:
what a process has put is gone with it. Of a run without cuts, the process that started it has put them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from threading import Lock
from typing import Any

from backedge.engine.batches.constant_bytes import constant_in
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.graphs.constant import share
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.task_files import StoredFile


class SharedConstants:
    """The constants of a run. `held` are those of a run without cuts. Pipelines ask for them from their threads."""

    def __init__(self, options: TaskOptions, held: Mapping[str, cluster.Pending]) -> None:
        self._options = options
        self._held = dict(held)
        self._lock = Lock()

    def references(self) -> Mapping[str, cluster.Pending]:
        """A reference to the bytes of each. Raises a `StoreError` if they are not what the cuts name."""
        with self._lock:
            missing = {name: file for name, file in self._options.constants.items() if name not in self._held}
            if missing:
                self._held |= self._put(missing)
            share_constants(self._options.job, self._held)
            return self._held

    def _put(self, files: Mapping[str, StoredFile]) -> dict[str, cluster.Pending]:
        store = CutStore(self._options.root or "", self._options.job, self._options.key)
        put: dict[StoredFile, cluster.Pending] = {}
        for name, file in files.items():
            if file not in put:
                put[file] = cluster.put(store.constants.read(name, file))
        return {name: put[file] for name, file in files.items()}


def share_constants(flow: str, references: Mapping[str, cluster.Pending]) -> None:
    """Have the constants of a flow, in this process, be what the references lead to. Each is read at its first use."""
    for name, reference in references.items():
        share(flow, name, partial(_value, reference))


def _value(reference: Any) -> Any:
    return constant_in(memoryview(cluster.get(reference)))
