"""One event of a partitioned world, with everything that follows at once."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from backedge.engine.simulation.world.world import Happening
from backedge.recovery.cut.cut import Cut
from backedge.recovery.protocol.credit import Credit
from proof.explored_centre import Centres
from proof.explored_places import DATA, END, Places
from proof.tiny_graphs import TinyGraph


class Left(NamedTuple):
    """The events that may still be injected. `ticks`: where nothing else can happen; no run needs that many."""

    epochs: int
    aborts: int
    crashes: int
    early_probes: int
    lost_credits: int = 0
    ticks: int = 12


class State(NamedTuple):
    """A state of the walk: the numbers of the world's parts, and the events that may still be injected.

    - credits: for each channel, what its receiver has sent and its sender has not received, if credit can be late.
    """

    places: tuple[int, ...]
    wires: tuple[int, ...]
    credits: tuple[tuple[Credit, ...], ...]
    centre: int
    left: Left


class RefusedError(Exception):
    """An event that must be legal was refused."""


class Step:
    """One event, and everything that follows at once."""

    def __init__(self, graph: TinyGraph, places: Places, centres: Centres, state: State) -> None:
        self.all_places, self.all_wires, self.centres = places, places.wires, centres
        self.places = list(state.places)
        self.wires = list(state.wires)
        self.credits: list[tuple[Credit, ...]] = list(state.credits)
        self.is_late = graph.late_credit
        self.centre = state.centre
        self.left = state.left
        self.appends_at_once = graph.bounds["epochs"] < 2
        self.reports: deque[Happening] = deque()
        self.cuts: list[Cut] = []

    def take(self, event: Happening) -> State:
        """Carry the event out; raise `RefusedError` if it is refused."""
        centre = self.centres.met[self.centre]
        kind = event[0]
        if kind != "crash" and centre.is_fresh and centre.is_running:
            self._in_centre(("forget",))
        match kind:
            case "epoch":
                self.left = self.left._replace(epochs=self.left.epochs - 1)
                self._in_centre(event)
            case "abort_epoch":
                self.left = self.left._replace(aborts=self.left.aborts - 1)
                self._in_centre(event)
            case "crash":
                self.left = self.left._replace(crashes=self.left.crashes - 1)
                self._in_centre(event)
            case "early_tick":
                self.left = self.left._replace(early_probes=self.left.early_probes - 1)
                self._in_centre(event)
            case "tick":
                self.left = self.left._replace(ticks=self.left.ticks - 1)
                self._in_centre(event)
            case "append" | "restore":
                self._in_centre(event)
            case "credit":
                self._deliver(self.all_places.number_of_channel[event[1]], self._take_credit(event))
            case "lose_credit":
                self.left = self.left._replace(lost_credits=self.left.lost_credits - 1)
                self.all_places.scene.counts["lost_credit"] += 1
                self._take_credit(event)
            case "repeat_credit":
                self._at_place(self.all_places.receivers[self.all_places.number_of_channel[event[1]]], event)
            case "receive":
                self._receive(self.all_places.number_of_channel[event[1]], event)
            case _:
                self._at_place(self.all_places.number_of_task[event[1]], event)
        self._settle()
        return State(tuple(self.places), tuple(self.wires), tuple(self.credits), self.centre, self.left)

    def _take_credit(self, event: Happening) -> Credit:
        channel, position = self.all_places.number_of_channel[event[1]], event[2]
        waiting = list(self.credits[channel])
        taken = waiting.pop(position)
        self.credits[channel] = tuple(waiting)
        return taken

    def _deliver(self, channel: int, credit: Credit) -> None:
        self._at_place(self.all_places.senders[channel], ("credit", self.all_places.channels[channel], credit))

    def _receive(self, channel: int, event: Happening) -> None:
        queue = self.wires[channel]
        item = self.all_wires.queues[queue][0]
        self.wires[channel] = self.all_wires.pop(queue)
        self._at_place(self.all_places.receivers[channel], event, item)

    def _at_place(self, task: int, event: Happening, item: int = -1) -> None:
        outcome = self.all_places.act(self.places[task], event, item)
        if outcome.error is not None:
            raise RefusedError(f"{type(outcome.error).__name__}: {outcome.error}")
        self.places[task] = outcome.place
        for channel, sent in outcome.sent:
            self.wires[channel] = self.all_wires.push(self.wires[channel], sent)
        for channel, credit in outcome.credited:
            if self.is_late:
                self.credits[channel] = (*self.credits[channel], credit)
            else:
                self._deliver(channel, credit)
        for report in outcome.reported:
            self.reports.append(("report", report))

    def _in_centre(self, event: Happening) -> None:
        ruling = self.centres.act(self.centre, event, self.places)
        if ruling.error is not None:
            raise RefusedError(f"{type(ruling.error).__name__}: {ruling.error}")
        self.centre = ruling.centre
        if ruling.cut is not None:
            self.cuts.append(ruling.cut)
        if ruling.has_crashed:
            self.wires = [0] * len(self.wires)
            self.credits = [()] * len(self.credits)
            self.places = [self.all_places.bare] * len(self.places)
        if ruling.files is not None:
            self.places = [self.all_places.with_files(p, f) for p, f in zip(self.places, ruling.files, strict=True)]
        for task, place in ruling.began:
            self.places[task] = place
        for task, order in ruling.orders:
            self.places[task] = self.all_places.tell(self.places[task], order)

    def _settle(self) -> None:
        """Carry out everything that is not a step of its own."""
        met = self.all_places.met
        while not self.centres.met[self.centre].is_over:
            if self.appends_at_once and self.centres.met[self.centre].has_append:
                self._in_centre(("append",))
                continue
            if self.reports:
                self._in_centre(self.reports.popleft())
                continue
            task = next((task for task, place in enumerate(self.places) if met[place].at_once), -1)
            at_once = met[self.places[task]].at_once
            if task >= 0 and at_once is not None:
                self._at_place(task, at_once)
                continue
            channel = self._noted_at_once()
            if channel < 0:
                return
            self._receive(channel, ("receive", self.all_places.channels[channel]))

    def _noted_at_once(self) -> int:
        met, receivers = self.all_places.met, self.all_places.receivers
        for channel, queue in enumerate(self.wires):
            front = self.all_wires.fronts[queue]
            if front > DATA:
                place = met[self.places[receivers[channel]]]
                if channel in (place.notes_ends if front == END else place.notes_barriers):
                    return channel
        return -1
