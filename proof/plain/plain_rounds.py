"""What a task inside iterations must hold between two batches, derived from its trace alone: see `theorem.py`.

A batch or marker that was taken has been passed on, or is set aside. Per channel, the items set aside are the last ones
taken: their batches have not run, earlier ones have. The last marker before them was given; it counts until the task
goes on to the next round of its level.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from backedge.engine.simulation.checker.payloads import hops_in, rest_of
from backedge.engine.simulation.checker.trail import frozen_hops, same_payload
from backedge.graphs.deployment import Task
from backedge.graphs.ids import RESTORED_SENDER, ChannelId, TaskId
from backedge.recovery.protocol.messages import Marker, Path, marker_in
from backedge.recovery.protocol.rounds import Phase, RoundsSnapshot


class PlainRounds:
    """The items that a task has taken but not passed on, by channel, and its current round."""

    def __init__(self, task: Task, restored: RoundsSnapshot | None) -> None:
        self.task = task
        self.depths = {channel.id: channel.depth for channel in task.inputs}
        self.by_edge = {channel.edge.name: channel.depth for channel in task.inputs}
        self.current: Path = (0,) * task.depth
        self.leaving: Path = ()
        self.open: dict[ChannelId, deque[bytes]] = {}
        self.last: dict[ChannelId, Marker] = {}
        self.restored = restored
        if restored is not None:
            self.current = restored.current
            self.leaving = restored.leaving
            self.open = {channel: deque(waiting) for channel, waiting in restored.aside.items()}
            for channel, skip in restored.skips.items():
                self.open[channel][0] = rest_of(self.open[channel][0], skip)
            self.last = {channel: Marker(path) for channel, path in restored.given.items()}

    def took(self, channel: ChannelId, payload: bytes) -> None:
        """An item left its queue."""
        self.open.setdefault(channel._replace(restored=False), deque()).append(payload)

    def holds(self, channel: ChannelId) -> bool:
        """Whether a batch of the channel was taken but has not run: it was set aside, and runs before any other."""
        waiting = self.open.get(channel._replace(restored=False), ())
        return any(marker_in(payload) is None for payload in waiting)

    def ran_in_part(self, channel: ChannelId, payload: bytes) -> str | None:
        """The fault, if any, when user code runs on the first records of a batch that was set aside."""
        waiting = self._waiting(channel)
        count = len(hops_in(payload))
        if hops_in(waiting[0])[:count] != hops_in(payload):
            return "other records ran than the next ones that were set aside"
        waiting[0] = rest_of(waiting[0], count)
        return None

    def _waiting(self, channel: ChannelId) -> deque[bytes]:
        """The items taken from the channel that have not run, starting with the next batch."""
        live = channel._replace(restored=False)
        waiting = self.open.get(live, deque[bytes]())
        while waiting and (marker := marker_in(waiting[0])) is not None:
            self.last[live] = marker
            waiting.popleft()
        return waiting

    def ran(self, channel: ChannelId, payload: bytes) -> str | None:
        """The fault, if any, when user code runs on a batch of a channel, or on several together."""
        waiting = self._waiting(channel)
        if not waiting:
            return "a batch ran that was not taken"
        first = waiting.popleft()
        if same_payload(first, payload):
            return None
        ran, taken = frozen_hops(payload), frozen_hops(first)
        while waiting and len(taken) < len(ran) and marker_in(waiting[0]) is None:
            taken += frozen_hops(waiting.popleft())
        return None if taken == ran else "other batches ran than the next ones that were taken"

    def round_ended(self, path: Path) -> None:
        """The hooks of a round ran: the next of its level begins."""
        self.current = (*path[:-1], path[-1] + 1, *(0 for _ in range(self.task.depth - len(path))))

    def sent(self, depth: int, marker: Marker) -> None:
        """A head sent a marker: into its body it says which round begins, or which enclosing one is left."""
        if self.task.iteration is None or depth < self.task.depth:
            return
        if len(marker.path) == self.task.depth:
            self.current = marker.path
        else:
            self.leaving = marker.path

    def result_released(self) -> None:
        """An inner head is done for a round of the enclosing iteration."""
        self.round_ended(self.leaving)

    # -- at a capture --------------------------------------------------------------------------------------------

    def differences(self, snapshot: RoundsSnapshot | None) -> Iterator[str]:
        """How the snapshot differs from the trace."""
        if snapshot is None:
            left = {str(channel): len(waiting) for channel, waiting in self.open.items() if waiting}
            if left or self.task.depth:
                yield f"no state of rounds, with {left} taken and not passed on"
            return
        if snapshot.current != self.current:
            yield f"round {snapshot.current}, where the trace is in {self.current}"
        given: dict[ChannelId, Marker] = {}
        for channel in {*self.open, *self.last, *snapshot.aside, *snapshot.given}:
            aside = snapshot.aside.get(channel, ())
            if channel in snapshot.skips:
                aside = (rest_of(aside[0], snapshot.skips[channel]), *aside[1:])
            passed, fault = self._passed(channel, aside)
            if fault is not None:
                yield f"channel {channel}: {fault}"
            elif passed is not None and snapshot.given.get(channel) == passed.path:
                given[channel] = passed
            elif snapshot.given.get(channel) is not None:
                yield f"channel {channel}: marker {snapshot.given[channel]} given, the trace says {passed}"
            elif passed is not None and snapshot.phase is not Phase.RETURN and self._counts(passed.path):
                yield f"channel {channel}: marker {passed.path} was taken, and is neither given nor set aside"
        if snapshot.phase is not Phase.RETURN:
            yield from self._united(snapshot, given)

    def _passed(self, channel: ChannelId, aside: tuple[bytes, ...]) -> tuple[Marker | None, str | None]:
        """The last marker passed on, given what is set aside; or why that is impossible."""
        waiting = self.open.get(channel, deque[bytes]())
        before = len(waiting) - len(aside)
        items = list(waiting)
        if before < 0 or not all(map(same_payload, items[before:], aside)):
            return None, f"{len(aside)} items set aside, which are not the last of {len(waiting)} that are open"
        passed = self.last.get(channel)
        for payload in items[:before]:
            marker = marker_in(payload)
            if marker is None:
                return None, "a batch was taken, and is neither processed nor set aside"
            passed = marker
        return passed, None

    def _counts(self, path: Path) -> bool:
        return path >= self.current[: len(path)]

    def _united(self, snapshot: RoundsSnapshot, given: dict[ChannelId, Marker]) -> Iterator[str]:
        """The contributions are those of the markers that count."""
        for is_enclosing, held in ((False, snapshot.contributions), (True, snapshot.enclosing)):
            united: dict[TaskId, Any] = {}
            level = self.task.depth - 1 if is_enclosing else self.task.depth
            if self.restored is not None and self.restored.current[:level] == self.current[:level]:
                united.update(self.restored.enclosing if is_enclosing else self.restored.contributions)
            for channel, marker in given.items():
                if (self._depth(channel) < self.task.depth) is is_enclosing:
                    united.update(marker.contributions)
            if dict(held) != united:
                yield f"contributions {dict(held)}, where the markers say {united}"

    def _depth(self, channel: ChannelId) -> int:
        return self.by_edge[channel.edge] if channel.sender == RESTORED_SENDER else self.depths[channel]
