"""Finds a task that may go first, so that not every order of independent steps must be walked.

Steps of different tasks commute: each takes from the front of its own wires and adds to the back of others. If nothing
that the other tasks do can change the next steps of a task, only its steps are tried, and those of the others later:
whatever they could do before, they can do afterwards with the same outcome (Godefroid calls these persistent sets). No
task waits for ever, because a walk has no cycles: each step uses something up. A task is alone in this sense if

1. every wire that it may read has an item. Later items of the other tasks come behind it.
2. it gets no orders. With one epoch, no abort, no probe in progress and none before everything is quiet, the
   coordinator has few orders: a cut is complete, which changes nothing if no other epoch is open; end; and capture
   because all senders have ended. The last two are not given to a task of a loop that has something to read: its loop
   has not run dry and its round is not over, so no task of its loop can end.
3. the time of its reports does not matter. Acknowledgements of different tasks may arrive in any order, because a cut
   needs them all. An epoch that may still be requested depends on which tasks have ended by then, and triggers the
   heads; so until then heads are not alone, and neither is a task that is about to read an END.

A source is alone once it can no longer be triggered. A task outside of the loops is alone with a batch of its only live
channel: orders to it have the same effect before and after the batch.

A crash takes everything, and in any order it comes at the same place: where a cut completes.
"""

from __future__ import annotations

from backedge.engine.simulation.world.world import Happening
from proof.explored_centre import Centres
from proof.explored_places import DATA, END, Place, Places
from proof.explored_steps import State
from proof.tiny_graphs import TinyGraph


class Alone:
    """Finds a task that may go first."""

    def __init__(self, graph: TinyGraph, places: Places, centres: Centres) -> None:
        deployment = places.scene.deployment
        in_loops = {task for component in deployment.components for task in component.tasks}
        tasks = list(enumerate(deployment.tasks.values()))
        self.places = places
        self.centres = centres
        self.is_used = graph.writes_at_once and graph.bounds["epochs"] < 2 and not graph.bounds["aborts"]
        # A task that may capture at any time is never alone, and neither is one whose next steps depend on credit.
        self.is_used = self.is_used and not graph.overtakes and graph.flow.credit_bytes is None
        self.is_used = self.is_used and len(deployment.components) == 1
        self.is_used = self.is_used and not any(task.is_source and task.is_head for _, task in tasks)
        self.sources = [number for number, task in tasks if task.is_source]
        self.heads = [number for number, task in tasks if task.is_head]
        self.between = [number for number, task in tasks if task.id in in_loops and not task.is_head]
        self.outside = [number for number, task in tasks if task.id not in in_loops and not task.is_source]

    def steps(self, state: State) -> list[Happening]:
        """The steps of a task that may go first; empty if there is none."""
        if not self.is_used or not self.centres.met[state.centre].is_calm or state.left.early_probes:
            return []
        may_trigger = state.left.epochs > 0
        for task in () if may_trigger else self.sources:
            place = self.places.met[state.places[task]]
            if place.steps:
                return [event for event, _ in place.steps]
        for task in self.outside:
            place = self.places.met[state.places[task]]
            if len(place.awaits) == 1 and not place.steps and self._fronts(place, state) == [DATA]:
                return self._steps_at(place)
        for task in self.between if may_trigger else (*self.heads, *self.between):
            place = self.places.met[state.places[task]]
            if not all(state.wires[channel] for channel in place.awaits):
                continue
            if may_trigger and END in self._fronts(place, state):
                continue
            if place.steps or place.awaits:
                return self._steps_at(place)
        return []

    def _fronts(self, place: Place, state: State) -> list[int]:
        return [self.places.wires.fronts[state.wires[channel]] for channel in place.awaits]

    def _steps_at(self, place: Place) -> list[Happening]:
        steps = [event for event, _ in place.steps]
        return steps + [("receive", self.places.channels[channel]) for channel in place.awaits]
