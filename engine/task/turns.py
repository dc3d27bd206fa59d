"""Decides from which input a task takes next, and which inputs wait a little. Pure.

- A turn serves every ready input once. If time runs out, the next turn starts after that input.
- While the batches of a loop exceed its memory budget, regular inputs are taken in every `REGULAR_TURNS`th turn only,
  but not never, because a barrier would starve.
- While loops within the actor have enough to do for a turn, inputs from other actors are taken in every
  `OUTSIDE_TURNS`th turn only: batches that were just sent are still in the processor's cache, so they go first. Batches
  that wait in another actor's channel wait as bytes, a tenth of the size of their records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backedge.graphs.deployment import Channel
from backedge.graphs.ids import ChannelId

REGULAR_TURNS = 16
OUTSIDE_TURNS = 4


class InputTurns:
    """The order of the inputs of one task.

    - turns: the number of turns so far. last_taken: the input at which time ran out in the last turn, or None.

    >>> turns = InputTurns(in_rounds=False)
    >>> turns.last_taken = "b"
    >>> turns.in_turn(["a", "b", "c"])
    ['c', 'a', 'b']
    """

    def __init__(self, *, in_rounds: bool) -> None:
        self.turns = 0
        self.last_taken: ChannelId | None = None
        self._in_rounds = in_rounds

    def in_turn(self, ready: Sequence[ChannelId]) -> Sequence[ChannelId]:
        """The channels to take from, starting after the one at which time ran out."""
        if self.last_taken is None or self.last_taken not in ready:
            return ready
        place = ready.index(self.last_taken) + 1
        return [*ready[place:], *ready[:place]]

    def waits_for_loops_within(self, channel: Channel) -> bool:
        """Whether the input waits while loops within the actor have enough to do. In rounds it never does."""
        return bool(self.turns % OUTSIDE_TURNS) and not (channel.is_back or channel.within_actor or self._in_rounds)

    def waits_for_own_loops(self, channel: Channel, waiting_bytes: Iterable[int], loop_bytes_max: int) -> bool:
        """Whether the input waits because the task's own back edges exceed their memory budget."""
        return not channel.is_back and bool(self.turns % REGULAR_TURNS) and sum(waiting_bytes) > loop_bytes_max
