"""The part of a cut that one task restores (rule 8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from backedge.graphs.ids import RESTORED_SENDER, ChannelId, Epoch
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.channels import Encode, Inbox
from backedge.recovery.protocol.messages import Data, End, restored_marker_in
from backedge.recovery.protocol.rounds import RoundsSnapshot


class RestoredLog(Struct, frozen=True):
    """The loop log of a channel, restored as a separate channel in front of it.

    At another parallelism there is one per receiving task, in front of every live channel of the edge; its sender is
    `RESTORED_SENDER`. The first `skip` records of the first batch were processed before the cut.
    """

    channel: ChannelId
    payloads: tuple[bytes, ...]
    skip: int = 0

    def stands_before(self, live: ChannelId) -> bool:
        """Whether batches of this live channel wait until the log is drained."""
        if self.channel.sender == RESTORED_SENDER:
            return live.edge == self.channel.edge
        return live == self.channel._replace(restored=False)


class TaskRestore(Struct, frozen=True):
    """The restored part of one task. `transactions` are listed by the cut and committed before the task runs.

    `base` is the cut whose state of this very task it is: what the task writes next may be relative to it. Under
    another parallelism there is none, because the files of the cut then belong to other tasks.
    """

    operators: Mapping[str, OperatorState] = {}
    logs: tuple[RestoredLog, ...] = ()
    rounds: RoundsSnapshot | None = None
    ended: bool = False
    transactions: tuple[str, ...] = ()
    base: Epoch | None = None


def restored_inboxes(logs: Iterable[RestoredLog], live: Sequence[Inbox], encode: Encode) -> list[Inbox]:
    """An inbox for each log, already ended, in front of the channels it came from.

    A rerouted log precedes all channels of its edge, including restored ones.
    """
    made: list[Inbox] = []
    for log in sorted(logs, key=lambda log: log.channel.sender != RESTORED_SENDER):
        behind = [inbox for inbox in live if log.stands_before(inbox.id)]
        first = behind[0]
        inbox = Inbox(log.channel, is_back=first.is_back, depth=first.depth, within_actor=False, encode=encode)
        for seq, payload in enumerate(log.payloads, start=1):
            inbox.receive(Data(seq, payload, restored_marker_in(payload)))
        inbox.queue.append(End(inbox.received, inbox.received_digest))
        inbox.end_received = True
        inbox.skip = log.skip
        inbox.in_front = first.in_front
        for other in behind:
            other.in_front = inbox
        made.append(inbox)
    return made
