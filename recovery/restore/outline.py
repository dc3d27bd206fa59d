"""The outline of a cut: the content of its manifest, from which alone a restore is planned.

It contains no state except the positions of source splits, which are part of the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from backedge.graphs.ids import ChannelId, Epoch, TaskId
from backedge.recovery.cut.cut import Cut, TaskSnapshot
from backedge.recovery.protocol.rounds import RoundsSnapshot, is_in_a_round


class OperatorOutline(Struct, frozen=True):
    """One operator in one task. `has_whole`: the task has state of its own, which can move if `whole_can_move`.

    `has_transactions`: the operator has prepared output that the cut lists.
    """

    whole_can_move: bool = True
    has_whole: bool = False
    has_transactions: bool = False
    splits: Mapping[str, bytes] = {}
    records: int = 0


class RoundsOutline(Struct, frozen=True, forbid_unknown_fields=True):
    """The round of a task in an iteration, and whether it was in the middle of it."""

    current: tuple[Annotated[int, Meta(ge=0, le=(1 << 63) - 1)], ...]
    in_a_round: bool


class TaskOutline(Struct, frozen=True):
    """One task. `logs`: channel -> number of logged batches; empty logs are left out."""

    ended: bool
    operators: Mapping[str, OperatorOutline]
    logs: Mapping[ChannelId, int] = {}
    rounds: RoundsOutline | None = None
    transactions: tuple[str, ...] = ()


class CutOutline(Struct, frozen=True):
    """All tasks of a cut, and its parallelism.

    Restored in a changed graph (`graph_change.py`), operators have their new names. Tasks and channels keep the former
    ones, under which their files are found.

    - operator_names: new name -> former name of each operator that was renamed.
    - given_up: names whose state was given up when the run that took the cut began: the cut has what came after.
    - dropped: operators that are still in the flow, and whose state is given up: they start again in its place.
    - former_versions: new name -> version of the state, of each operator whose state has another version now.
    - edge_names: former name -> new name of each edge; None if the graph is the same.
    """

    epoch: Epoch
    graph_hash: str
    parallelism: Mapping[str, int]
    tasks: Mapping[TaskId, TaskOutline]
    given_up: frozenset[str] = frozenset()
    operator_names: Mapping[str, str] = {}
    dropped: frozenset[str] = frozenset()
    former_versions: Mapping[str, int] = {}
    edge_names: Mapping[str, str] | None = None


def rounds_outline(rounds: RoundsSnapshot | None) -> RoundsOutline | None:
    return None if rounds is None else RoundsOutline(rounds.current, is_in_a_round(rounds))


def outline_of(cut: Cut) -> CutOutline:
    """The outline of a cut that is in memory."""
    tasks = {task: _task_outline(snapshot) for task, snapshot in cut.snapshots.items()}
    return CutOutline(cut.epoch, cut.graph_hash, cut.parallelism, tasks)


def _task_outline(snapshot: TaskSnapshot) -> TaskOutline:
    return TaskOutline(
        ended=snapshot.ended,
        operators={
            name: OperatorOutline(
                whole_can_move=state.whole_can_move,
                has_whole=state.whole is not None,
                has_transactions=bool(state.transactions),
                splits=state.splits,
                records=state.records,
            )
            for name, state in snapshot.operators.items()
        },
        logs={received.channel: len(received.log) for received in snapshot.inputs if received.log},
        rounds=rounds_outline(snapshot.rounds),
        transactions=tuple(t.name for state in snapshot.operators.values() for t in state.transactions),
    )
