"""A death is reported with its exit code or signal, the process, its host and its log."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backedge import Collect, Flow, Items, RunFailedError, run
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.supervisor.deaths import WatchedProcess, cause_of, tell_death
from backedge.engine.on_ray.transport.control_messages import Arrival
from backedge.engine.on_ray.transport.mailbox import Address

RELEASE = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
TELLS = platform.system() == "Linux" and RELEASE >= (6, 15)
"""Whether this kernel tells how a process of others has ended."""

OF_RAY = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: TaskActor\n\tpid: 7\n"
    "The actor is dead because its worker process has died. Worker exit type: {kind} Worker exit detail: {detail}"
)
ADVICE = " Some common causes include: (1) the process was killed by the OOM killer due to high memory usage"


@pytest.mark.parametrize(("code", "status"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 11)", -signal.SIGSEGV)])
def test_the_end_of_a_process_is_read_once_its_parent_has_waited_for_it(code: str, status: int):
    with subprocess.Popen([sys.executable, "-c", f"import os; input(); {code}"], stdin=subprocess.PIPE) as process:
        watched = WatchedProcess(process.pid)
        process.communicate(b"\n")
    assert watched.status() == (status if TELLS else None)
    watched.close()
    assert watched.status() is None


def test_what_ray_says_of_every_death_is_left_out_and_a_cause_is_told():
    nothing = "Worker unexpectedly exits with a connection error code 2. End of file." + ADVICE
    assert cause_of(RuntimeError(OF_RAY.format(kind="SYSTEM_ERROR", detail=nothing))) == ""
    memory = "Task was killed due to the node running low on memory."
    assert cause_of(RuntimeError(OF_RAY.format(kind="NODE_OUT_OF_MEMORY", detail=memory))) == memory.removesuffix(".")


def test_a_death_of_which_nothing_is_known_is_told_without_more():
    nothing = RuntimeError("The actor is dead because its worker process has died.")
    assert tell_death(None, None, nothing) == ""
    arrival = Arrival(7, "place", Address("place", "", ""), "10.0.0.7", "/logs/worker-7.err")
    assert tell_death(arrival, 3, nothing) == (
        ": exit code 3; it was process 7 on 10.0.0.7; its log is /logs/worker-7.err"
    )


def test_a_planned_death_is_told_as_planned_and_no_more_also_where_its_signal_is_not_known():
    arrival = Arrival(7, "place", Address("place", "", ""), "10.0.0.7", "/logs/worker-7.err")
    nothing = RuntimeError("The actor is dead because its worker process has died.")
    for status in (None, -signal.SIGKILL):
        assert tell_death(arrival, status, nothing, is_planned=True) == ": killed by SIGKILL, as planned"
    assert tell_death(None, -signal.SIGSEGV, nothing, is_planned=True) == ": killed by SIGSEGV", "another was faster"


def leaving(number: int) -> int:
    os._exit(3)


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_process_that_dies_is_reported_with_its_end_and_its_log_and_ray_lists_it_by_job_and_operator():
    flow = Flow("dying")
    flow.read(Items([1]), name="one").map(leaving, name="step").write(Collect(), name="done")
    with pytest.raises(RunFailedError) as failed:
        run(flow, actors="task", progress=False)
    told = str(failed.value)
    assert "the process of actor one/0 died: " in told and "without snapshots= " in told
    assert "exit code 3" in told or not TELLS
    assert re.search(r"it was process \d+ on \d+\.\d+\.\d+\.\d+; its log is ", told)
    log = re.search(r"its log is (\S+\.err)", told)
    assert log is not None and Path(log[1]).is_file()
    assert any(name.startswith("dying/one/0") for name in reprs_of_actors())


def reprs_of_actors() -> set[str]:
    """What `ray list actors` shows as `repr_name`, without the dashboard that it asks."""
    accessor = cluster.ray._private.state.state._connect_and_get_accessor()
    parse = cluster.ray.core.generated.gcs_pb2.ActorTableData.FromString
    return {parse(table).repr_name for table in accessor.get_actor_table(None, None)}
