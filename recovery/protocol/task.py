"""The core of one task: its reaction to batches, barriers, END, triggers and aborts. No clock, no I/O, no randomness.

It combines the sub-machines: `alignment.py` decides when to capture, `channel_log.py` logs channels, `rounds.py` and
`iteration.py` handle markers, `channels.py` counts, `inputs.py` says what may be processed next, and `life.py` what the
life cycle is. This file says how they interact:

- Receiving and processing are separate: `on_...` receives; `take` takes what `ready` and `front` offer.
- Nothing is received before `start`; the driver keeps earlier arrivals.
- A batch may be taken in parts; anything else may happen between two parts.
- An aligned epoch whose patience is over (`on_tick`) is captured past the queues: every input is logged until its
  barrier, which stays in its place and passes without effect.
- A barrier or END takes effect by itself as soon as it reaches the front of its channel. Two exceptions take effect on
  receipt: a log is sealed, and an epoch that captures on receipt (`unaligned`) is captured.
- A source ends when exhausted, a head when told to, any other task when all its inputs have ended and it is not busy.
- An ended task ignores triggers; its last state acknowledges every epoch that it had not captured.
- Items with another attempt's number are counted and dropped.

A driver makes no decision: it calls these methods and carries out the effects (`recovery/protocol/effects.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from backedge.graphs.deployment import Task
from backedge.graphs.ids import RESTORED_SENDER, Attempt, ChannelId, Epoch
from backedge.graphs.task_errors import MisuseError
from backedge.recovery.protocol.alignment import Alignment
from backedge.recovery.protocol.channel_log import ChannelLogs, OpenEpoch
from backedge.recovery.protocol.channels import Encode, Inbox, Outlet, Queued
from backedge.recovery.protocol.effects import Capture, Committed, Decline, Effect, Remaining, RunEnd, Send, Stage
from backedge.recovery.protocol.inputs import TaskInputs
from backedge.recovery.protocol.iteration import Iteration
from backedge.recovery.protocol.life import TRANSITIONS, Life
from backedge.recovery.protocol.messages import Barrier, Data, End, Item, Mode
from backedge.recovery.protocol.open_snapshots import Snapshots
from backedge.recovery.protocol.protocol_errors import BrokenInvariantError, ProtocolError
from backedge.recovery.protocol.restored import TaskRestore, restored_inboxes
from backedge.recovery.protocol.rounds import Rounds

NOTHING: Sequence[Effect] = ()
LATE_IN_ROUNDS = "on_end (or on_timer, for a timer that the last on_round_end set)"


class TaskCore(TaskInputs):
    """One task's part of the protocol.

    - outlets: the sending ends.
    - alignment, logs, snapshots: when to capture, what was in the channels, and what is not acknowledged yet.
    - iteration: what the task does at the ends of its rounds; None outside of iterations.
    - busy: timers are set or calls are unanswered, so the task must not end.
    - now_ms: the driver's clock as last reported; it only matters for the patience of epochs.
    - declined: the last cut between two rounds that was declined, so that this is reported once.
    - stale_items: the number of items of other attempts that were dropped.
    """

    def __init__(self, task: Task, attempt: Attempt, encode: Encode, restored: TaskRestore | None = None) -> None:
        super().__init__(task, encode)
        self.attempt = attempt
        self.encode = encode
        self.outlets = {c.id: Outlet(c.id, c.is_back, c.edge.loop, c.depth, c.within_actor) for c in task.outputs}
        self.alignment = Alignment(task.is_source or task.is_head)
        self.logs = ChannelLogs()
        self.snapshots = Snapshots(task.id, self.logs, self.alignment)
        self.iteration = (
            Iteration(task, self.rounds, self.outlets.values(), self.alignment) if self.rounds is not None else None
        )
        if restored is not None and restored.ended:
            self.life = Life.HAD_ENDED
        self.now_ms = 0
        self.busy = False
        self.declined: Epoch | None = None
        self.stale_items = 0
        if restored is not None:
            self._take_back(restored)

    def limit_logs(self, budget_bytes: int | None) -> None:
        """Decline every epoch for which this task would have to log more than this; None means no limit."""
        self.logs.budget_bytes = budget_bytes

    def _take_back(self, restored: TaskRestore) -> None:
        for inbox in restored_inboxes(restored.logs, list(self.inboxes.values()), self.encode):
            self.inboxes[inbox.id] = inbox
            if self.rounds is not None and inbox.id.sender == RESTORED_SENDER:
                self.rounds.add_channel(inbox.live_id, inbox.depth)
        if self.rounds is not None and restored.rounds is not None:
            self.rounds.restore(restored.rounds)

    def start(self, *, busy: bool) -> Sequence[Effect]:
        """All tasks are restored: run. A task that had ended only sends END again.

        `busy`: whether timers or unanswered calls were restored. If this were reported later, a round whose markers
        were all given before the cut would be over before its calls are answered.
        """
        if self.life not in (Life.NEW, Life.HAD_ENDED):
            raise ProtocolError(f"task {self.task.id} is already running")
        self._become(Life.RUNNING if self.life is Life.NEW else Life.ENDED_AGAIN)
        self.busy = busy
        self._queues = [inbox.queue for inbox in self.inboxes.values()]
        if self.rounds is not None:
            self._queues.append(self.rounds.aside)
        if self.life.is_over:
            return self._say_end()
        effects: list[Effect] = []
        self._settle(self.inboxes.values(), effects)
        return self._proceed(effects)

    @property
    def ended(self) -> bool:
        """Whether the task has ended; it may not have reported that yet."""
        return self.life.is_over

    def _become(self, life: Life) -> None:
        if (self.life, life) not in TRANSITIONS:
            raise ProtocolError(f"task {self.task.id} is {self.life.label}, so it cannot become {life.label}")
        self.life = life

    def receive(self, channel: ChannelId, attempt: Attempt, item: Item, kept: Any = None) -> Sequence[Effect]:
        """An item has arrived. `kept` is queued in place of a payload for which memory has no room."""
        if attempt != self.attempt:
            self.stale_items += 1
            return NOTHING
        inbox = self.inboxes.get(channel) or self._no_inbox(channel)
        if isinstance(item, Data):
            queued = inbox.receive(item, kept)
            if self.life.is_over and item.marker is None:
                loop = next(c.edge.loop for c in self.task.inputs if c.id == channel)
                late, earlier = ("on_end", "by a timer") if self.rounds is None else (LATE_IN_ROUNDS, "in on_round_end")
                raise MisuseError(
                    f"loop {loop!r} had ended when records of {channel.sender} came back to {self.task.id}: {late} of "
                    "an operator in a loop may emit only what leaves the loop; emit the rest earlier, in on_record or "
                    f"{earlier}"
                )
            exceeding = self.logs.receive(inbox, queued) if inbox.open_logs else None
            return [self._over_budget(log) for log in exceeding] if exceeding else NOTHING
        return self._on_barrier(inbox, item) if isinstance(item, Barrier) else self._on_end(inbox, item)

    def on_trigger(
        self,
        epoch: Epoch,
        mode: Mode,
        patience_ms: int | None = None,
        base: Epoch | None = None,
    ) -> Sequence[Effect]:
        """The coordinator starts an epoch here."""
        if self.ended or self.alignment.is_over(epoch, mode):
            return NOTHING
        effects: list[Effect] = []
        self.alignment.name_base(epoch, mode, base)
        if mode.captures_on_receipt:
            self._capture(epoch, mode, effects)
        elif mode is Mode.BETWEEN_ROUNDS and self.iteration is not None and self.iteration.takes_request(epoch):
            return NOTHING
        else:
            self.alignment.trigger(epoch, mode)
            self.alignment.expect(epoch, mode, patience_ms, self.now_ms)
        return self._proceed(effects)

    @property
    def awaits_time(self) -> bool:
        """Whether the patience of an epoch may run out."""
        return bool(self.alignment.deadlines) and not self.ended

    @property
    def patience_until_ms(self) -> int:
        """The end of the first patience; there must be one."""
        return min(self.alignment.deadlines.values())

    def on_tick(self, now_ms: int) -> Sequence[Effect]:
        """Pass in the time, before each trigger or barrier, and while `awaits_time`."""
        self.now_ms = now_ms
        if not self.awaits_time:
            return NOTHING
        effects: list[Effect] = []
        for epoch in self.alignment.overdue(now_ms):
            self._capture(epoch, Mode.ALIGNED, effects, overtakes=True)
        return self._proceed(effects) if effects else NOTHING

    def on_abort(self, epoch: Epoch, mode: Mode) -> Sequence[Effect]:
        """The epoch will never complete. Prepared transactions stay: a later cut lists them."""
        released = self.alignment.abort(epoch, mode)
        effects = self.snapshots.on_abort(epoch, mode)
        if self.ended:
            return effects
        self._settle([self.inboxes[channel] for channel in released], effects)
        return self._proceed(effects)

    def on_complete(self, epoch: Epoch, names: tuple[str, ...]) -> Sequence[Effect]:
        """The cut is complete: publish its transactions, and drop earlier open epochs."""
        return self.snapshots.on_complete(epoch, names)

    def on_committed(self, epoch: Epoch) -> Sequence[Effect]:
        """The transactions of the epoch are published."""
        return [Committed(epoch)]

    def on_busy(self, busy: bool) -> Sequence[Effect]:
        """Note whether timers are set or calls are unanswered; called whenever this changes."""
        self.busy = busy
        return self._proceed([])

    def on_exhausted(self) -> Sequence[Effect]:
        """A source has nothing more to read."""
        if not self.task.is_source:
            raise ProtocolError(f"task {self.task.id} is not a source, so it cannot be exhausted")
        return self._finish()

    def on_told_to_end(self) -> Sequence[Effect]:
        """The loop of this head has run dry for good: end. Repeating this has no effect."""
        if not self.task.is_head or self.iteration is not None:
            raise ProtocolError(f"task {self.task.id} is not the head of a free loop, so it cannot be told to end")
        return self._finish() if self.life is Life.RUNNING else NOTHING

    def on_captured(
        self, epoch: Epoch | None, transactions: tuple[str, ...], base: Epoch | None = None, keys: int = 0
    ) -> None:
        """The operators' state is captured; these transactions are prepared and not yet committed.

        Keyed state was captured since `base`, or all of it if that is None: this number of entries.
        """
        self.snapshots.on_captured(epoch, transactions, base, keys)

    def on_written(self, epoch: Epoch | None, size: int = 0) -> Sequence[Effect]:
        """The files are durable; those with keyed state have `size` bytes."""
        return self.snapshots.on_written(epoch, size)

    def on_write_failed(self, epoch: Epoch | None, reason: str) -> Sequence[Effect]:
        """The files could not be written: the epoch is declined; a last state is written again."""
        return self.snapshots.on_write_failed(epoch, reason)

    def remaining(self) -> dict[Epoch, Remaining]:
        """What remains to be done here for each open epoch, except probes."""
        found: dict[Epoch, Remaining] = {}
        inputs = self._live_regular()
        for epoch in self._awaited():
            ahead = [self.inboxes[channel].count_before(epoch) for channel in inputs]
            known = [count for count in ahead if count is not None]
            found[epoch] = Remaining(Stage.ALIGNING, len(ahead) - len(known), sum(known))
        for epoch, log in self.logs.epochs.items():
            if not log.mode.is_probe:
                found[epoch] = Remaining(Stage.CAPTURED, len(log.open), 0)
        return found

    def _awaited(self) -> list[Epoch]:
        """The epochs that have begun here and are not captured yet."""
        begun = {epoch for epoch, mode in self.alignment.modes.items() if not mode.is_probe}
        begun |= {inbox.last_barrier[False] for inbox in self.inboxes.values()}
        return sorted(epoch for epoch in begun if epoch and not self.alignment.is_over(epoch, Mode.ALIGNED))

    # -- processing ----------------------------------------------------------------------------------------------

    @property
    def last_captured(self) -> Epoch:
        """The last epoch captured here, except probes; 0 if none was."""
        return self.alignment.captured[False]

    def take(self, channel: ChannelId, until: int | None = None) -> Sequence[Effect]:
        """Take what is next on a ready channel.

        If it is the batch that `front` returns: its records up to `until`, or all that are left. A batch stays at the
        front until its last record is taken, so `until` must leave one. Run user code on the records, send what it
        emits, then call `on_processed`. Anything else takes effect at once: a marker, or a batch of a later round,
        which is set aside.
        """
        inbox = self.inboxes.get(channel) or self._no_inbox(channel)
        if not self.life.takes:
            raise ProtocolError(f"channel {channel} is not ready: its task is {self.life.label}")
        if until is not None:
            self._take_part(inbox, until)
            return NOTHING
        if self.rounds is None:
            inbox.consume()
            return NOTHING
        return self._take_in_rounds(inbox, self.rounds)

    def _take_part(self, inbox: Inbox, until: int) -> None:
        front, rounds, live = self.front(inbox.id), self.rounds, inbox.live_id
        if front is None or until <= front[1]:
            raise ProtocolError(f"channel {inbox.id}: no records of a batch can be taken up to record {until}")
        if rounds is not None and live in rounds.aside:
            rounds.skips[live] = until
        else:
            inbox.skip = until

    def _take_in_rounds(self, inbox: Inbox, rounds: Rounds) -> Sequence[Effect]:
        live = inbox.live_id
        if not rounds.is_readable(live):
            skip = inbox.skip
            rounds.set_aside(live, inbox.consume(), skip)
            return self._go_on(inbox, [])
        is_aside = live in rounds.aside
        marker = (rounds.aside[live][0] if is_aside else inbox.front()).marker
        if marker is not None:
            rounds.give(live, marker)
        if is_aside:
            rounds.take_aside(live)
        else:
            inbox.consume()
        return NOTHING if marker is None else self._go_on(inbox, [])

    def on_processed(self, channel: ChannelId) -> Sequence[Effect]:
        """User code has processed the batch, and its output is sent: the items behind it take effect."""
        inbox = self.inboxes.get(channel) or self._no_inbox(channel)
        if not inbox.ended and (not inbox.queue or type(inbox.queue[0]) is Queued):
            return NOTHING
        return self._go_on(inbox, [])

    def sent(self, channel: ChannelId, payload: Any) -> Data:
        """Number a batch that is about to be sent."""
        outlet = self.outlets.get(channel)
        if outlet is None or self.life.is_over:
            raise ProtocolError(
                f"task {self.task.id} may not send into {channel}: it has ended, or the channel is not its"
            )
        return outlet.number(payload)

    def check_timers_output(self, channels: Iterable[ChannelId]) -> None:
        """Raise if timers that have just fired send records back into a loop that has ended.

        All timers of a free loop fire before it ends. In an iteration, one that the last on_round_end sets does not.
        """
        back = [c for c in channels if c in self.outlets and self.outlets[c].is_back]
        if back and all(inbox.ended for inbox in self.inboxes.values()):
            raise MisuseError(
                f"loop {self.outlets[back[0]].loop!r} had ended when on_timer in {self.task.id} sent records back into "
                "it: a timer that on_round_end sets fires after the round, and after the last round it may emit only "
                "what leaves the loop; emit the rest in on_record or on_round_end"
            )

    def on_round_hooks_ran(self, contribution: Any | None) -> Sequence[Effect]:
        """After `RunRoundEnd`."""
        return self._proceed(self._rounds_step().on_round_hooks_ran(contribution))

    def on_decided(self, another: bool) -> Sequence[Effect]:
        """After `RunDecide`."""
        return self._proceed(self._rounds_step().on_decided(another))

    def on_round_released(self) -> Sequence[Effect]:
        """After `RunReleaseRound`."""
        return self._proceed(self._rounds_step().on_round_released())

    def on_result_released(self, contribution: Any | None) -> Sequence[Effect]:
        """After `RunReleaseResult`."""
        return self._proceed(self._rounds_step().on_result_released(contribution))

    def on_end_hooks_ran(self) -> Sequence[Effect]:
        """After `RunEnd`."""
        if self.life is not Life.ENDING:
            raise ProtocolError(f"task {self.task.id} was not running end hooks")
        self._become(Life.ENDED)
        return self._say_end()

    def _on_barrier(self, inbox: Inbox, barrier: Barrier) -> Sequence[Effect]:
        inbox.verify(barrier)
        inbox.last_barrier[barrier.mode.is_probe] = barrier.epoch
        effects: list[Effect] = []
        sealed = self.logs.seal(inbox.id, barrier.epoch)
        if sealed is not None:
            effects += self.snapshots.seal(sealed)
        if self.ended:
            return effects + self.snapshots.on_verified(self._verified())
        if self.alignment.is_over(barrier.epoch, barrier.mode):
            return effects
        inbox.queue.append(barrier)
        self.alignment.name_base(barrier.epoch, barrier.mode, barrier.base)
        self.alignment.expect(barrier.epoch, barrier.mode, barrier.patience_ms, self.now_ms)
        if barrier.mode.captures_on_receipt:
            self._capture(barrier.epoch, barrier.mode, effects)
        return self._go_on(inbox, effects)

    def _on_end(self, inbox: Inbox, end: End) -> Sequence[Effect]:
        inbox.verify(end)
        inbox.end_received = True
        inbox.queue.append(end)
        effects: list[Effect] = []
        for log in self.logs.seal_all(inbox):
            effects += self.snapshots.seal(log)
        if self.ended:
            return effects + self.snapshots.on_verified(self._verified())
        return self._go_on(inbox, effects)

    def _verified(self) -> tuple[Epoch, Epoch] | None:
        """The epoch and the probe up to which every back edge is known to be complete; None means to its end.

        A head that had ended before a restore was verified then.
        """
        left = [inbox.last_barrier for inbox in self.inboxes.values() if inbox.is_back and not inbox.end_received]
        return (
            None
            if self.life is Life.ENDED_AGAIN or not left
            else (min(b[False] for b in left), min(b[True] for b in left))
        )

    def _go_on(self, inbox: Inbox, effects: list[Effect]) -> Sequence[Effect]:
        self._settle([inbox], effects)
        return self._proceed(effects)

    def _settle(self, inboxes: Iterable[Inbox], effects: list[Effect]) -> None:
        """Let barriers and ENDs at the front of these channels take effect, and capture epochs that become due."""
        waiting = list(inboxes)
        while waiting:
            inbox = waiting.pop()
            while inbox.queue and (inbox.in_front is None or inbox.in_front.ended):
                front = inbox.queue[0]
                if isinstance(front, Queued):
                    break
                if isinstance(front, Barrier):
                    if not self.alignment.is_over(front.epoch, front.mode):
                        self._hold(inbox, front)
                        break
                else:
                    inbox.ended = True
                    waiting += [other for other in self.inboxes.values() if other.in_front is inbox]
                inbox.queue.popleft()
            if inbox.ended and self.rounds is not None:
                self._close(inbox, self.rounds)

    def _hold(self, inbox: Inbox, barrier: Barrier) -> None:
        self.alignment.hold(inbox.id, barrier.epoch, barrier.mode)

    def _close(self, inbox: Inbox, rounds: Rounds) -> None:
        if inbox.live_id not in rounds.aside and (not inbox.id.restored or inbox.id.sender == RESTORED_SENDER):
            rounds.close(inbox.live_id)

    def _proceed(self, effects: list[Effect]) -> Sequence[Effect]:
        """Continue with due captures, then the next step of a round, then the end."""
        self._capture_due(effects)
        if self.life is not Life.RUNNING:
            return effects
        if self.iteration is not None:
            effects += self.iteration.advance(self.busy)
            if self.iteration.running is None and self._capture_due(effects):
                effects += self.iteration.advance(self.busy)
            if self.iteration.running is not None:
                return effects
        if self._is_done():
            effects += self._finish()
        return effects

    def _capture_due(self, effects: list[Effect]) -> bool:
        """Capture every epoch whose barrier all inputs have given; return whether there was one."""
        if self.alignment.is_idle:
            return False
        captured = False
        self._decline_in_a_round(effects)
        while not (self.ended or self.alignment.is_idle):
            epoch = self.alignment.due(self._live_regular())
            if epoch is None or epoch == self.declined:
                break
            mode = self.alignment.modes[epoch]
            if mode is Mode.BETWEEN_ROUNDS and self.rounds is not None and self.rounds.is_in_a_round():
                self._decline_between_rounds(epoch, effects)
                break
            self._capture(epoch, mode, effects)
            captured = True
        return captured

    def _live_regular(self) -> list[ChannelId]:
        """The channels that must give a barrier. One that has ended counts as having given every barrier."""
        return [inbox.id for inbox in self.inboxes.values() if not inbox.is_back and not inbox.ended]

    def _decline_in_a_round(self, effects: list[Effect]) -> None:
        """Decline a cut between two rounds that some heads have captured and others have passed: it would deadlock.

        This is the case if the round needs a marker that is behind the barrier. If the channel has given its marker,
        the barrier only came early: another head was faster.
        """
        rounds = self.rounds
        if rounds is None or not rounds.is_in_a_round():
            return
        for channel, epoch in list(self.alignment.held.items()):
            if self.alignment.modes[epoch] is Mode.BETWEEN_ROUNDS and rounds.awaits(channel):
                self._decline_between_rounds(epoch, effects)

    def _decline_between_rounds(self, epoch: Epoch, effects: list[Effect]) -> None:
        if epoch != self.declined:
            self.declined = epoch
            effects.append(Decline(epoch, f"task {self.task.id} is in the middle of a round"))

    def _is_done(self) -> bool:
        if self.iteration is not None and self.iteration.is_over:
            return True
        if self.task.is_source or self.task.is_head or self.busy or (self.rounds is not None and self.rounds.aside):
            return False
        return all(inbox.ended for inbox in self.inboxes.values())

    def _capture(self, epoch: Epoch, mode: Mode, effects: list[Effect], overtakes: bool = False) -> None:
        """Capture, send the barrier on, release the channels held for it; the log begins with the queued batches."""
        open_epoch = self._open(epoch, mode)
        open_epoch.overtook = overtakes
        base = self.alignment.bases.get(epoch)
        if not mode.is_probe:
            effects.append(Capture(epoch, base))
        left_ms = self.alignment.patience_left_ms(epoch, self.now_ms)
        effects += [Send(o.id, Barrier(epoch, mode, o.sent, o.digest, left_ms, base)) for o in self.outlets.values()]
        self.logs.start(open_epoch, [i for i in self.inboxes.values() if overtakes or self._is_logged(i, mode)])
        released = self.alignment.capture(epoch, mode)
        if open_epoch.exceeds_budget:
            effects.append(self._over_budget(open_epoch))
        elif not open_epoch.open:
            effects += self.snapshots.seal(open_epoch)
        self._settle([self.inboxes[channel] for channel in released], effects)

    def _over_budget(self, log: OpenEpoch) -> Decline:
        budget = f"{self.logs.budget_bytes:,} bytes"
        return Decline(
            log.epoch,
            f"task {self.task.id} would have to log more than {budget} of records in flight, which is the log budget: "
            "raise it with log_bytes=, or let fewer records circulate at a time",
            is_expected=True,
        )

    def _is_logged(self, inbox: Inbox, mode: Mode) -> bool:
        return inbox.is_back or mode.captures_on_receipt

    def _open(self, epoch: Epoch, mode: Mode) -> OpenEpoch:
        opened = OpenEpoch(
            epoch,
            mode,
            tuple(inbox.record() for inbox in self.inboxes.values()),
            tuple(outlet.record() for outlet in self.outlets.values()),
            None if self.rounds is None else self.rounds.snapshot(self.encode),
        )
        opened.busy = self.busy or (self.rounds is not None and bool(self.rounds.aside))
        return opened

    def _finish(self) -> list[Effect]:
        if self.life is not Life.RUNNING:
            raise ProtocolError(f"task {self.task.id} has already ended, or has not started")
        self._become(Life.ENDING)
        return [RunEnd()]

    def _say_end(self) -> Sequence[Effect]:
        effects: list[Effect] = [Send(o.id, End(o.sent, o.digest)) for o in self.outlets.values()]
        effects.append(Capture(None))
        self.snapshots.verified = self._verified()
        effects += self.snapshots.end_with(self._open(Epoch(0), Mode.ALIGNED))
        return effects

    def check(self) -> None:
        """Raise if these attributes contradict each other."""
        if (fault := next(self._contradictions(), None)) is not None:
            raise BrokenInvariantError(f"task {self.task.id}: {fault}")

    def _contradictions(self) -> Iterator[str]:
        alignment, logs = self.alignment, self.logs
        if self.life is Life.RUNNING:
            for channel, epoch in alignment.held.items():
                queue = self.inboxes[channel].queue
                if not queue or not isinstance(queue[0], Barrier) or queue[0].epoch != epoch:
                    yield f"{channel} is held for epoch {epoch}, whose barrier is not in front"
        for log in logs.epochs.values():
            if log.epoch > alignment.captured[log.mode.is_probe]:
                yield f"epoch {log.epoch} has a log and is not captured"
            for inbox in log.open.values():
                if inbox.end_received or inbox.last_barrier[log.mode.is_probe] == log.epoch:
                    yield f"{inbox.id} has given the barrier of epoch {log.epoch}, and its log is open"

    def _rounds_step(self) -> Iteration:
        if self.iteration is None:
            raise ProtocolError(f"task {self.task.id} is not in an iteration")
        return self.iteration
