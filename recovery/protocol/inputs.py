"""The inputs of a task: what waits there, and what may be processed next. Taking it is in `task.py`."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, NoReturn, cast

from backedge.graphs.deployment import Task
from backedge.graphs.ids import ChannelId
from backedge.recovery.protocol.channels import Encode, Inbox, Queued
from backedge.recovery.protocol.life import Life
from backedge.recovery.protocol.protocol_errors import ProtocolError
from backedge.recovery.protocol.rounds import Rounds


class TaskInputs:
    """The receiving ends of a task's channels.

    - inboxes: by channel, including the inboxes of restored logs.
    - rounds: the task's rounds; None outside of iterations.
    - life: whether inputs may be processed (`Life`).
    """

    def __init__(self, task: Task, encode: Encode) -> None:
        self.task = task
        self.inboxes = {c.id: Inbox(c.id, c.is_back, c.depth, c.within_actor, encode) for c in task.inputs}
        self.rounds = Rounds(task) if task.depth else None
        self.life = Life.NEW
        self._queues: list[Sized] = []

    def has_queued(self) -> bool:
        """Whether any item is queued. Usually none is, which is faster to check than `ready`."""
        return any(self._queues)

    def consumed(self, channel: ChannelId) -> int:
        """The number of the last batch of this channel that was consumed."""
        return self.inboxes[channel].consumed

    def is_marker_next(self, channel: ChannelId) -> bool:
        inbox = self.inboxes[channel]
        return inbox.has_batch() and inbox.front().marker is not None

    def ready(self) -> list[ChannelId]:
        """The channels that `take` may be called with, each once, in any order."""
        if not self.life.takes:
            return []
        ready: list[ChannelId] = []
        # Usually one or two inputs: a loop is faster than a comprehension.
        for inbox in self.inboxes.values():
            if inbox.queue and inbox.has_batch():
                ready.append(inbox.id)
        if self.rounds is not None and self.rounds.aside:
            # Batches set aside must be offered once: through the restored channel if it is ready. A rerouted log has no
            # other.
            listed = {channel._replace(restored=False) for channel in ready}
            aside = [channel for channel in self.rounds.drainable() if channel not in listed]
            ready += [c if c in self.inboxes else c._replace(restored=True) for c in aside]
        return ready

    def front(self, channel: ChannelId) -> tuple[Any, int] | None:
        """The batch that `take` would take from, as its payload, and how many of its records are processed already.

        None if the next item is no batch of the current round: a marker, a batch to set aside, a barrier, or none.
        """
        inbox, rounds = self.inboxes[channel], self.rounds
        if rounds is not None:
            live = inbox.live_id
            if not rounds.is_readable(live):
                return None
            if live in rounds.aside:
                queued = rounds.aside[live][0]
                return (queued.payload, rounds.skips.get(live, 0)) if queued.marker is None else None
        queue = inbox.queue
        if not queue or not self.life.takes or not inbox.has_batch():
            return None
        queued = cast("Queued", queue[0])
        return (queued.payload, inbox.skip) if queued.marker is None else None

    def _no_inbox(self, channel: ChannelId) -> NoReturn:
        raise ProtocolError(f"task {self.task.id} has no input channel {channel}")
