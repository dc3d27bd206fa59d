"""What sources keep until no cut needs it: each is told its positions in the latest cuts, as many as retention keeps.

A savepoint may be kept for ever, and so does not count once there are enough later cuts: a log would be full one day.
"""

from __future__ import annotations

import pickle
from typing import Any

from backedge.engine.on_ray.job_store import JobStore
from backedge.graphs.ids import Epoch
from backedge.graphs.io import Source
from backedge.graphs.kinds import Read
from backedge.graphs.plan import Operator, Plan
from backedge.recovery.protocol.orders import Sweep


def reader_name(job: str, operator: str) -> str:
    """The name under which a source of a flow reads what is kept for it.

    >>> reader_name("shop", "orders")
    'shop.orders'
    """
    return f"{job}.{operator}"


def settling_sources(plan: Plan) -> dict[str, Source[Any]]:
    """The sources of a flow that keep records until no cut needs them, by name."""
    return {name: operator.function for name, operator in plan.operators.items() if _settles(operator)}


class SettledInput:
    """The sources of a run, or of one pipeline. `positions`: those in each of the last `keep` cuts, by source."""

    def __init__(self, plan: Plan, job: str, store: JobStore, keep: int) -> None:
        self._sources = settling_sources(plan)
        self._job = job
        self._store = store
        self._keep = keep
        self._positions: dict[Epoch, dict[str, dict[str, Any]]] = {}

    def settle(self, sweep: Sweep) -> None:
        """Tell the sources what these cuts need. The oldest may not need most: a run may have gone back."""
        kept = set(sorted(cut.epoch for cut in sweep.cuts)[-self._keep :])
        if not self._sources or kept == self._positions.keys():
            return
        self._positions = {epoch: self._positions.get(epoch) or self._read(epoch) for epoch in kept}
        for name, source in self._sources.items():
            source.settle(reader_name(self._job, name), [of_cut[name] for of_cut in self._positions.values()])

    def _read(self, epoch: Epoch) -> dict[str, dict[str, Any]]:
        """The positions of these sources in a cut. None of one that it does not have, or has under a former name."""
        found: dict[str, dict[str, Any]] = {name: {} for name in self._sources}
        for task in self._store.manifest(epoch).outline.tasks.values():
            for name in found.keys() & task.operators.keys():
                splits = task.operators[name].splits.items()
                found[name] |= {split: pickle.loads(position) for split, position in splits}
        return found


def _settles(operator: Operator) -> bool:
    source = operator.function if isinstance(operator.kind, Read) else None
    return isinstance(source, Source) and source.settles
