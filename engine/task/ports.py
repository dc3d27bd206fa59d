"""The ports of a `TaskDriver`: what it needs from the world around it.

The Ray actor (`engine/on_ray/actor/actor_loop.py`) and the simulated world (`engine/simulation/world/host.py`)
implement these and nothing else; the driver and the core are the same in both. Tests and demonstrations observe and
count through the observer, so the driver needs no switches for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from backedge.engine.batches.batch import Batch
from backedge.engine.operators.async_calls import Call
from backedge.engine.operators.runtime import KeptAnswer
from backedge.engine.task.channel_ends import Arrivals, SendCredit, SendItem, SpillSpace
from backedge.graphs.deployment import Channel
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.protocol.credit import REPEAT_MS
from backedge.recovery.protocol.effects import Effect
from backedge.recovery.protocol.messages import Item


class Channels(Protocol):
    """The channels of a task. Each method is called once per channel, so a batch needs no lookup."""

    def way(self, channel: Channel) -> SendItem:
        """The function that puts an item into this output channel, at once and in order."""
        ...

    def credit_way(self, channel: Channel) -> SendCredit | None:
        """The function that sends credit to the sender of this input channel; None within an actor."""
        ...

    def receiving_end(self, channel: Channel) -> Arrivals:
        """The other end of an output channel within this actor."""
        ...

    def flush(self) -> None:
        """Send what was put into channels to other actors now instead of at the end of the turn."""
        ...

    def is_going_round(self) -> bool:
        """Whether loops within this actor have enough to do for a turn."""
        ...


class SnapshotWriter(Protocol):
    """Makes snapshots durable, the large ones in the background."""

    def write(self, attempt: Attempt, epoch: Epoch | None, task: TaskId, snapshot: Callable[[], TaskSnapshot]) -> None:
        """Assemble the snapshot and write it; then call the driver's `on_written`."""
        ...

    def discard(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        """Remove what was written for an aborted epoch."""
        ...


class Clock(Protocol):
    """The time. Everything except `clock_ns` stands still within a turn."""

    @property
    def now_ms(self) -> int:
        """The run's clock, to which timers refer."""
        ...

    @property
    def steady_ms(self) -> int:
        """A clock that never steps, for the patience of epochs."""
        ...

    @property
    def turn_ns(self) -> int:
        """The beginning of the actor's turn, on the clock of `clock_ns`."""
        ...

    def clock_ns(self) -> int:
        """The time on a clock that never steps."""
        ...


class Reporter(Protocol):
    """The way to the coordinator."""

    def report(self, task: TaskId, effect: Effect, files: Any = None) -> None:
        """Report an effect of the core; `files` are those of the snapshot that it acknowledges."""
        ...


class OutsideCalls(Protocol):
    """Makes the calls of `map_async`, and keeps their answers."""

    def call(self, task: TaskId, call_id: int, call: Call) -> bool:
        """Make the call, or join one of an earlier attempt, and return which; then call the driver's `on_answer`."""
        ...

    def keep(self, task: TaskId, answers: Sequence[KeptAnswer]) -> None:
        """Write answers to the journal, durably; then call the driver's `on_kept`."""
        ...


class Observer:
    """Observes a task without any effect. This one does nothing; traces and planned faults are subclasses."""

    __slots__ = ()

    def on_taken(self, task: TaskId, channel: ChannelId) -> None:
        """A marker or a batch set aside has left the queue of the channel: no user code runs."""

    def on_run(self, task: TaskId, what: str, channel: ChannelId | None, batch: Batch | None, detail: Any) -> None:
        """User code is about to run. `what` and `detail` are those of `Ran` (`engine/simulation/checker/record.py`).

        Except: the detail of a batch is the number of batches taken together, and that of "answer" and "set_aside" the
        call's id. What user code gets of a channel has left its queue.
        """

    def on_sent(self, task: TaskId, channel: ChannelId, item: Item) -> None:
        """An item is about to be put into a channel."""

    def on_split(self, task: TaskId, channel: ChannelId) -> None:
        """A batch was too large for its channel and travels in parts."""

    def on_epoch(self, task: TaskId, epoch: Epoch) -> None:
        """A barrier or the trigger of an epoch has arrived."""

    def on_captured(self, task: TaskId, epoch: Epoch | None) -> None:
        """The state is captured; `epoch` is None for the last state."""

    def on_committed(self, task: TaskId, names: tuple[str, ...]) -> None:
        """The sinks are about to publish these transactions."""


class Ports(Struct, frozen=True):
    """All ports of one task."""

    channels: Channels
    writer: SnapshotWriter
    clock: Clock
    reporter: Reporter
    calls: OutsideCalls
    spill: SpillSpace
    observer: Observer


class FlowLimits(Struct, frozen=True):
    """Limits on what may wait in the channels of a task.

    - credit_bytes: the largest window of a regular channel; None: no channel is ever full.
    - back_edge_bytes_min: the smallest window of a back edge. Batches beyond it wait at the sender.
    - loop_bytes_max: what a back edge may keep in memory, at either end; the rest is spilled.
    - credit_repeat_ms: the time until credit is repeated in case it was lost.
    - log_budget_bytes: the largest size of a task's logs in one epoch; None: no limit.
    """

    credit_bytes: int | None = None
    back_edge_bytes_min: int = 1_000_000
    loop_bytes_max: int = 2**62
    credit_repeat_ms: int = REPEAT_MS
    log_budget_bytes: int | None = None
