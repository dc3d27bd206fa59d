"""A partitioned world, in which an event only costs as much as the parts that it touches.

The parts are the places (a task's process, with its files), the wires, and the centre (coordinator, supervisor, chain
of the job). A part is a number; equal numbers are equal parts. An event at a place depends only on that place and on
the item that it takes from a wire. So its consequence is computed once, in a world that contains nothing else, and
looked up afterwards. The same holds for the centre, which also gets the files when it reads a cut.

The usual code computes the consequence: `World.apply`, on a world that is mostly empty.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, cast

from backedge.engine.simulation.world.host import Host
from backedge.engine.simulation.world.simulated_store import FileId
from backedge.engine.simulation.world.world import Happening
from backedge.engine.task.channel_ends import RemoteChannel
from backedge.graphs.ids import ChannelId, TaskId
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.protocol.credit import Credit
from backedge.recovery.protocol.messages import Barrier, Data, End
from backedge.recovery.protocol.orders import Abort, Complete, Order, StartTasks
from backedge.recovery.protocol.protocol_errors import ProtocolError
from proof.cloning import dump, essence, load
from proof.tiny_graphs import ExploredWorld, TinyGraph

Files = tuple[tuple[FileId, TaskSnapshot], ...]
Reported = tuple[Any, ...]


NOTHING, DATA, BARRIER, END = range(4)
_FRONTS = {Data: DATA, Barrier: BARRIER, End: END}


class Numbers:
    """Numbers objects from 0; equal objects get equal numbers."""

    def __init__(self) -> None:
        self.of_thing: dict[Any, int] = {}

    def of(self, thing: Any) -> int:
        return self.of_thing.setdefault(thing, len(self.of_thing))


class Place:
    """A task's process, if it runs, and the files of that task.

    - steps: what can happen here, each with the channel that must be empty for it, or -1.
    - is_full: an output channel is full, so the task processes nothing.
    - reads: the channels that may be received from; awaits: those of them that have not ended.
    - notes_barriers, notes_ends: the channels whose barrier, or END, is received at once.
    - at_once: what happens here before anything else.
    - known: by output channel, the last credit that has arrived. granted: by input channel, the last credit that was
      sent, and how much has been consumed. Both are empty unless credit can be late.
    """

    def __init__(self, content: bytes, files: int) -> None:
        self.content = content
        self.files = files
        self.essence = 0
        self.is_started = False
        self.is_full = False
        self.steps: tuple[tuple[Happening, int], ...] = ()
        self.reads: frozenset[int] = frozenset()
        self.notes_barriers: frozenset[int] = frozenset()
        self.notes_ends: frozenset[int] = frozenset()
        self.awaits: tuple[int, ...] = ()
        self.at_once: Happening | None = None
        self.known: dict[int, Credit] = {}
        self.granted: dict[int, tuple[Credit, int]] = {}


class Outcome(NamedTuple):
    """The consequence of an event at a place: its new number, items, reports and credit sent; or what went wrong."""

    place: int
    sent: tuple[tuple[int, int], ...] = ()
    reported: tuple[int, ...] = ()
    credited: tuple[tuple[int, Credit], ...] = ()
    error: Exception | None = None


class Wires:
    """Queues of items. The empty one is 0."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.item_essences: list[int] = []
        self.queues: list[tuple[int, ...]] = [()]
        self.essences: list[int] = [0]
        self.fronts: list[int] = [NOTHING]
        self._item_numbers = Numbers()
        self._queue_numbers = Numbers()
        self._essence_numbers = Numbers()
        self._pushed: dict[tuple[int, int], int] = {}
        self._queue_numbers.of(())
        self._essence_numbers.of(())

    def item(self, attempt: int, item: Any) -> int:
        """The number of an item of that attempt."""
        number = self._item_numbers.of((type(item), attempt, item))
        if number == len(self.items):
            self.items.append((attempt, item))
            self.item_essences.append(self._essence_numbers.of((attempt, essence(item))))
        return number

    def push(self, queue: int, item: int) -> int:
        number = self._pushed.get((queue, item))
        if number is None:
            number = self._pushed[queue, item] = self._number((*self.queues[queue], item))
        return number

    def pop(self, queue: int) -> int:
        return self._number(self.queues[queue][1:])

    def _number(self, queue: tuple[int, ...]) -> int:
        number = self._queue_numbers.of(queue)
        if number == len(self.queues):
            self.queues.append(queue)
            self.fronts.append(_FRONTS[type(self.items[queue[0]][1])])
            self.essences.append(self._essence_numbers.of(tuple(self.item_essences[item] for item in queue)))
        return number


