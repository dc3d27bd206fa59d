"""A flow that waits for daemons of Ray, one of which then dies.

    python -m tests.on_ray.daemons FOLDER DIES

DIES is `daemon`, or `host`: then all processes below the daemon die with it, and before it. Or it is `nothing`: then
the supervisor's daemon and all processes below it stand still, and wake up when a successor leads the run.

A process of its own, for a process can be part of one cluster only. Its last line is JSON.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import sys
import tempfile
from typing import Any

from backedge import start
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.supervisor.supervisor_actor import SupervisorActor
from tests.gates import Gate
from tests.jobs.rays import descendants
from tests.on_ray.flows import trips, until
from tests.on_ray.leftovers import ACTORS, Leftovers, end, has_ended, name_of, parent_of
from tests.on_ray.standing_still import let_stand_still, wake

COUNT = 100
LEAD = {"lead": 1}


def run_and_lose_one(machines: Any, folder: str, dies: str) -> dict[str, Any]:
    """What came of a run that waited for daemons, and lost one of those that joined."""
    gate = Gate(os.path.join(folder, "gate"))
    flow = trips(count=COUNT, gate=gate, resources={"far": 1})
    job = start(flow, snapshots=f"file://{folder}", every=0.2, actors="task", placement="SPREAD", progress=False)
    waited_for = until(job, lambda story: bool(story.lines), "it is told what the run waits for").lines[0]
    far = [machines.add_node(num_cpus=1, resources={"far": 2}) for _ in range(2)]
    story = until(job, lambda story: story.snapshots >= 2, "two cuts are complete")
    daemons = {actor: parent_of(pid) for actor, pid in story.pids.items()}
    processes = {daemon: daemon.all_processes["raylet"][0].process.pid for daemon in far}
    lost = next(daemon for daemon, pid in processes.items() if pid in daemons.values())
    hit = [actor for actor, daemon in daemons.items() if daemon == processes[lost]]
    there = [*descendants(processes[lost]), processes[lost]]
    for pid in there if dies == "host" else ():
        end(pid)
    machines.remove_node(lost, allow_graceful=False)
    until(job, lambda later: later.restarts > story.restarts and later.state == "running", "it has recovered")
    gate.open()
    result = job.wait()
    return {
        "waited_for": waited_for,
        "restarts_before": story.restarts,
        "done": result.outputs["done"],
        "restores": [restore["epoch"] for restore in result.restores],
        "daemons": len(set(daemons.values())),
        "hit": hit,
        "died": sum(has_ended(pid) for pid in there),
    }


def hang_supervisor(daemon: Any, folder: str) -> dict[str, Any]:
    """What came of a run whose supervisor's host stood still, and woke up behind its successor."""
    (other,) = (node["NodeID"] for node in cluster.ray.nodes() if node["RayletSocketName"] != daemon.raylet_socket_name)
    lead = take_lead(other)
    gate = Gate(os.path.join(folder, "gate"))
    options: dict[str, Any] = {"every": 0.2, "actors": "task", "placement": "SPREAD", "progress": False}
    job = start(trips(count=COUNT, gate=gate), snapshots=folder, **options)
    until(job, lambda story: story.snapshots >= 2, "two cuts are complete")
    # The successor has no other place.
    cluster.ray.kill(lead)
    process = daemon.all_processes["raylet"][0].process.pid
    there = [process, *descendants(process)]
    actors = [pid for pid in there if name_of(pid).startswith(ACTORS)]
    supervisors = [pid for pid in actors if name_of(pid).startswith("ray::SupervisorActor")]
    assert len(supervisors) == 1, f"the supervisor is none of {[name_of(pid) for pid in there]}"
    try:
        let_stand_still(there)
        until(job, lambda story: story.restarts == 1 and story.state == "running", "a successor leads the run")
        # Not the daemon, which would end them: Ray has told the others that it is dead.
        wake(actors)
        gate.open()
        result = job.wait()
    finally:
        for pid in there:
            end(pid)
    return {
        "done": result.outputs["done"],
        "restores": [restore["epoch"] for restore in result.restores],
        "woken": len(supervisors),
    }


class Lead:
    """Takes what a supervisor needs."""

    def is_taken(self) -> bool:
        """Answers once it has it."""
        return True


def take_lead(node: str) -> Any:
    """Leave no place for a supervisor on this daemon until what is returned is killed. Each has one.

    Ray does not keep to an affinity that it may give up, and one that it may not would leave the successor no place.
    """
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    there = strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    lead = cluster.ray.remote(Lead).options(num_cpus=0, resources=LEAD, scheduling_strategy=there).remote()
    assert cluster.ray.get(lead.is_taken.remote())
    start_actor = cluster.start_actor

    def placed(kind: type, *arguments: Any, needs: cluster.Needs, **options: Any) -> Any:
        if kind is SupervisorActor:
            needs = needs._replace(resources=tuple(LEAD.items()))
        return start_actor(kind, *arguments, needs=needs, **options)

    cluster.start_actor = placed
    return lead


def main(folder: str, dies: str) -> None:
    """Run, lose a daemon, tell what came of it and what is left."""
    home = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    os.makedirs(os.path.join(tempfile.gettempdir(), "ray"), exist_ok=True)  # where Ray notes the address of a cluster
    head = {"num_cpus": 1, "resources": LEAD, "temp_dir": home, "include_dashboard": False}
    machines = importlib.import_module("ray.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.ray.init(address=machines.address, log_to_driver=False, logging_level=logging.ERROR)
        before = Leftovers.now()
        if dies == "nothing":
            said = hang_supervisor(machines.add_node(num_cpus=1, resources=LEAD), folder)
        else:
            said = run_and_lose_one(machines, folder, dies)
        Leftovers.now().without(before).expect_none()
    finally:
        cluster.disconnect()
        machines.shutdown()
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
