"""Carries out the planned faults of a run (`engine/on_ray/planned_faults.py`) when they are due."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from backedge.engine.on_ray.job_store import has_records_in_loops
from backedge.engine.on_ray.planned_faults import Kill, Recurring
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.engine.on_ray.supervisor.switchboard import Switchboard
from backedge.engine.on_ray.transport.control_messages import Die
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Epoch, TaskId


class PlannedKills:
    """The planned faults of one run.

    - left: those that happen once and have not happened yet. recurring: the others.
    """

    def __init__(self, kills: Sequence[Kill], seed: int, story: Story, actors: Switchboard) -> None:
        self.left = [kill for kill in kills if kill.when != "every"]
        self.recurring = Recurring(kills)
        self._chance = random.Random(seed)
        self._story = story
        self._actors = actors

    def on_reached(self, actor: str, pid: int, kill: Kill, task: TaskId) -> None:
        """An actor reports that a fault is due, and waits for it."""
        # Otherwise another task was there first, or the process dies of another fault: one death is that of one fault.
        if kill in self.left and not self._actors.crew.is_to_die(actor):
            self.left.remove(kill)
            self._strike(actor, pid, kill, str(task))

    def strike_loop(self, epoch: Epoch, files: Mapping[TaskId, Any], deployment: Deployment) -> bool:
        """Carry out a fault that waits for a complete cut with records in a loop. Returns whether there was one."""
        kill = next((kill for kill in self.left if kill.when == "loop" and kill.amount <= epoch), None)
        if kill is None or not has_records_in_loops(files, deployment.plan):
            return False
        task = next(task for task in deployment.tasks.values() if kill.concerns(task))
        if self._actors.crew.is_to_die(task.actor):
            return False
        self.left.remove(kill)
        self._strike(task.actor, self._actors.crew.arrivals[task.actor].pid, kill, str(task.id))
        return True

    def strike_at_random(self, now_ms: int) -> None:
        """Carry out the recurring faults that are due."""
        for kill in self.recurring.due(now_ms):
            actor = self._actors.crew.random_member(self._chance)
            if actor is not None:
                self._strike(actor, self._actors.crew.arrivals[actor].pid, kill, actor)
                if self.recurring.on_kill():
                    self._story.say(
                        "the last planned faults came before any cut was complete, so the run made no progress: "
                        f"{kill} leaves too little time; take a longer interval, or cuts more often (every=)"
                    )

    def _strike(self, actor: str, pid: int, kill: Kill, where: str) -> None:
        self._story.on_kill(actor, pid, kill, where)
        self._actors.crew.on_planned_kill(actor)
        self._actors.tell(actor, Die())
        self._actors.flush()
