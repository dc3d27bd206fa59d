"""What a frame of a recorded run shows: each process, each channel, the logs, the cuts, the output, and one sentence.

A frame is a flat mapping of plain values, so that two frames can be compared key by key:

    attempt        the number of the attempt
    restored       the cut that it began from; None: from nothing
    process TASK   [life, text of its state, epochs that it has captured and not acknowledged]
    channel N      [[items in its queue, the next one first], [items on the wire]]
    log TASK       [[epoch, records], ...]: the open loop logs
    epoch N        [acknowledged, tasks]: an epoch that is not complete
    cut N          [records in its logs, tasks]: a cut that is complete
    sink NAME      [published records, records that wait for a cut]

An item is the text of its records, `|2` for barrier 2, `?2` for probe 2, `^2` for the end of round 2, or `.` for END.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from backedge.engine.batches.batch import decode
from backedge.engine.batches.columns import as_records
from backedge.engine.operators.base import ReadingRuntime
from backedge.engine.operators.iterate import IterateOperator
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.operators.sink import SinkOperator
from backedge.engine.simulation.checker.record import Captured, Committed, Completed, Event, Finished, Started
from backedge.engine.simulation.telling import tell_steps
from backedge.engine.simulation.world.host import Host
from backedge.engine.simulation.world.world import Happening, World
from backedge.engine.state.keyed_state import KeyedState
from backedge.graphs.ids import ChannelId, TaskId
from backedge.graphs.task_errors import show
from backedge.recovery.protocol.channels import Queued, Stored
from backedge.recovery.protocol.effects import Acknowledge
from backedge.recovery.protocol.messages import Barrier, Data, Marker, marker_in
from backedge.recovery.protocol.orders import Abort, Complete, StartTasks, TellToEnd, Trigger

Frame = dict[str, Any]
RECORD_CHARACTERS_MAX = 24
KEYS_MAX = 6
ORDERS = {
    StartTasks: "starts",
    Trigger: "is asked for epoch {0.epoch}",
    Complete: "learns that cut {0.epoch} is complete",
    TellToEnd: "learns that its loop is empty for good",
    Abort: "learns that epoch {0.epoch} is given up",
}
"""What a process does with an order."""


class WatchedState(KeyedState):
    """Values by key that can be looked at without being put together, which would change what a capture finds."""

    def seen(self) -> dict[Any, Any]:
        """All values by key."""
        return {**self._values, **self._older, **self._recent}


class WatchedRuntime(TaskRuntime):
    """A runtime that says what its operators keep."""

    def told(self) -> str:
        """What the operators of the task keep, in a few words."""
        return "; ".join(filter(None, map(_kept, self._wiring.operators.values())))


def _kept(operator: Any) -> str:
    if isinstance(operator, SinkOperator):
        return f"{operator.open_records} since its last capture" if operator.open_records else ""
    if isinstance(operator, ReadingRuntime):
        return f"{operator.sent} read"
    if isinstance(operator, IterateOperator):
        return f"{operator.gathered} for the next round" if operator.gathered else ""
    values = operator.keyed_state.seen() if isinstance(operator.keyed_state, WatchedState) else {}
    shown = ", ".join(f"{_short(key)}: {_short(value)}" for key, value in list(values.items())[:KEYS_MAX])
    return shown + (f" and {len(values) - KEYS_MAX} more keys" if len(values) > KEYS_MAX else "")


def frame_of(world: World) -> Frame:
    """What there is to see of a world."""
    attempt = world.supervisor.attempt
    restored = world.restored_cut
    frame: Frame = {"attempt": attempt, "restored": None if restored is None else restored.epoch}
    hosts = {task: host for task, host in world.hosts.items() if host.attempt == attempt}
    for task in world.deployment.tasks:
        host = hosts.get(task)
        life = "dead" if task in world.dead else "waits" if host is None else _life(host)
        text = "" if host is None else host.runtime.told()
        frame[f"process {task}"] = [life, text, [] if host is None else [log.epoch for log in _open_logs(host)]]
        if host is not None and (
            logs := [[log.epoch, _logged(log.entries)] for log in _open_logs(host) if log.entries]
        ):
            frame[f"log {task}"] = logs
    numbers = {channel: number for number, channel in enumerate(world.deployment.channels)}
    for channel, number in numbers.items():
        wire = [text for of, item in world.wires.get(channel, ()) if of == attempt for text in _texts(item)]
        queue = [text for item in _queued(hosts.get(channel.receiver), channel) for text in _texts(item)]
        if wire or queue:
            frame[f"channel {number}"] = [queue, wire]
    for epoch, cut in world.coordinator.open.items() if world.coordinator is not None else ():
        if not cut.mode.is_probe:
            frame[f"epoch {epoch}"] = [len(cut.reports), len(world.deployment.tasks)]
    for epoch, cut in world.record.cuts.items():
        snapshots = cut.snapshots.values()
        frame[f"cut {epoch}"] = [[*_logged({r.channel: r.log for s in snapshots for r in s.inputs})], len(snapshots)]
    store = world.services.store
    for name, operator in world.plan.operators.items():
        if operator.kind.is_sink:
            waiting = [record for sink, records in store.prepared.values() if sink == name for record in records]
            frame[f"sink {name}"] = [[*map(_short, store.output(name))], [*map(_short, waiting)]]
    return frame


def _life(host: Host) -> str:
    return "ended" if host.core.ended else "runs" if host.is_started else "restored"


def _open_logs(host: Host) -> list[Any]:
    return [log for log in host.core.logs.epochs.values() if not log.mode.is_probe]


def _logged(entries: Mapping[ChannelId, Iterable[Any]]) -> list[str]:
    return [text for logged in entries.values() for entry in logged for text in _payload(entry.payload, entry.skip)]


def _queued(host: Host | None, channel: ChannelId) -> Iterator[Any]:
    """What waits in a channel: what was set aside for a later round, then a restored log, then the rest."""
    if host is None:
        return
    yield from _set_aside(host, channel)
    for id in (channel._replace(restored=True), channel):
        if id in host.core.inboxes:
            yield from host.core.inboxes[id].queue


def _set_aside(host: Host, channel: ChannelId) -> Iterable[Queued]:
    return () if host.core.rounds is None else host.core.rounds.aside.get(channel, ())


def _texts(item: Any) -> list[str]:
    if isinstance(item, Queued | Data):
        return [_round(item.marker)] if item.marker is not None else _payload(item.payload)
    return [f"{'?' if item.mode.is_probe else '|'}{item.epoch}"] if isinstance(item, Barrier) else ["."]


def _payload(payload: Any, skip: int = 0) -> list[str]:
    encoded = payload.load() if isinstance(payload, Stored) else payload
    if isinstance(encoded, bytes) and (marker := marker_in(encoded)) is not None:
        return [_round(marker)]
    batch = decode(encoded) if isinstance(encoded, bytes) else encoded
    return [*map(_short, as_records(batch.rest(skip).records))]


def _round(marker: Marker) -> str:
    return f"^{'.'.join(map(str, marker.path))}"


def _short(value: Any) -> str:
    text = show(value)
    return text if len(text) <= RECORD_CHARACTERS_MAX else f"{text[: RECORD_CHARACTERS_MAX - 1]}…"


# -- sentences -------------------------------------------------------------------------------------------------------


def said_of(world: World, event: Happening) -> str:
    """What an event that is about to happen is, as a sentence."""
    match event:
        case ("receive", ChannelId() as channel):
            return f"{_words(world.wires[channel][0][1], channel)} reaches {channel.receiver}"
        case ("take" | "part" | "together", TaskId() as task, ChannelId() as channel):
            again = " of the restored log" if channel.restored else ""
            return f"{task} takes {_words(next(_front(world.hosts[task], channel)), channel)}{again}"
        case ("produce", task):
            return f"{task} reads on"
        case ("order" | "abort", TaskId() as task):
            host = world.hosts[task]
            order = (host.orders if event[0] == "order" else host.aborts)[0]
            return f"{task} {ORDERS[type(order)].format(order)}"
        case ("report", int() as index):
            _, task, effect = world.reports[index]
            told = f"acknowledges epoch {effect.epoch}" if isinstance(effect, Acknowledge) else "reports"
            return f"{task} {told} to the supervisor"
        case ("append",):
            return "the supervisor writes the next entry of the chain"
        case ("restore", task):
            return f"{task} {'begins empty' if world.unrestored[task] is None else 'restores its state'}"
        case ("tick",):
            return "time passes"
        case ("crash", tasks):
            return f"{' and '.join(map(str, tasks))} is killed"
        case ("kill_coordinator",):
            return "the supervisor is killed, and another one takes over"
        case ("notice",):
            return "the death is noticed: all processes leave the attempt"
        case _:
            return tell_steps([event], world.plan, world.record.cuts)[0]


def _front(host: Host, channel: ChannelId) -> Iterator[Any]:
    yield from _set_aside(host, channel._replace(restored=False))
    yield host.core.inboxes[channel].front()


def _words(item: Any, channel: ChannelId) -> str:
    (text, *more) = _texts(item)
    if isinstance(item, Queued | Data):
        return f"the end of round {text[1:]}" if item.marker is not None else ", ".join((text, *more))
    if isinstance(item, Barrier):
        return f"{'probe' if item.mode.is_probe else 'barrier'} {item.epoch} from {channel.sender}"
    return f"the end of {channel.sender}"


def turns_in(events: Iterable[Event]) -> Iterator[str]:
    """What changes the course of a run, among the events of a step."""
    for event in events:
        match event:
            case Captured(_, task, epoch) if epoch is not None:
                yield f"{task} saves its state for cut {epoch}"
            case Captured(_, task, _):
                yield f"{task} has ended"
            case Started(attempt, restored):
                yield f"attempt {attempt} begins from {'nothing' if restored is None else f'cut {restored}'}"
            case Completed(_, epoch):
                yield f"cut {epoch} is complete"
            case Committed(_, task, names) if names:
                yield f"{task} publishes its output"
            case Finished():
                yield "the run is finished"
            case _:
                continue
