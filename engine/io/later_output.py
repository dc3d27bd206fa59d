"""The output that a run withdraws when it goes back to a cut: a `ReplaceOutput`, asked by the names of transactions."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from backedge.graphs.ids import Attempt, Epoch, prepared_by, turn_in
from backedge.recovery.restore.outline import CutOutline


class _TakenCut(Protocol):
    @property
    def outline(self) -> CutOutline: ...

    @property
    def attempt(self) -> Attempt: ...


class LaterOutput(Struct, frozen=True):
    """The output that earlier attempts than `attempt` have prepared or published after a cut.

    A transaction belongs to the cut if its epoch is not later. That of a task that has ended has epoch 0. It belongs to
    the cut if its attempt was over when `taken_by`, the attempt of the cut, began: the tasks may have been others then.
    In `taken_by` itself, the task must have ended in the cut: `ended` has the sink and the index of each.
    What `others` have written, the attempts of other pipelines, is not part of it. `listed` are the transactions of all
    sinks that the cut lists.
    """

    attempt: Attempt
    epoch: Epoch
    taken_by: Attempt
    ended: frozenset[tuple[str, int]]
    others: frozenset[Attempt] = frozenset()
    listed: frozenset[str] = frozenset()

    @staticmethod
    def than(cut: _TakenCut, attempt: Attempt, others: frozenset[Attempt] = frozenset()) -> LaterOutput:
        """The output after this cut."""
        tasks = cut.outline.tasks.items()
        listed = frozenset(name for _, of in tasks for name in of.transactions)
        ended = frozenset((name, task.index) for task, of in tasks if of.ended for name in of.operators)
        return LaterOutput(attempt, cut.outline.epoch, cut.attempt, ended, others, listed)

    def removes(self, transaction: str) -> bool:
        """Whether a transaction is part of it.

        >>> later = LaterOutput(Attempt(3), Epoch(5), Attempt(2), frozenset({("out", 0)}))
        >>> later.removes("out.0.attempt-2.epoch-5"), later.removes("out.0.attempt-2.epoch-6")
        (False, True)
        >>> later.removes("out.0.attempt-2.epoch-0"), later.removes("out.1.attempt-2.epoch-0")
        (False, True)
        >>> later.removes("out.1.attempt-1.epoch-0"), later.removes("out.0.attempt-3.epoch-6")
        (False, False)
        """
        turn = turn_in(transaction)
        if turn is None or not self.removes_open(turn.attempt):
            return False
        if turn.epoch > 0:
            return turn.epoch > self.epoch
        if turn.attempt != self.taken_by:
            return turn.attempt > self.taken_by
        return prepared_by(transaction) not in self.ended

    def removes_open(self, attempt: int) -> bool:
        return attempt < self.attempt and attempt not in self.others
