"""What drop= and rename= do is decided before a run begins: each name once, and no name in vain."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, GraphMismatchError, Items
from backedge.engine.on_ray.api.kept_constants import given_values, values_of
from backedge.engine.on_ray.api.launch_checks import Beginning, beginning_of
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.graphs.describing import describe_plan
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.pipelines import pipelines_of
from backedge.graphs.plan import Plan
from backedge.recovery.cut.cut import OperatorState, TaskSnapshot
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.restore.graph_change import fitted
from backedge.recovery.restore.plan import plan_restore
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.store_errors import NoSuchCutError
from backedge.recovery.stores.task_files import StoredFile


def step(state: int, number: int) -> tuple[int, int]:
    return state + 1, number


def counting(*sources: str, load: Any = None, name: str = "count", version: int = 1) -> Plan:
    """A counter for each source; its name, and that of its sink, begin with that of the source."""
    flow = Flow("shop")
    if load is not None:
        flow.constant("prices", load=load)
    for source in sources or ("in",):
        keyed = flow.read(Items([1]), name=source).key_by(lambda n: n)
        counted = keyed.stateful_map(step, 0, name=f"{source} {name}", state_version=version)
        counted.write(Collect(), name=f"{source} out")
    return flow.plan()


class Job:
    """The folder of a job, and runs that take a cut of each of their pipelines there."""

    def __init__(self, folder: Path) -> None:
        self.options = TaskOptions(root=str(folder), job="shop")
        self.store = CutStore(str(folder), "shop")
        self._numbers = count(1)

    def append(self, entry: Any, *more: Any) -> None:
        self.store.chain()
        assert self.store.create(next(self._numbers), entry, *more)

    def cut(
        self,
        plan: Plan,
        dropped: Collection[str] = (),
        prices: StoredFile | None = None,
        listed: Collection[str] = (),
        kept: Collection[Epoch] = (),
        given_up: Collection[str] = (),
    ) -> Epoch:
        """Begin an attempt, which takes a cut."""
        attempt, deployment = next(self._numbers), expand(plan)
        self._numbers = count(attempt)
        self.append(AttemptStart(Attempt(attempt), None, "c", pipeline=plan.pipeline))
        self.store.describe_graph(plan.hash, describe_plan(plan))
        epoch, files = Epoch(attempt), {}
        for id, task in deployment.tasks.items():
            states = {name: OperatorState(whole=b"counted") for name in task.operators}
            snapshot = TaskSnapshot(id, epoch, Attempt(attempt), states, (), ())
            files[id] = self.store.write_task(Attempt(attempt), epoch, snapshot)
        manifest = Manifest(
            epoch,
            Attempt(attempt),
            Mode.ALIGNED,
            dict.fromkeys(files, epoch),
            {next(iter(files)): tuple(listed)},
            claimant="c",
            kept=(*kept, epoch),
            pipeline=plan.pipeline,
            given_up=tuple(given_up),
        )
        self.append(manifest, files, deployment, {} if prices is None else {"prices": prices}, dropped)
        return epoch

    def begin(
        self, plan: Plan, drop: Collection[str] = (), rename: dict[str, str] | None = None, resume: Any = "latest"
    ) -> Beginning:
        run = RunOptions(snapshots=self.options.root, resume=resume, drop=sorted(drop), rename=rename)
        return beginning_of(plan, self.options, run)

    def restored(self, plan: Plan, drop: Collection[str], epoch: Epoch) -> set[str]:
        """The operators that a run of this plan restores from a cut."""
        (begins,) = self.begin(plan, drop).pipelines
        outline = fitted(self.store.manifest_of(epoch).outline, plan, begins.change)
        return {name for part in plan_restore(outline, expand(plan)).values() for name in part.states}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_state_is_dropped_although_the_graph_is_the_same(job: Job):
    plan = counting()
    epoch = job.cut(plan)
    assert job.restored(plan, [], epoch) == {"in", "in count", "in out"}
    assert job.restored(plan, ["in count"], epoch) == {"in", "in out"}


def test_the_same_command_continues_the_cuts_of_a_run_that_has_dropped_state(job: Job):
    plan, drop = counting(), ["in count"]
    before = job.cut(plan)
    (begins,) = job.begin(plan, drop).pipelines
    after = job.cut(plan, dropped=drop)
    assert job.restored(plan, drop, after) == {"in", "in count", "in out"}
    # A restart of the run itself, which has not planned for this cut.
    outline = job.store.manifest_of(after).outline
    assert fitted(outline, plan, begins.change) is outline
    assert fitted(job.store.manifest_of(before).outline, plan, begins.change).dropped == {"in count"}


def test_a_run_without_the_option_makes_room_for_the_same_drop_again(job: Job):
    plan, drop = counting(), ["in count"]
    job.cut(plan, dropped=drop)
    assert job.restored(plan, drop, job.cut(plan)) == {"in", "in out"}


@pytest.mark.parametrize(
    "changed", [counting(name="tally"), counting(version=2)], ids=["is gone", "is of a new version"]
)
def test_state_that_the_flow_does_not_take_is_dropped_again(job: Job, changed: Plan):
    """The error that asks for the option must not follow from it."""
    job.cut(counting(), dropped=["in count"])
    with pytest.raises(GraphMismatchError, match="--drop in count"):
        job.begin(changed)
    (begins,) = job.begin(changed, ["in count"]).pipelines
    assert begins.change is not None
    assert begins.change.dropped == {"in count"}
    after = job.cut(changed, dropped=["in count"])
    assert "in" in job.restored(changed, ["in count"], after)
    assert job.begin(changed, ["in count"]).pipelines[0].change is None


@pytest.mark.parametrize("sources", [("in",), ("in", "other")], ids=["one pipeline", "two pipelines"])
@pytest.mark.parametrize(("drop", "rename"), [(["cuont"], None), ([], {"cuont": "new"})], ids=["drop", "rename"])
def test_a_misspelt_name_is_refused_although_the_graph_is_the_same(
    job: Job, sources: tuple[str, ...], drop: list[str], rename: dict[str, str] | None
):
    plan = counting(*sources)
    for part in pipelines_of(plan):
        job.cut(part)
    with pytest.raises(GraphMismatchError, match=r"'cuont'.*in count"):
        job.begin(plan, drop, rename)


def test_options_may_stay_in_the_command_when_the_changed_flow_has_a_cut_of_its_own(job: Job):
    longer = counting(name="counted")
    job.cut(counting())
    rename = {"in count": "in counted"}
    assert job.begin(longer, [], rename).pipelines[0].change is not None
    job.cut(longer, dropped=["gone"])
    assert job.begin(longer, ["gone"], rename).pipelines[0].change is None
    # The flow changes once more.
    changed = counting(name="tallied")
    job.begin(changed, ["gone"], {**rename, "in counted": "in tallied"})


def test_a_constant_that_was_loaded_instead_of_a_dropped_value_is_not_loaded_again(job: Job):
    versions = count(1)
    plan = counting(load=lambda: next(versions))
    given = given_values(plan)

    def taken(drop: list[str]) -> bool:
        """Whether the run has the value of the cut."""
        begins = job.begin(plan, drop)
        return bool(values_of(plan, given, begins.constants, set(drop) - begins.loaded).files)

    before, after = job.store.constants.keep([b"1", b"2"], "77aa")
    job.cut(plan, prices=before)
    assert taken([]) and not taken(["prices"])
    job.cut(plan, dropped=["prices"], prices=after)
    assert taken(["prices"])


def test_going_back_to_before_a_sink_is_refused_until_its_output_is_dropped(job: Job):
    before, after = counting(), counting("in", "more")
    first = job.cut(before)
    last = job.cut(after, listed=["more out.0.attempt-2.epoch-9"], kept=[first])
    with pytest.raises(GraphMismatchError, match=f"epoch {last}, .* sink 'more out'.*--drop more out"):
        job.begin(before, resume=first)
    assert job.begin(before, ["more out"], resume=first).pipelines[0].resume_from == first
    assert job.begin(after).pipelines[0].resume_from is None
    with pytest.raises(GraphMismatchError, match="'no such'"):
        job.begin(before, ["more out", "no such"], resume=first)


def test_a_pipeline_is_dropped_once_and_begins_from_the_beginning_if_it_comes_back(job: Job):
    both, alone = counting("in", "more"), counting("in")
    of_in, of_more = pipelines_of(both)
    drop = ["more", "more count", "more out"]
    job.cut(of_in)
    of_both = job.cut(of_more)
    with pytest.raises(GraphMismatchError, match="pipeline 'more' had cuts"):
        job.begin(alone)
    begun = job.begin(alone, drop)
    assert begun.given_up == {"more"}
    assert {part.plan.pipeline: part.change for part in begun.pipelines} == {"in": None}
    job.cut(of_in, dropped=drop, given_up=begun.given_up)
    for options in ([], drop):
        assert job.begin(alone, options).given_up == frozenset()
    with pytest.raises(NoSuchCutError):
        job.begin(both, resume=of_both)
    assert all(part.change is None and part.finished is None for part in job.begin(both).pipelines)
