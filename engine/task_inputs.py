"""The inputs of a task: what waits there, what may be processed next, and the processing of parts of batches.

Processing whole batches and everything that follows from items which are no batches is in `task.py`.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, NoReturn

from engine.task_life import Life
from graphs.deployment import Channel, Task
from graphs.ids import ChannelId
from recovery.channels import Encode, Inbox, Queued
from recovery.effects import Effect, Process
from recovery.protocol_errors import ProtocolError
from recovery.rounds import Rounds


class TaskInputs:
    """The receiving ends of a task's channels.

    - inboxes: by channel, including the inboxes of restored logs.
    - rounds: the task's rounds; None outside of iterations.
    - life: whether inputs may be processed (`Life`).
    """

    def __init__(self, task: Task, encode: Encode) -> None:
        self.task = task
        self.inboxes = {c.id: _inbox(c, encode) for c in task.inputs}
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
        """Whether the next item of this channel is a round marker."""
        return self.rounds is not None and self.inboxes[channel].has_marker()

    def has_several(self, channel: ChannelId) -> bool:
        """Whether the first two items of this channel are batches."""
        queue = self.inboxes[channel].queue
        return len(queue) > 1 and type(queue[0]) is Queued and type(queue[1]) is Queued

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
        """The payload that `take` would process and its number of processed records; None if it is not a batch.

        A driver may process some of the records with `take_part`, but must leave the last one to `take`.
        """
        inbox = self.inboxes.get(channel) or self._no_inbox(channel)
        rounds = self.rounds
        if rounds is None:
            return inbox.front().payload, inbox.skip
        live = inbox.live_id
        if not rounds.is_readable(live):
            return None
        is_aside = live in rounds.aside
        queued = rounds.aside[live][0] if is_aside else inbox.front()
        if queued.marker is not None:
            return None
        return queued.payload, rounds.skips.get(live, 0) if is_aside else inbox.skip

    def take_part(self, channel: ChannelId, records: int) -> Sequence[Effect]:
        """Process this many more records of the front batch, but not its last one. The batch stays at the front."""
        if records < 1 or not self.life.takes or (front := self.front(channel)) is None:
            raise ProtocolError(f"channel {channel}: {records} records of a batch cannot be taken now")
        payload, skip = front
        inbox = self.inboxes[channel]
        if self.rounds is not None and inbox.live_id in self.rounds.aside:
            self.rounds.skips[inbox.live_id] = skip + records
        else:
            inbox.skip = skip + records
        return [Process(channel, payload, skip, skip + records)]

    def take_more(self, channel: ChannelId) -> Any | None:
        """The payload of the next batch, to be processed with the last one; None if another item comes first."""
        inbox = self.inboxes[channel]
        return inbox.consume().payload if inbox.queue and self._has_more(inbox) else None

    def more(self, channel: ChannelId) -> Any | None:
        """The payload that `take_more` would return."""
        inbox = self.inboxes[channel]
        return inbox.front().payload if inbox.queue and self._has_more(inbox) else None

    def _has_more(self, inbox: Inbox) -> bool:
        if not self.life.takes or not inbox.has_batch():
            return False
        return self.rounds is None or not (inbox.has_marker() or self.rounds.must_wait(inbox.live_id))

    def _no_inbox(self, channel: ChannelId) -> NoReturn:
        raise ProtocolError(f"task {self.task.id} has no input channel {channel}")


def _inbox(channel: Channel, encode: Encode) -> Inbox:
    within = channel.within_actor
    return Inbox(channel.id, is_back=channel.is_back, depth=channel.depth, within_actor=within, encode=encode)
