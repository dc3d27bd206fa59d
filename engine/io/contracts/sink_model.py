"""What a sink has to have published, said by the cuts of a run alone. Pure: real sinks are held to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from backedge.engine.io.later_output import LaterOutput
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.orders import CutId, Sweep

SINK = "checked"
CUTS_KEPT = 2


class ModelCut(Struct, frozen=True):
    """A complete cut: the transactions that each task lists, all that are published with it or were before, and the
    tasks that have ended.
    """

    epoch: Epoch
    attempt: Attempt
    tasks: tuple[tuple[str, ...], ...] = ()
    whole: frozenset[str] = frozenset()
    ended: frozenset[tuple[str, int]] = frozenset()

    @property
    def listed(self) -> list[str]:
        return [name for names in self.tasks for name in names]


class SinkModel:
    """The chain of a run, and the records of its transactions.

    - attempt: the one that has the job.
    - cuts: those that are kept, of which the last is restored.
    - is_replacing: whether an attempt has gone back to the last cut, and none was complete since.
    - contents: the records of each transaction that was prepared.
    - committed: the transactions that a sink has said to have published.
    """

    def __init__(self) -> None:
        self.attempt = Attempt(0)
        self.cuts: list[ModelCut] = []
        self.is_replacing = False
        self.contents: dict[str, list[Any]] = {}
        self.committed: set[str] = set()
        self._epoch = 0
        # The transactions of cuts that are being withdrawn.
        self._going: frozenset[str] = frozenset()

    @property
    def last(self) -> ModelCut:
        return self.cuts[-1] if self.cuts else ModelCut(Epoch(0), Attempt(0))

    def claim(self) -> Attempt:
        """The next attempt begins: no cut of an earlier one is complete any more."""
        self.attempt = Attempt(self.attempt + 1)
        return self.attempt

    def next_epoch(self) -> Epoch:
        self._epoch += 1
        return Epoch(self._epoch)

    def complete(
        self, epoch: Epoch, attempt: Attempt, tasks: Iterable[Iterable[str]], *, is_last: bool = False
    ) -> bool:
        """Complete a cut, if its attempt has the job. With the last cut of an attempt all of its tasks have ended."""
        if attempt != self.attempt:
            return False
        listed = tuple(map(tuple, tasks))
        ended = frozenset((SINK, index) for index in range(len(listed)) if is_last)
        self.cuts = [*self.cuts, ModelCut(epoch, attempt, listed, self.last.whole.union(*listed), ended)][-CUTS_KEPT:]
        self.is_replacing = False
        return True

    def go_back(self) -> None:
        """Go back to the cut before the last one, and replace its output."""
        self._going |= self.cuts.pop().whole
        self.is_replacing = True

    def withdrawn(self) -> None:
        """What is later than the last cut is gone."""
        self._going = frozenset()

    def later(self) -> LaterOutput:
        """What is withdrawn after the last cut."""
        cut = self.last
        return LaterOutput(self.attempt, cut.epoch, cut.attempt, cut.ended, listed=frozenset(cut.listed))

    def sweep(self, others: Iterable[str], *, is_over: bool = False) -> Sweep:
        """What is dead for good. `others` are transactions of other sinks that cuts list."""
        kept = () if is_over else self.cuts
        spared = frozenset(() if is_over else others)
        return Sweep(
            self.attempt,
            is_over,
            cuts=frozenset(CutId(cut.epoch, cut.attempt) for cut in kept),
            last=self.last.epoch if self.cuts else None,
            prepared=spared.union(self.last.listed),
            noted=spared.union(*(cut.listed for cut in kept)),
            settled=kept[0].epoch if kept else None,
            committed=frozenset(self.last.listed if is_over else ()),
        )

    def published(self, *, at_least: bool) -> list[Any]:
        """The records that may be published, or those that have to be: of complete cuts, each once."""
        names = self.last.whole & self.committed if at_least else self.last.whole | self._going
        return [record for name in sorted(names) for record in self.contents[name]]