class Places:
    """All places encountered, and the consequences of events at them."""

    def __init__(self, graph: TinyGraph, scene: ExploredWorld, wires: Wires) -> None:
        self.graph = graph
        self.scene = scene
        self.wires = wires
        self.tasks: list[TaskId] = list(scene.deployment.tasks)
        self.channels: list[ChannelId] = list(scene.deployment.channels)
        self.number_of_task = {task: number for number, task in enumerate(self.tasks)}
        self.number_of_channel = {channel: number for number, channel in enumerate(self.channels)}
        self.is_logged = [graph.logs_regular or c.is_back for c in scene.deployment.channels.values()]
        self.is_back = [c.is_back for c in scene.deployment.channels.values()]
        self.receivers = [self.number_of_task[channel.receiver] for channel in self.channels]
        self.senders = [self.number_of_task[channel.sender] for channel in self.channels]
        self.reports: list[Reported] = []
        self._report_numbers = Numbers()
        self.files: list[Files] = []
        self._file_numbers = Numbers()
        self.met: list[Place] = []
        self._numbers = Numbers()
        self._essence_numbers = Numbers()
        self._outcomes: dict[tuple[int, Happening, int], Outcome] = {}
        self._pushed: dict[tuple[int, Order], int] = {}
        self._refiled: dict[tuple[int, int], int] = {}
        scene.hosts.clear()
        scene.wires, scene.reports, scene.store.files = {}, [], {}
        scene.driver.abandon()
        self.bare = self.number(None, ())

    # -- making places -------------------------------------------------------------------------------------------

    def number(self, host: Host | None, files: Files) -> int:
        """The number of the place with that process and these files."""
        if host is not None:
            host.offers = None
        content = dump((host, files))
        number = self._numbers.of(content)
        if number == len(self.met):
            self.met.append(self._survey(content, host, files))
        return number

    def _survey(self, content: bytes, host: Host | None, files: Files) -> Place:
        place = Place(content, self.files_number(files))
        place.essence = self._essence_numbers.of((essence(host), essence(files)))
        if host is None:
            return place
        place.is_started = host.is_started
        events = self._events(host)
        place.at_once = self._next_at_once(host)
        gate = self._gate(host)
        place.steps = tuple((event, gate if event[0] in ("produce", "exhaust", "order") else -1) for event in events)
        if host.is_started:
            place.is_full = host.driver.room.is_full()
            into = [self.number_of_channel[c.id] for c in host.core.task.inputs]
            place.reads = frozenset(c for c in into if self._reads(host, c))
            place.awaits = tuple(c for c in into if c in place.reads and not self._has_ended(host, c))
            place.notes_barriers = frozenset(c for c in into if self._only_notes_marks(host, c))
            ends = (c for c in place.notes_barriers if not self.is_back[c])
            place.notes_ends = frozenset(ends if host.core.rounds is None else ())
            if self.graph.late_credit:
                self._survey_credit(place, host)
        return place

    def _survey_credit(self, place: Place, host: Host) -> None:
        for out in host.driver.outputs.values():
            if isinstance(out, RemoteChannel):
                place.known[self.number_of_channel[out.id]] = Credit(out.number, out.consumed, out.window)
        for channel, arrivals in host.driver.arrivals.items():
            place.granted[self.number_of_channel[channel]] = arrivals.said, arrivals.consumed

    def _events(self, host: Host) -> list[Happening]:
        self.scene.hosts[host.id] = host
        found = self.scene.enabled()
        self.scene.hosts.clear()
        host.offers = None
        return found

    def _gate(self, host: Host) -> int:
        outputs = host.core.task.outputs
        # What finds splits acts on what comes back.
        acts_alone = host.is_source and not host.core.task.is_head
        return self.number_of_channel[outputs[0].id] if acts_alone and len(outputs) == 1 else -1

    def _reads(self, host: Host, channel: int) -> bool:
        return self.is_logged[channel] or not host.core.inboxes[self.channels[channel]].queue

    def _has_ended(self, host: Host, channel: int) -> bool:
        return host.core.inboxes[self.channels[channel]].end_received

    def _only_notes_marks(self, host: Host, channel: int) -> bool:
        core = host.core
        inbox = core.inboxes[self.channels[channel]]
        if self.graph.logs_regular:
            return False
        if inbox.is_back:
            return True
        others = [i for i in core.inboxes.values() if not i.is_back and not i.ended and i is not inbox]
        return not inbox.queue and any(other.id not in core.alignment.held for other in others)

    def _loaded(self, place: int) -> tuple[Host | None, Files]:
        """The process and the files, live, in the scene."""
        host, files = cast("tuple[Host | None, Files]", load(self.met[place].content))
        if host is not None:
            host.around = self.scene
        return host, files

    # -- what follows --------------------------------------------------------------------------------------------

    def tell(self, place: int, order: Order) -> int:
        """The place with one more order, if it has a process."""
        number = self._pushed.get((place, order))
        if number is None:
            host, files = self._loaded(place)
            if host is not None:
                (host.aborts if isinstance(order, Abort) else host.orders).append(order)
            number = self._pushed[place, order] = self.number(host, files)
        return number

    def act(self, place: int, event: Happening, item: int = -1) -> Outcome:
        """The consequence of an event at this place; `item` is the received item, if any."""
        outcome = self._outcomes.get((place, event, item))
        if outcome is None:
            outcome = self._outcomes[place, event, item] = self._work_out(place, event, item)
        return outcome

    def _work_out(self, place: int, event: Happening, item: int) -> Outcome:
        scene = self.scene
        host, files = self._loaded(place)
        if host is None:
            raise LookupError(f"{event} at a place without a process")
        scene.hosts[host.id], scene.store.files = host, dict(files)
        if item >= 0:
            scene.wires = {event[1]: deque([self.wires.items[item]])}
        try:
            self._apply(host, event)
        except (ProtocolError, LookupError, ValueError) as error:
            return Outcome(place, error=error)
        else:
            sent = tuple(
                (self.number_of_channel[channel], self.wires.item(attempt, item))
                for channel, wire in scene.wires.items()
                for attempt, item in wire
            )
            reported = tuple(map(self._report, scene.reports))
            credited = tuple((self.number_of_channel[channel], credit) for channel, credit in scene.sent_credits)
            files = tuple(sorted(scene.store.files.items(), key=_file_order))
        finally:
            scene.hosts.clear()
            scene.wires, scene.reports, scene.store.files = {}, [], {}
            scene.sent_credits = []
        return Outcome(self.number(host, files), sent, reported, credited)

    def _apply(self, host: Host, event: Happening) -> None:
        match event:
            case ("credit", channel, credit):
                self.scene.counts["late_credit"] += not host.driver.outputs[channel].on_credit(credit)
                return
            case ("repeat_credit", channel):
                host.driver.arrivals[channel].repeat_credit(self.scene.now_ms)
                self.scene.counts["credit_sent_again"] += bool(self.scene.sent_credits)
                return
            case _:
                pass
        self.scene.apply(event)
        is_step = event[0] == "receive" and not self.is_logged[self.number_of_channel[event[1]]]
        if is_step and event[1] in host.core.ready():
            self.scene.apply(("take", host.id, event[1]))
        while (at_once := self._next_at_once(host)) is not None:
            self.scene.apply(at_once)

    def _next_at_once(self, host: Host) -> Happening | None:
        if host.orders and isinstance(host.orders[0], StartTasks | Complete):
            return ("order", host.id)
        snapshots = host.driver.snapshots
        for epoch in snapshots.captures:
            if epoch not in snapshots.encoded:
                return ("encode", host.id, epoch)
            if self.graph.writes_at_once and epoch in host.writes:
                return ("write", host.id, epoch)
        return None

    def _report(self, reported: Reported) -> int:
        number = self._report_numbers.of(dump(reported))
        if number == len(self.reports):
            self.reports.append(reported)
        return number

    def with_files(self, place: int, files: int) -> int:
        number = self._refiled.get((place, files))
        if number is None:
            host = self._loaded(place)[0]
            number = self._refiled[place, files] = self.number(host, self.files[files])
        return number

    def files_number(self, files: Files) -> int:
        number = self._file_numbers.of(dump(files))
        if number == len(self.files):
            self.files.append(files)
        return number


def _file_order(file: tuple[FileId, TaskSnapshot]) -> tuple[int, int]:
    attempt, epoch, _ = file[0]
    return attempt, epoch or 0
