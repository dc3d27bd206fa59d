"""From which input a task takes next, and which inputs wait a little. Pure.

- A turn serves every ready input once. Where time runs out, the next turn goes on behind that input.
- While a loop has more to do than its memory may hold, regular inputs are taken in every `REGULAR_TURNS`th turn only;
  never not at all, or a barrier would starve.
- While loops within the actor have enough to do for a turn, inputs from other actors are taken in every
  `OUTSIDE_TURNS`th turn only: what has just been sent is in the processor's cache still, and goes round first. What
  waits in another actor's channel waits as bytes, a tenth of what the records take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphs.deployment import Channel
from graphs.ids import ChannelId

REGULAR_TURNS = 16
OUTSIDE_TURNS = 4


class InputTurns:
    """The order of the inputs of one task.

    - turns: how many turns there were. last_taken: the input at which time ran out in the last turn, or None.

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
        """The channels to take from, from the one behind that at which time ran out."""
        if self.last_taken is None or self.last_taken not in ready:
            return ready
        place = ready.index(self.last_taken) + 1
        return [*ready[place:], *ready[:place]]

    def waits_for_loops_within(self, channel: Channel) -> bool:
        """Whether the input waits if loops within the actor have enough to do. In rounds all wait for each other."""
        return bool(self.turns % OUTSIDE_TURNS) and not (channel.is_back or channel.within_actor or self._in_rounds)

    def waits_for_own_loops(self, channel: Channel, waiting_bytes: Iterable[int], loop_bytes_max: int) -> bool:
        """Whether the input waits for the task's own back edges, in which so much waits."""
        return not channel.is_back and bool(self.turns % REGULAR_TURNS) and sum(waiting_bytes) > loop_bytes_max
