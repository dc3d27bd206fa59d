"""Effects: what the core asks its driver to do.

Order: effects are carried out in the order of the list. An effect that runs user code (`Run...`) is the last of its
list: the driver sends what the user code emitted, numbered by `TaskCore.sent`, then calls the method named by the
effect, whose effects follow. `Acknowledge` and `AcknowledgeEnd` come only after the driver has reported that the files
are written: durable, or certain to be durable before the manifest is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from msgspec import Struct

from backedge.graphs.ids import ChannelId, Epoch, TaskId
from backedge.graphs.wording import counted
from backedge.recovery.cut.cut import InputRecord, OutputRecord
from backedge.recovery.protocol.messages import Item, Path


class Send(NamedTuple):
    """Put this into the channel."""

    channel: ChannelId
    item: Item


class RunRoundEnd(NamedTuple):
    """Run the hooks of a completed round; then `on_round_hooks_ran(contribution)`.

    `iteration` is the iteration of that round if this task feeds its back edge: then a contribution is required.
    """

    path: Path
    iteration: str | None


class RunDecide(NamedTuple):
    """Ask the iteration whether there is another round; then `on_decided(another)`."""

    path: Path
    contributions: Mapping[TaskId, Any]


class RunReleaseRound(NamedTuple):
    """Emit what the head gathered into the body; then `on_round_released()`."""


class RunReleaseResult(NamedTuple):
    """Emit what the head gathered as the result; then `on_result_released(contribution)`.

    `iteration` is the enclosing one if the result goes straight back to its head: then a contribution is required.
    """

    iteration: str | None


class RunEnd(NamedTuple):
    """Run the end hooks; then `on_end_hooks_ran()`."""


class Capture(NamedTuple):
    """Capture the operators' state now; then `on_captured(epoch, ...)`. `epoch` is None for the last state.

    Of keyed state capture what changed since `base`, if that is named and found; else everything. A probe captures
    nothing, so it has no such effect.
    """

    epoch: Epoch | None
    base: Epoch | None = None


class TaskRecord(Struct, frozen=True):
    """The core's part of a snapshot, next to the operators' state."""

    inputs: tuple[InputRecord, ...]
    outputs: tuple[OutputRecord, ...]
    ended: bool
    rounds: Any
    overtook: bool = False


class Write(NamedTuple):
    """Write the snapshot, once its state is encoded; then `on_written` or `on_write_failed`.

    `epoch` is None for the last state.
    """

    epoch: Epoch | None
    record: TaskRecord


class Report(Struct, frozen=True):
    """The content of an acknowledgement: enough to complete a cut, and to detect termination with a probe.

    - in_flight: channel -> batches in it at the cut; empty channels are left out.
    - ended: the input channels that have ended.
    - busy: the task has timers, unanswered calls, or batches that were set aside.
    - transactions: prepared by sinks and not committed, including those of aborted epochs.
    - base: the cut since which keyed state was written, which may be older than the one that the trigger named; None:
      all of it was.
    - keys, size: how many entries of keyed state that was, and how many bytes its files have.
    """

    in_flight: Mapping[ChannelId, int]
    ended: frozenset[ChannelId]
    busy: bool
    transactions: tuple[str, ...]
    base: Epoch | None = None
    keys: int = 0
    size: int = 0


class Stage(IntEnum):
    """A task's progress with an epoch, the last stage first, so that progress compares as less."""

    CAPTURED = 0
    ALIGNING = 1


class Remaining(NamedTuple):
    """What a task still has to do for an open epoch. It only shrinks, so a stalled epoch can be detected.

    - channels: inputs whose barrier has not been received.
    - amount: while aligning, the batches ahead of the received barriers; afterwards, minus the number of encoded
      pieces.
    """

    stage: Stage
    channels: int
    amount: int

    def __str__(self) -> str:
        missing = f"{counted(self.channels, 'barrier')} missing" if self.channels else ""
        if self.stage is Stage.CAPTURED:
            return f"captured, {missing}" if missing else "captured, not written"
        ahead = f"{counted(self.amount, 'batch', 'es')} ahead of its barriers" if self.amount else ""
        return ", ".join(filter(None, (missing, ahead))) or "not captured"


class Acknowledge(NamedTuple):
    """Tell the coordinator that this task's part of the epoch is written."""

    epoch: Epoch
    report: Report


class AcknowledgeEnd(NamedTuple):
    """Tell the coordinator that this task has ended and its last state is durable.

    The last state stands for every epoch that the task had not captured: those after `captured`, or after `probed` for
    probes. For a head this is limited to what its back edges have verified: epochs and probes up to `verified`; None
    means no limit.
    """

    report: Report
    captured: Epoch
    probed: Epoch
    verified: tuple[Epoch, Epoch] | None = None

    def stands_for(self, epoch: Epoch, *, is_probe: bool) -> bool:
        """Whether the last state replaces this task's acknowledgement of the epoch."""
        is_later = epoch > (self.probed if is_probe else self.captured)
        return is_later and (self.verified is None or epoch <= self.verified[is_probe])


class Decline(NamedTuple):
    """Tell the coordinator that this task cannot take part in the epoch.

    `is_expected`: it is a limit that the user set, so it does not count as a failure of the attempt.
    """

    epoch: Epoch
    reason: str
    is_expected: bool = False


class Discard(NamedTuple):
    """Drop the captured or written snapshot of an aborted epoch. Prepared transactions stay."""

    epoch: Epoch


class Commit(NamedTuple):
    """Commit these transactions; then `on_committed`."""

    epoch: Epoch
    names: tuple[str, ...]


class Committed(NamedTuple):
    """Tell the coordinator that the transactions of the epoch are published."""

    epoch: Epoch


Effect = (
    Send
    | RunRoundEnd
    | RunDecide
    | RunReleaseRound
    | RunReleaseResult
    | RunEnd
    | Capture
    | Write
    | Acknowledge
    | AcknowledgeEnd
    | Decline
    | Discard
    | Commit
    | Committed
)
