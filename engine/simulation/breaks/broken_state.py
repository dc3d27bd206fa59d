"""What is captured of the state while it changes (rule 8), deltas, and compactions of them (rule 14)."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from backedge.engine.simulation.breaks.break_parts import Break
from backedge.engine.state.compaction import put_together
from backedge.engine.state.keyed_state import LAST_STATE, KeyedState, StateCapture
from backedge.engine.state.touched_keys import TouchedKeys
from backedge.engine.task.driver import TaskDriver
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Epoch, TaskId
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.coordinator import Coordinator, OpenCut
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import FileId, StateFile
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.protocol.state_files import StateFiles
from backedge.recovery.restore.outline import CutOutline
from backedge.recovery.restore.plan import RestorePlan, plan_restore
from backedge.recovery.restore.restore_task import take_back


class SharedWhileEncoding(KeyedState):
    def must_copy(self, value: Any) -> bool:
        return False


class SharedWithTheReceiver(KeyedState):
    def sent(self, record: Any) -> Any:
        return record


def delta_applied_twice(*given: Any) -> TaskRestore:
    """The first delta is applied again behind the last one, and brings old values back."""
    restored = take_back(*given)
    twice = {name: replace(s, deltas=(*s.deltas, *s.deltas[:1])) for name, s in restored.operators.items()}
    return replace(restored, operators=twice)


class BaseRemovedTooEarly(Coordinator):
    """Keeps no cut for being the base of an open epoch."""

    def _kept_with(self, cut: OpenCut) -> dict[Epoch, bool]:
        bases = {later.base for later in self.open.values() if later is not cut} - {cut.epoch}
        return {epoch: is_savepoint for epoch, is_savepoint in super()._kept_with(cut).items() if epoch not in bases}


class BaseGivenUpMeanwhile(Coordinator):
    """Names a base that a manifest on its way gives up."""

    def _base(self, mode: Mode) -> Epoch | None:
        latest = self.latest
        if mode.is_probe or mode is Mode.BETWEEN_ROUNDS or latest is None:
            return None
        return latest if self.state_files.may_be_base(latest) else None


class CompactionReplacesTooMuch(Coordinator):
    """Puts a compacted file in place of the files that came after those it was made from, too."""

    class state_files_class(StateFiles):
        def _replaced(self, task: TaskId, files: tuple[StateFile, ...]) -> tuple[StateFile, ...]:
            replaced = super()._replaced(task, files)
            return files if replaced == files else replaced[:1]


class CompactionSwept(Coordinator):
    """Lets a sweep remove a compacted file that no manifest names yet."""

    class state_files_class(StateFiles):
        @property
        def outputs(self) -> frozenset[FileId]:
            return frozenset()


class CompactionSuperseded(Coordinator):
    """Puts a delta in place of the file before it, even if that is a compaction of more than the delta's base wrote."""

    class state_files_class(StateFiles):
        def _compacted_files(self, task: TaskId) -> tuple[StateFile, ...] | None:
            return None


class SupersedesUnseen(KeyedState):
    """Takes every delta for one that holds all keys of its base's own."""

    def supersedes(self, epoch: Epoch, base: Epoch) -> bool:
        return True


class BaseNotComplete(KeyedState):
    """Writes what changed since the last capture, whether that is part of a complete cut or not."""

    class touched_class(TouchedKeys):
        def _sets_from(self, base: Epoch) -> list[dict[Any, Any]]:
            return super()._sets_from(base)[-1:]


class TouchedDroppedOnAbort(TaskDriver):
    """Drops, with an aborted epoch, the keys that were touched since its capture."""

    def _discard(self, epoch: Epoch) -> None:
        super()._discard(epoch)
        for operator in self.runtime._wiring.operators.values():  # pyright: ignore[reportPrivateUsage]
            if isinstance(operator.keyed_state, KeyedState):
                operator.keyed_state._touched._since.pop(epoch, None)  # pyright: ignore[reportPrivateUsage]


class OldSetsDropped(KeyedState):
    """Drops the keys of old captures where there are many, instead of putting them together."""

    class touched_class(TouchedKeys):
        open_max = 2

        def _limit_sets(self, keys_max: int) -> None:
            since = list(self._since)
            if len(since) > self.open_max + 1:
                del self._since[since[1]]
            super()._limit_sets(keys_max)


