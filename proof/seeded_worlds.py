"""The case and the world of a seed: a flow, its options, and the options of its coordinator."""

from __future__ import annotations

import random
from dataclasses import replace

from msgspec import structs

from backedge.engine.run.driver import StoreRetries
from backedge.engine.simulation.world.world import World
from backedge.engine.simulation.world.world_options import Parts, WorldOptions
from backedge.engine.state.keyed_state import KeyedState
from backedge.engine.state.touched_keys import TouchedKeys
from backedge.engine.task.ports import FlowLimits
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.pipelines import THE_JOB, Pipeline
from backedge.recovery.protocol.restarts import RestartOptions
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.protocol.state_files import COMPACTED_KEYS_MAX
from proof.generated_flows import NAMES, Case, generate
from proof.windows import WindowedWorld

STEPS_SAFE = 3_000
STEPS_LIVE = 20_000
STEPS_EXPECTED = 400
COMPACTING_SHARE = 0.2


class _FewTracked(TouchedKeys):
    tracked_min = 1
    share = 2


class FewTracked(KeyedState):
    """A state that soon has too many touched keys for a delta: it writes everything again."""

    touched_class = _FewTracked


class ManyRecent(KeyedState):
    """A state for which two recent values are many: a delta takes them as they are. So are two captures."""

    class touched_class(TouchedKeys):
        open_max = 2

    merged_at_once_max = 1
    apart_batches = 1


class LargeDeltas(KeyedState):
    """A state whose deltas have too many keys to be compared, so that lists of files grow."""

    class touched_class(TouchedKeys):
        compared_max = -1


def case_of(seed: int, topology: str | None = None) -> Case:
    """The case of a seed. Without a given topology they take turns, so that each occurs."""
    topology = topology or NAMES[seed % len(NAMES)]
    if not compacts(seed):
        return generate(random.Random(seed), topology)
    # With few tasks, many cuts complete.
    return replace(generate(random.Random(seed), topology, long=True), parallelism=1)


def compacts(seed: int) -> bool:
    """Whether the schedule of a seed is about compactions: cuts come often, and lists of files are short."""
    return random.Random(f"compacts {seed}").random() < COMPACTING_SHARE


def _state_of(seed: int) -> type[KeyedState]:
    kind = random.Random(f"tracked {seed}").random()
    if compacts(seed):
        return LargeDeltas if kind < 0.6 else KeyedState
    return FewTracked if kind < 0.3 else ManyRecent if kind < 0.6 else KeyedState


def world_of(
    case: Case, seed: int, parts: Parts, pipeline: Pipeline = THE_JOB, seed_of_job: int | None = None
) -> World:
    """The world of a seed, with random options of the coordinator. Pipelines of a job also have one of the job."""
    rng = random.Random(f"options {seed}")
    mode = Mode(case.policy)
    snapshots = SnapshotOptions(
        mode,
        interval_ms=rng.choice((10, 20, 40)),
        timeout_ms=rng.choice((200, 500, 1000)),
        pause_ms_min=rng.choice((0, 0, 10)),
        open_epochs_max=rng.choice((1, 2, 3)),
        failures_tolerated=rng.choice((3, 1000)),
        keep=rng.choice((1, 3)),
        files_max=random.Random(f"files {seed}").choice((1, 3, 3, 4, 8)),
    )
    records_max = rng.choice((1, 2, 5))
    snapshots = structs.replace(snapshots, patience_ms=rng.choice((None, 0, 10, 40)) if mode is Mode.ALIGNED else None)
    if compacts(seed):
        snapshots = structs.replace(
            snapshots,
            interval_ms=10,
            pause_ms_min=0,
            open_epochs_max=1,
            files_max=random.Random(f"files {seed}").choice((5, 7)),
            # A state of more keys counts as large, and only its deltas are put into one.
            compacted_keys_max=random.Random(f"compacted keys {seed}").choice((4, 8, 8, COMPACTED_KEYS_MAX)),
        )
    slices = rng.random() < 0.5
    tries_max = 2 if seed % 2 else 20
    options = WorldOptions(
        case.parallelism,
        case.actors,
        snapshots,
        records_max=records_max,
        restarts=RestartOptions(restarts_max=1000, pause_ms=rng.choice((0, 20, 100)), pause_ms_max=400),
        retries=StoreRetries(20, tries_max=tries_max, reads_max=tries_max),
        seed=seed if seed_of_job is None else seed_of_job,
        pipeline=pipeline,
        slices=slices,
        together=rng.random() < 0.5,
        turns=rng.random() < 0.5,
        flow=FlowLimits(
            credit_bytes=rng.choice((None, 1, 1, 300, 1_500)),
            back_edge_bytes_min=rng.choice((1, 400, 1_000_000)),
            loop_bytes_max=rng.choice((0, 400, 1_000_000)),
            credit_repeat_ms=60,
            log_budget_bytes=random.Random(f"log budget {seed}").choice((None, None, 1, 200, 400)),
        ),
    )
    if parts.keyed_state is KeyedState:
        parts = replace(parts, keyed_state=_state_of(seed))
    world = WindowedWorld(case.plan, case.inputs, options, parts)
    world.record.conserved = case.conserved
    return world
