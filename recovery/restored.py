"""What one task takes back from a cut (rule 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphs.ids import RESTORED_SENDER, ChannelId
from recovery.cut import OperatorState
from recovery.rounds import RoundsSnapshot


@dataclass(frozen=True, slots=True)
class RestoredLog:
    """The loop log of a channel, as a channel of its own in front of it.

    Under another parallelism there is one a target, in front of every live channel of the edge: its sender is
    `RESTORED_SENDER`.
    """

    channel: ChannelId
    payloads: tuple[bytes, ...]

    def stands_before(self, live: ChannelId) -> bool:
        """Whether batches of that live channel wait until this log is drained."""
        if self.channel.sender == RESTORED_SENDER:
            return live.edge == self.channel.edge
        return live == self.channel._replace(restored=False)


@dataclass(frozen=True, slots=True)
class TaskRestore:
    """`transactions` are listed by the cut: they are committed (again) before the task runs."""

    operators: Mapping[str, OperatorState] = field(default_factory=dict[str, OperatorState])
    logs: tuple[RestoredLog, ...] = ()
    rounds: RoundsSnapshot | None = None
    ended: bool = False
    transactions: tuple[str, ...] = ()
