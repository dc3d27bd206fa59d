"""The parts and options of a simulated world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.run.driver import RunDriver, StoreRetries
from backedge.engine.simulation.world.placement import PlanRestore
from backedge.engine.simulation.world.simulated_store import SimulatedStore
from backedge.engine.simulation.world.simulated_versions import SimulatedDirectory, SimulatedShelf
from backedge.engine.state.compaction import put_together
from backedge.engine.state.keyed_state import KeyedState
from backedge.engine.task.driver import TaskDriver
from backedge.engine.task.ports import FlowLimits
from backedge.graphs.expansion import Actors
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.answers import Segments
from backedge.recovery.protocol.coordinator import Coordinator
from backedge.recovery.protocol.pipelines import THE_JOB, Pipeline
from backedge.recovery.protocol.reliable_line import LineEnd
from backedge.recovery.protocol.restarts import RestartOptions
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.protocol.supervisor import Supervisor
from backedge.recovery.protocol.task import TaskCore
from backedge.recovery.protocol.versions import Shelf, VersionDirectory
from backedge.recovery.restore.plan import plan_restore
from backedge.recovery.restore.restore_task import take_back


@dataclass
class Parts:
    """The classes and functions that a world is built from. To break a rule for a test, replace one by a subclass.

    `store` gets the counts of what has failed.
    """

    core: type[TaskCore] = TaskCore
    coordinator: type[Coordinator] = Coordinator
    keyed_state: type[KeyedState] = KeyedState
    runtime: Callable[..., Any] = TaskRuntime
    driver: type[TaskDriver] = TaskDriver
    plan_restore: PlanRestore = plan_restore
    take_back: Callable[..., TaskRestore] = take_back
    put_together: Callable[..., tuple[dict[str, OperatorState], int]] = put_together
    supervisor: type[Supervisor] = Supervisor
    run_driver: type[RunDriver] = RunDriver
    line_end: type[LineEnd] = LineEnd
    segments: type[Segments] = Segments
    store: Callable[[Counter[str]], SimulatedStore] = SimulatedStore
    versions: Callable[[], SimulatedDirectory] = VersionDirectory
    shelf: Callable[[int], SimulatedShelf] = Shelf


@dataclass
class WorldOptions:
    """`records_max` is the size of a source's batches; `stop_when` is evaluated on complete cuts.

    `slices`: batches may be processed in parts, one record at a time. `together`: several batches may be taken at once.
    `turns`: drivers may take whole turns, in which time passes. `flow`: the limits on what waits in channels.
    `retries`: how the run's driver repeats what the store refused. `pipeline`: the one that this world is.
    """

    parallelism: int = 1
    actors: Actors = "task"
    snapshots: SnapshotOptions = field(default_factory=SnapshotOptions)
    records_max: int = 2
    entries_max: int = 2
    restarts: RestartOptions = field(default_factory=lambda: RestartOptions(restarts_max=50, pause_ms=0))
    retries: StoreRetries = field(default_factory=lambda: StoreRetries(pause_ms=20, reads_max=20))
    seed: int = 0
    pipeline: Pipeline = THE_JOB
    traces: bool = True
    slices: bool = False
    together: bool = False
    turns: bool = False
    flow: FlowLimits = field(default_factory=FlowLimits)
