"""What one task does and what waits in its channels: counted per batch or per turn, and read about once a second.

Nothing here costs per record. Where records cannot be counted without decoding them, their number is estimated from the
size of those before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from backedge.engine.batches.batch import Batch
from backedge.graphs.hops import Digit
from backedge.graphs.ids import ChannelId, TaskId
from backedge.recovery.stores.run_status import CountedStatus, TaskStatus

if TYPE_CHECKING:
    from backedge.engine.task.driver import TaskDriver

ROUNDS_EXACT = 16
"""From this number of rounds on, a power of two stands for all numbers up to the next one."""

SAMPLED_RECORDS = 8


class InputLoad(NamedTuple):
    """What waits at the receiving end of a channel: `channel` is its place among those of the deployment."""

    channel: int
    records: int
    bytes: int
    waiting_ms: int


class OutputLoad(NamedTuple):
    """The sending end of a channel: what was sent, what waits here, and for how many bytes there is room.

    `window` is None for a channel that is never full.
    """

    channel: int
    sent: int
    records: int
    bytes: int
    room: int | None
    window: int | None


class TaskLoad(NamedTuple):
    """One task in this attempt.

    - status: what it has done since the attempt began here, `seconds` ago.
    - rounds: how often the records that came round since the last report had gone round, by loop (`RoundsSeen`).
    - round: for a task within an iteration, the round that it is in, such as "3", or "3.0" in an inner one.
    - counted: what process classes have counted, by operator.
    """

    task: TaskId
    status: TaskStatus
    seconds: float
    rounds: dict[str, dict[int, int]]
    round: str
    inputs: tuple[InputLoad, ...]
    outputs: tuple[OutputLoad, ...]
    counted: dict[str, CountedStatus] = {}  # noqa: RUF012  # a field of a NamedTuple, never changed


class WorkTimes:
    """How long a task was worked on, and how long it had something to do and could not.

    >>> times = WorkTimes(0)
    >>> times.on_turn(10, 15, is_held=True)
    >>> times.on_turn(40, 41, is_held=False)
    >>> times.busy_ns, times.held_ns
    (6, 25)
    """

    __slots__ = ("_ended_ns", "_is_held", "began_ns", "busy_ns", "held_ns")

    def __init__(self, now_ns: int) -> None:
        self.began_ns = now_ns
        self.busy_ns = 0
        self.held_ns = 0
        self._ended_ns = now_ns
        self._is_held = False

    def on_turn(self, began_ns: int, ended_ns: int, is_held: bool) -> None:
        """The task has had a turn; `is_held`: it could not do all that was there to do."""
        if self._is_held:
            self.held_ns += began_ns - self._ended_ns
        self.busy_ns += ended_ns - began_ns
        self._ended_ns = ended_ns
        self._is_held = is_held


class RoundsSeen:
    """How often the records that come round a loop have gone round. A batch with several numbers is sampled.

    Only loops with `max_rounds` count rounds: `digit` is theirs.

    >>> seen = RoundsSeen(Digit(weight=1, base=100))
    >>> seen.note(Batch(["a", "b"], 1))
    >>> seen.note(Batch(["c", "d"], [3, 70]))
    >>> seen.take(), seen.take()
    ({1: 2, 3: 1, 64: 1}, {})
    """

    __slots__ = ("_counts", "_digit")

    def __init__(self, digit: Digit) -> None:
        self._digit = digit
        self._counts: dict[int, int] = {}

    def note(self, batch: Batch) -> None:
        hops = batch.hops
        if isinstance(hops, int):
            self._add(hops, len(batch))
        else:
            step = 1 + len(hops) // SAMPLED_RECORDS
            for one in hops[::step]:
                self._add(one, step)

    def _add(self, hops: int, records: int) -> None:
        rounds = self._digit.of(hops)
        kept = rounds if rounds < ROUNDS_EXACT else 1 << (rounds.bit_length() - 1)
        self._counts[kept] = self._counts.get(kept, 0) + records

    def take(self) -> dict[int, int]:
        """The counts since the last call."""
        counts, self._counts = self._counts, {}
        return counts


def load_of(driver: TaskDriver, times: WorkTimes, places: Mapping[ChannelId, int], now_ns: int) -> TaskLoad:
    """What a task does and what waits in its channels; `places` are those of the channels in the deployment."""
    rounds: dict[str, dict[int, int]] = {}
    for loop, seen in driver.rounds_seen.items():
        if counts := seen.take():
            rounds[loop] = counts
    inputs: list[InputLoad] = []
    for id, arrivals in driver.arrivals.items():
        since_ns = arrivals.waiting_since_ns()
        waiting_ms = 0 if since_ns is None else (now_ns - since_ns) // 1_000_000
        inputs.append(InputLoad(places[id], arrivals.records_waiting(), arrivals.bytes_waiting, waiting_ms))
    outputs: list[OutputLoad] = []
    for channel in driver.core.task.outputs:
        out = driver.outputs[channel.id]
        is_bounded = driver.limits.credit_bytes is not None and not channel.is_back
        room, window = (out.room(), out.window) if is_bounded else (None, None)
        waiting = out.records_waiting()
        outputs.append(OutputLoad(places[channel.id], out.records, waiting, out.bytes_waiting, room, window))
    status = TaskStatus(
        driver.id.index,
        driver.core.task.actor,
        driver.records,
        sum(out.records for out in driver.outputs.values()),
        hops=driver.hops,
        bytes_in=sum(arrivals.bytes_taken + arrivals.bytes_waiting for arrivals in driver.arrivals.values()),
        busy_s=times.busy_ns / 1e9,
        held_s=times.held_ns / 1e9,
        calls_running=len(driver.calls.running),
        calls_waiting=driver.runtime.open_calls - len(driver.calls.running),
    )
    seconds = (now_ns - times.began_ns) / 1e9
    current = () if driver.core.rounds is None else driver.core.rounds.current
    path, counted = ".".join(map(str, current)), driver.runtime.counted()
    return TaskLoad(driver.id, status, seconds, rounds, path, tuple(inputs), tuple(outputs), counted)