class ReadsNotNoted(KeyedState):
    """Takes no read for a change, though the value that was read may be changed in place."""

    def touch(self, key: Any, default: Any = None) -> Any:
        touched, self._touched = self._touched, TouchedKeys()
        try:
            return super().touch(key, default)
        finally:
            self._touched = touched


class ChangedArraysNotNoted(KeyedState):
    """Takes arrays for unchanged if those that replace them have as many items."""

    def replace(self, key: Any, value: Any) -> None:
        former, touched = self.values.get(key), self._touched
        if former is not None and len(pickle.dumps(former)) == len(pickle.dumps(value)):
            self._touched = TouchedKeys()
        super().replace(key, value)
        self._touched = touched


class OlderNotAsked(KeyedState):
    """Does not find the values that a delta took as they were and that are not among the others yet."""

    merged_at_once_max = 1

    def for_batch(self) -> tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any] | None]:
        values, _, recent = super().for_batch()
        return values, {}, recent

    def touch_if_needed(self, key: Any, default: Any = None) -> Any:
        return self._touch(self._values, key, default)


class DeletionsNotNoted(KeyedState):
    """A delta does not say which keys are gone."""

    def capture(self, epoch: Epoch = LAST_STATE, base: Epoch | None = None) -> StateCapture:
        capture = super().capture(epoch, base)
        capture.gone = ()
        return capture


def deletions_lost_in_a_compaction(
    states: Mapping[str, OperatorState], *, is_delta: bool = False
) -> tuple[dict[str, OperatorState], int]:
    """A compaction of deltas does not say which keys are gone, and the file below them has these keys."""
    return put_together(states)


def base_kept_under_another_parallelism(cut: CutOutline, deployment: Deployment) -> dict[TaskId, RestorePlan]:
    """Continues the files of a cut after a restore under another parallelism."""
    former = cut.tasks.keys()
    plans = plan_restore(cut, deployment)
    return {task: replace(plan, base=cut.epoch if task in former else None) for task, plan in plans.items()}


STATE = {
    "mutated-while-encoding": Break("user code changes values that are being encoded", keyed_state=SharedWhileEncoding),
    "output-shares-state": Break("a receiver changes objects in the sender's state", keyed_state=SharedWithTheReceiver),
    "delta-applied-twice": Break("an old delta is applied again behind a new one", take_back=delta_applied_twice),
    "base-removed-too-early": Break("retention drops the base of an open epoch", coordinator=BaseRemovedTooEarly),
    "base-given-up-meanwhile": Break(
        "an epoch has a base that a manifest on its way gives up", coordinator=BaseGivenUpMeanwhile, topology="rounds"
    ),
    "compaction-replaces-too-much": Break(
        "a compacted file replaces deltas that it does not contain",
        coordinator=CompactionReplacesTooMuch,
        topology="overlapping",
    ),
    "compaction-swept": Break(
        "a sweep removes a compacted file that a later manifest names", coordinator=CompactionSwept
    ),
    "compaction-superseded": Break(
        "a delta takes the place of a compacted file that holds more", coordinator=CompactionSuperseded
    ),
    "supersedes-unseen": Break(
        "a delta takes the place of one whose keys it does not hold", keyed_state=SupersedesUnseen
    ),
    "base-not-complete": Break(
        "a delta is relative to a capture that is in no complete cut", keyed_state=BaseNotComplete
    ),
    "touched-keys-dropped-on-abort": Break(
        "an abort drops touched keys", driver=TouchedDroppedOnAbort, topology="nested"
    ),
    "old-sets-dropped": Break(
        "touched keys are dropped when many captures have been aborted", keyed_state=OldSetsDropped
    ),
    "reads-not-noted": Break("what is read and changed in place is in no delta", keyed_state=ReadsNotNoted),
    "changed-arrays-not-noted": Break(
        "arrays of a graph that change but keep their length are in no delta",
        keyed_state=ChangedArraysNotNoted,
        topology="columns_vertices",
    ),
    "older-values-not-asked": Break(
        "values that a delta took as they were are not found for a while", keyed_state=OlderNotAsked
    ),
    "deletions-not-noted": Break("a deleted key comes back", keyed_state=DeletionsNotNoted, topology="chain"),
    "deletions-lost-in-a-compaction": Break(
        "a deleted key comes back from below a compaction of deltas",
        put_together=deletions_lost_in_a_compaction,
        topology="chain",
    ),
    "base-kept-under-another-parallelism": Break(
        "a delta is relative to the files of other tasks",
        plan_restore=base_kept_under_another_parallelism,
        topology="two_back_edges",
    ),
}
