"""The tasks of an actor in their turns, and what they have done."""

from __future__ import annotations

from backedge.engine.on_ray.actor.actor_channels import ActorChannels
from backedge.engine.on_ray.actor.labelled_output import label_of, printing_as
from backedge.engine.on_ray.actor.run_clock import RunClock
from backedge.engine.on_ray.transport.control_messages import Counts, TaskOptions, TaskRemaining
from backedge.engine.on_ray.transport.mailbox import Mailbox
from backedge.engine.task.driver import TaskDriver
from backedge.engine.task.load import TaskLoad, WorkTimes, load_of
from backedge.graphs.ids import TaskId

IDLE_MS = 200
READ_PAUSE_MS = 5
GOING_ROUND_RECORDS = 1_024


class TaskTurns:
    """Gives each task its turn.

    - drivers: those of the tasks. reading, waiting: those that read, and those with timers or calls.
    - seats: the drivers in their order, each with the name of its output and how it spends its time; empty until the
      tasks start. first: the index of the next one.
    - take_max, read_max: how many records a task takes from a channel, or reads, in a turn.
    """

    def __init__(self, options: TaskOptions, mailbox: Mailbox, channels: ActorChannels, clock: RunClock) -> None:
        self.drivers: dict[TaskId, TaskDriver] = {}
        self._options = options
        self._mailbox = mailbox
        self._channels = channels
        self._clock = clock
        self._take_max, self._read_max = options.take_records_max, options.read_records_max
        self._seats: list[tuple[TaskDriver, str, WorkTimes]] = []
        self._first = 0
        self._reading: list[TaskDriver] = []
        self._waiting: list[TaskDriver] = []

    def connect(self) -> None:
        self._reading = [driver for driver in self.drivers.values() if driver.runtime.reads]
        self._waiting = [driver for driver in self.drivers.values() if driver.waits]
        self._channels.connect(self.drivers)
        if self._channels.going_round:
            # Records taken together travel on as objects, and should still be in the cache.
            self._take_max = min(self._take_max, GOING_ROUND_RECORDS)

    def start(self) -> None:
        job, now_ns = self._options.job, self._clock.clock_ns()
        drivers = self.drivers.values()
        self._seats = [(driver, label_of(job, driver.core.task), WorkTimes(now_ns)) for driver in drivers]
        for driver in drivers:
            driver.start()

    def take(self, until_ns: int) -> bool:
        """Give every task a turn until time is up. Then the mailbox comes first, and the next task after it."""
        has_more = False
        seats, first, channels, clock_ns = self._seats, self._first, self._channels, self._clock.clock_ns
        now_ns = clock_ns()
        for seat in seats[first:] + seats[:first] if first else seats:
            driver, label, times = seat
            if not driver.has_work():
                continue
            began_ns = now_ns
            if printing_as.get() is not label:
                printing_as.set(label)
            has_more |= driver.turn(self._take_max, self._read_max, until_ns)
            if channels.deliveries:
                channels.deliver()
            if self._mailbox.posted:
                # Receivers of this output need not wait for the other tasks of this actor.
                self._mailbox.flush()
            now_ns = clock_ns()
            times.on_turn(began_ns, now_ns, driver.is_held)
            if now_ns >= until_ns:
                self._first = (seats.index(seat) + 1) % len(seats)
                return True
        self._first = 0
        return has_more

    def can_go_on(self) -> bool:
        """Whether a task has something to do before anything arrives."""
        # Usually a single task or two: a loop is faster than `any`.
        for driver in self.drivers.values():  # noqa: SIM110
            if driver.can_go_on():
                return True
        return False

    def idle_ms(self) -> int:
        """How long the loop may sleep if nothing arrives."""
        for driver in self._reading:
            if not driver.core.ended and driver.runtime.has_unread:
                return READ_PAUSE_MS
        idle_ms, clock = IDLE_MS, self._clock
        for driver in self.drivers.values():
            if driver.core.awaits_time:
                idle_ms = min(idle_ms, driver.core.patience_until_ms - clock.steady_ms)
        for driver in self._waiting:
            timer_ms = driver.runtime.next_timer_ms
            if timer_ms is not None:
                idle_ms = min(idle_ms, timer_ms - clock.now_ms)
        return max(0, idle_ms)

    def count(self, counts: Counts) -> None:
        drivers = self.drivers.values()
        counts.records = sum(driver.records for driver in drivers)
        counts.hops = sum(driver.hops for driver in drivers)
        counts.by_task = {driver.id: driver.records for driver in drivers}
        counts.in_loops = sum(arrivals.bytes_waiting for driver in drivers for arrivals in driver.looping)

    def remaining(self) -> tuple[TaskRemaining, ...]:
        return tuple(
            TaskRemaining(driver.id, epoch, left)
            for driver in self.drivers.values()
            for epoch, left in driver.remaining().items()
        )

    def loads(self) -> tuple[TaskLoad, ...]:
        """What each task does, and what waits in its channels; nothing before they have started."""
        now_ns, index_of = self._clock.clock_ns(), self._channels.index_of
        return tuple(load_of(driver, times, index_of, now_ns) for driver, _, times in self._seats)
