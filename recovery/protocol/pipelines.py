"""Pipelines: the connected components of a job, which fail and recover independently.

They exchange nothing, so any combination of their cuts is consistent. Each has a `Supervisor` and a `Coordinator` of
its own, and its own attempts, epochs and cuts. They have these in common:

- The chain. Its entries name their pipeline, and each supervisor reads those of its own. It is one chain for all, so
  of two runs of the job that race, one loses all pipelines, and not each of them some.
- The claimant. An entry of another pipeline of the run has the same one. It takes a number that this pipeline wanted,
  which then takes the next; it never fences.
- The numbers of attempts. A claim takes the next number of the whole chain, so an attempt belongs to one pipeline, and
  a removal spares the attempts of the others (`Sweep`).
- What is given up. A flow may lose a pipeline, whose state the user drops. Each cut of the run names it (`given_up`),
  and each later cut, until a pipeline of that name begins again: from the beginning, because its former cuts are dead.
- The numbers of epochs. They are dealt in turns, so an epoch is one cut of one pipeline.
"""

from __future__ import annotations

from typing import NamedTuple

from backedge.graphs.ids import Epoch


class Pipeline(NamedTuple):
    """One pipeline of a job that has `count` of them. `name` is None if the whole job is one.

    `gives_up`: the former pipelines of the job that this run has dropped.

    >>> Pipeline("prices", 1, 2).first_epoch(Epoch(8)), Pipeline("prices", 1, 2).epoch_after(Epoch(9))
    (9, 11)
    """

    name: str | None = None
    place: int = 0
    count: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]  # hides tuple.count, which no pipeline needs
    gives_up: frozenset[str] = frozenset()

    def first_epoch(self, epoch: Epoch) -> Epoch:
        """The first number of an epoch of this pipeline that is not below `epoch`."""
        return Epoch(epoch + (self.place - epoch) % self.count)

    def epoch_after(self, epoch: Epoch) -> Epoch:
        """The next number of an epoch of this pipeline."""
        return Epoch(epoch + self.count)


THE_JOB = Pipeline()
"""The pipeline of a job that is not divided."""
