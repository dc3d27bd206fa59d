"""Iterations in rounds (rule 11), above snapshots: to the protocol a marker is data, logged and replayed like data.

A marker of path (R, r) says that its channel carries no more records of round r of the inner iteration in round R of
the outer one; a marker (R,) says that the inner iteration is over for R. A channel only carries markers up to its
depth: the number of iterations that contain both its ends. END stands for the marker that ends everything.

- A task is in one round at a time. A channel that has given that round's marker is ahead: what it sends from then on is
  set aside (as state, captured with the rest) until every channel has given the marker. The channel is not held,
  because holding would deadlock if a marker precedes a barrier on one channel and follows it on another.
- Channels of outer levels are read first: a channel of depth d is read once all channels of lower depth have given the
  marker of their level, or have ended. So records that do not enter at the head arrive before the round's first record.
- When all channels have given a marker, its round is complete: hooks run, and the marker goes on with the contributions
  of all.
- A head reads its start, sends it into the body, and the marker (R, 0) after it. It gathers what the body returns. When
  marker (R, r) has returned on every back edge, the head decides: another round with what it gathered, or the end. At
  the end the marker (R,) goes round the body once; when it returns, the result and the marker (R,) leave by the exits.
  The outermost head sends END instead.
- Every head gets every marker of its iteration, with the same contributions, so all heads decide alike.
- A cut between two rounds is requested by one head, in its marker: `cut_after`. Every head captures there; heads that
  chose for themselves would deadlock. If the barrier of such a cut is held on a channel that has given its marker, it
  only waits: the round goes on without that channel, and the capture follows. On a channel whose marker the round still
  needs, it would wait for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from backedge.graphs.deployment import Task
from backedge.graphs.ids import ChannelId, Epoch, TaskId
from backedge.recovery.protocol.channels import Encode, Queued, Stored
from backedge.recovery.protocol.messages import Marker, Path, restored_marker_in
from backedge.recovery.protocol.protocol_errors import ProtocolError

NO_CONTRIBUTION: Mapping[TaskId, Any] = {}


class Phase(Enum):
    """The state of an iteration's head. Other tasks are always in ROUND.

    START: reads its start. ROUND: waits for the body. CUT: the round is complete; the capture between two rounds
    precedes the decision. RETURN: the iteration is over for this path; the marker that says so goes round the body.
    """

    START = "start"
    ROUND = "round"
    CUT = "cut"
    RETURN = "return"


class RoundsSnapshot(Struct, frozen=True):
    """A task's state of rounds in a cut: batches that are set aside are encoded, including markers.

    `skips`: channel -> the number of processed records of its first batch that is set aside.
    """

    current: Path
    phase: Phase
    leaving: Path
    given: dict[ChannelId, Path]
    aside: dict[ChannelId, tuple[bytes, ...]]
    contributions: dict[TaskId, Any]
    enclosing: dict[TaskId, Any]
    is_head: bool
    skips: dict[ChannelId, int] = {}


def is_in_a_round(rounds: RoundsSnapshot) -> bool:
    """Whether the task was in the middle of a round, which only the same parallelism can resume."""
    if rounds.phase is Phase.CUT:
        return False
    is_outermost_head = len(rounds.current) == 1 and rounds.phase is Phase.ROUND and rounds.is_head
    return bool(rounds.given or rounds.aside) or is_outermost_head


class Rounds:
    """The rounds of one task inside an iteration."""

    def __init__(self, task: Task) -> None:
        self.depth = task.depth
        self.depths: dict[ChannelId, int] = {}
        self._before: dict[ChannelId, tuple[ChannelId, ...]] = {}
        self._outer: tuple[ChannelId, ...] = ()
        self._innermost: tuple[ChannelId, ...] = ()
        self._know({channel.id: channel.depth for channel in task.inputs})
        self.is_head = task.iteration is not None
        self.current: Path = (0,) * self.depth
        self.phase = Phase.START if self.is_head else Phase.ROUND
        self.leaving: Path = ()
        self.given: dict[ChannelId, Path] = {}
        self.closed: set[ChannelId] = set()
        self.aside: dict[ChannelId, deque[Queued]] = {}
        self.skips: dict[ChannelId, int] = {}
        self.contributions: dict[TaskId, Any] = {}
        self.cut_after: Epoch | None = None
        self.enclosing: dict[TaskId, Any] = {}
        self.enclosing_cut: Epoch | None = None

    def add_channel(self, channel: ChannelId, depth: int) -> None:
        """Add a channel that only this attempt has: a log whose channel is gone."""
        self._know(self.depths | {channel: depth})

    def _know(self, depths: dict[ChannelId, int]) -> None:
        self.depths = depths
        self._before = {c: tuple(o for o, d in depths.items() if d < depth) for c, depth in depths.items()}
        self._outer = tuple(c for c, d in depths.items() if d < self.depth)
        self._innermost = tuple(c for c, d in depths.items() if d == self.depth)

    def is_readable(self, channel: ChannelId) -> bool:
        """Whether the queued batches of this channel belong to the task's current round."""
        given = self.given
        if channel in given:
            return False
        # Usually a single channel or none: a loop is faster than a generator.
        for other in self._before[channel]:  # noqa: SIM110
            if other not in given and other not in self.closed:
                return False
        return True

    def set_aside(self, channel: ChannelId, queued: Queued, skip: int = 0) -> None:
        """Keep a batch or marker of a later round. Its first `skip` records are already processed."""
        self.aside.setdefault(channel, deque()).append(queued)
        if skip:
            self.skips[channel] = skip

    def drainable(self) -> list[ChannelId]:
        """Channels with batches that were set aside and may be processed now."""
        return [channel for channel in self.aside if self.is_readable(channel)]

    def take_aside(self, channel: ChannelId) -> Queued:
        """The next batch that was set aside."""
        waiting = self.aside[channel]
        queued = waiting.popleft()
        self.skips.pop(channel, None)
        if not waiting:
            del self.aside[channel]
        return queued

    def is_in_a_round(self) -> bool:
        """Whether a cut taken now would not lie between two rounds."""
        return bool(self.given or self.aside) and self.phase is not Phase.CUT

    def awaits(self, channel: ChannelId) -> bool:
        """Whether the round still needs a marker from this channel: neither given nor set aside."""
        if channel in self.given or channel in self.closed:
            return False
        if any(queued.marker is not None for queued in self.aside.get(channel, ())):
            return False
        return not self.is_head or (self.depths[channel] < self.depth) is (self.phase is Phase.START)

    def give(self, channel: ChannelId, marker: Marker) -> None:
        """A readable channel has given its marker."""
        depth = self.depths[channel]
        if len(marker.path) > depth or marker.path != self.current[: len(marker.path)]:
            raise ProtocolError(f"channel {channel}: marker {marker.path} while the task is in round {self.current}")
        self.given[channel] = marker.path
        if depth < self.depth:
            self.enclosing.update(marker.contributions)
            self.enclosing_cut = marker.cut_after or self.enclosing_cut
        else:
            self.contributions.update(marker.contributions)
            self.cut_after = marker.cut_after or self.cut_after

    def close(self, channel: ChannelId) -> None:
        """The channel has ended and none of its batches is set aside any more."""
        self.closed.add(channel)

    def complete_path(self) -> Path | None:
        """The path of the marker that all channels concerned have given, if any."""
        if self.phase is Phase.START:
            return self._common(self._outer)
        path = self._common(self._innermost)
        if path is None or self.is_head or len(path) == self.depth:
            return path
        lower = [c for c, d in self.depths.items() if len(path) <= d < self.depth and c not in self.closed]
        return path if all(self.given.get(c) == path for c in lower) else None

    def start_is_over(self) -> bool:
        """Whether all channels that enter at this head have ended."""
        return self.phase is Phase.START and self.closed.issuperset(self._outer)

    def _common(self, channels: Iterable[ChannelId]) -> Path | None:
        paths: set[Path] = set()
        for channel in channels:
            if channel not in self.closed:
                path = self.given.get(channel)
                if path is None:
                    return None
                paths.add(path)
        if len(paths) > 1:
            raise ProtocolError(f"channels gave different markers for round {self.current}: {paths}")
        return paths.pop() if paths else None

    def advance(self, path: Path) -> None:
        """The round is complete: begin the next one of that level."""
        self.current = (*path[:-1], path[-1] + 1, *(0 for _ in range(self.depth - len(path))))
        self.given = {c: p for c, p in self.given.items() if self.depths[c] < len(path)}
        self.contributions = {}
        self.cut_after = None
        if len(path) < self.depth:
            self.enclosing = {}
            self.enclosing_cut = None

    def begin_round(self) -> None:
        """The head has sent a round into its body. The start stays given; the back edges are read."""
        self.phase = Phase.ROUND

    def leave(self, path: Path) -> None:
        """The head sends the marker of an enclosing level round its body."""
        self.phase = Phase.RETURN
        self.leaving = path
        self.given = {c: p for c, p in self.given.items() if self.depths[c] < self.depth}
        self.contributions = {}
        self.cut_after = None

    def marker(self, path: Path, own: Mapping[TaskId, Any] = NO_CONTRIBUTION) -> Marker:
        """The marker to send on, with the contributions of all received markers."""
        of_enclosing = len(path) < self.depth
        united = {**(self.enclosing if of_enclosing else {}), **self.contributions, **own}
        cut = (self.enclosing_cut if of_enclosing else None) or self.cut_after
        return Marker(path, tuple(sorted(united.items())), cut)

    def snapshot(self, encode: Encode) -> RoundsSnapshot:
        return RoundsSnapshot(
            self.current,
            self.phase,
            self.leaving,
            dict(self.given),
            {c: tuple(_encoded(q, encode) for q in waiting) for c, waiting in self.aside.items()},
            dict(self.contributions),
            dict(self.enclosing),
            self.is_head,
            dict(self.skips),
        )

    def restore(self, snapshot: RoundsSnapshot) -> None:
        """Restore the state. A request for a cut does not outlive its attempt."""
        self.current = snapshot.current
        self.phase = snapshot.phase
        self.leaving = snapshot.leaving
        self.given = dict(snapshot.given)
        self.aside = {c: deque(_as_queued(p) for p in waiting) for c, waiting in snapshot.aside.items()}
        self.skips = dict(snapshot.skips)
        self.contributions = dict(snapshot.contributions)
        self.enclosing = dict(snapshot.enclosing)


def _encoded(queued: Queued, encode: Callable[[Any], bytes]) -> bytes:
    payload = queued.payload
    if isinstance(payload, Stored):
        return payload.load()
    return payload if isinstance(payload, bytes) else encode(payload)


def _as_queued(payload: bytes) -> Queued:
    return Queued(0, payload, restored_marker_in(payload), 0, 0)
