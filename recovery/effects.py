"""What the core tells its driver to do.

Order: effects are carried out in the order of the list. An effect that runs user code (`Process` and the `Run...`
ones) is the last of its list; the driver sends what the user code emitted, numbered by `TaskCore.sent`, and then
calls the method that the effect names, whose effects follow. `Acknowledge` and `AcknowledgeEnd` come only after
the driver has said that the files are written: durable, or to be made so before the manifest is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from graphs.ids import ChannelId, Epoch, TaskId
from graphs.wording import counted
from recovery.cut import InputRecord, OutputRecord
from recovery.messages import Item, Path


class Send(NamedTuple):
    """Put this into the channel."""

    channel: ChannelId
    item: Item


class Process(NamedTuple):
    """Run the operators behind this channel on the records of this batch from `skip` on, up to `until` or its end."""

    channel: ChannelId
    payload: Any
    skip: int = 0
    until: int | None = None


class RunRoundEnd(NamedTuple):
    """Run the hooks of a round that is complete; then `on_round_hooks_ran(contribution)`.

    `iteration` is the one whose back edge this task feeds and whose round it is: its contribution is asked for.
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

    `iteration` is the enclosing one, if the result goes straight back to its head: a contribution is asked for.
    """

    iteration: str | None


class RunEnd(NamedTuple):
    """Run the end hooks; then `on_end_hooks_ran()`."""


class Capture(NamedTuple):
    """Capture the operators' state now; then `on_captured(epoch, ...)`. `epoch` is None for the last state.

    A probe captures nothing, so it has no such effect.
    """

    epoch: Epoch | None


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """What the core adds to the operators' state, to make a snapshot of it."""

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


@dataclass(frozen=True, slots=True)
class Report:
    """What an acknowledgement says: enough to complete a cut, and to read termination off a probe.

    - in_flight: the batches in each channel that is not empty at the cut.
    - ended: the input channels that have ended.
    - drained: the input channels that a drain holds. What is queued behind its barrier is not seen here, so for
      termination they do not stand for ended ones.
    - busy: the task has timers, unanswered calls, or batches set aside.
    - transactions: prepared by sinks and not yet committed, those of aborted epochs included.
    """

    in_flight: Mapping[ChannelId, int]
    ended: frozenset[ChannelId]
    drained: frozenset[ChannelId]
    busy: bool
    transactions: tuple[str, ...]


class Stage(IntEnum):
    """How far a task is with an epoch, the last stage first, so that a task that makes progress compares as less."""

    CAPTURED = 0
    ALIGNING = 1


class Remaining(NamedTuple):
    """What a task still has to do for an open epoch. It only ever shrinks, so that an epoch that is stuck shows.

    - channels: the inputs whose barrier has not been received.
    - amount: while aligning, the batches ahead of the barriers that were received; then minus the pieces encoded.
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
    """Tell the coordinator that this task has ended, and that its last state is durable.

    It stands for every epoch that the task had not captured: those after `captured`, or `probed` for probes. That of a
    head stands for no more than its back edges have verified: epochs and probes up to `verified`; None is all.
    """

    report: Report
    captured: Epoch
    probed: Epoch
    verified: tuple[Epoch, Epoch] | None = None

    def stands_for(self, epoch: Epoch, *, is_probe: bool) -> bool:
        """Whether the epoch needs no other acknowledgement of this task."""
        is_later = epoch > (self.probed if is_probe else self.captured)
        return is_later and (self.verified is None or epoch <= self.verified[is_probe])


class Decline(NamedTuple):
    """Tell the coordinator that this task cannot take part in the epoch."""

    epoch: Epoch
    reason: str


class Discard(NamedTuple):
    """Drop what was captured or written for an aborted epoch. Prepared transactions stay."""

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
    | Process
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
