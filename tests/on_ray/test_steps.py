"""A process dies at each step of a cut; which cut is restored depends on whether its manifest was durable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from backedge import Collect, Flow, Range, start
from backedge.engine.on_ray.actor.actor_loop import ActorLoop
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.engine.on_ray.transport.mailbox import Mailbox
from backedge.engine.task.driver import TaskDriver
from backedge.recovery.protocol.channel_log import ChannelLogs
from backedge.recovery.protocol.effects import Acknowledge, Capture, Commit
from backedge.recovery.protocol.orders import Abort, Manifest, Trigger
from backedge.recovery.stores.cut_store import CutStore
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.on_ray.fault_points import FaultPoint, HeldAcknowledgement, Setting
from tests.on_ray.flows import Record, begin, finish, held_back, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

COUNT, TRIPS = 40, 5


def begin_trips(number: int) -> Record:
    return number, 0


def as_it_is(record: Any) -> Any:
    return record


def never(view: Any) -> bool:
    return False


def stepping(point: FaultPoint | HeldAcknowledgement, place: str, gate: Gate) -> Flow:
    """`trips` behind a gate, with a fault point at a place: an operator, or the supervisor."""

    def at(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return Setting(point, function) if name == place else function

    flow = Flow("stepping", stop_when=Setting(point, never) if place == "supervisor" else None)
    again = flow.loop("again")
    numbers = flow.read(Gated(Range(COUNT), gate, COUNT // 4), name="numbers").map(
        at("begin", begin_trips), name="begin"
    )
    keyed = numbers.merge(again).key_by(lambda record: record[0])
    grown = keyed.stateful_map(at("grow", held_back(gate)), initial=0, name="grow")
    done, rest = grown.rebalance().split(lambda record: record[1] >= TRIPS, name="enough")
    again.feed(rest.rebalance())
    done.rebalance().map(at("seen", as_it_is), name="seen").write(Collect(), name="done")
    return flow


MADE = [(number, TRIPS) for number in range(COUNT)]

# -- the steps -----------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """Where a process ends, and which cut is restored after that: the one before that epoch's, or this one."""

    place: str
    owner: type[Any]
    method: str
    side: Literal["before", "after"]
    epoch: Callable[..., int | None]
    restores: Literal["earlier", "this", "either"]
    number: int = 2


def captured(driver: TaskDriver, effect: Any) -> int | None:
    return effect.epoch if isinstance(effect, Capture) else None


def acknowledged(driver: TaskDriver, effect: Any) -> int | None:
    """Probes are acknowledged as well, but have no files."""
    return effect.epoch if isinstance(effect, Acknowledge) and effect.epoch in driver.snapshots.files else None


def committed(driver: TaskDriver, effect: Any) -> int | None:
    return effect.epoch if isinstance(effect, Commit) and effect.names else None


def logged(logs: ChannelLogs, inbox: Any, queued: Any) -> int | None:
    return next((log.epoch for log, _ in logs.on[inbox.id] if not log.mode.is_probe), None)


def came_back(logs: ChannelLogs, channel: Any, epoch: int) -> int | None:
    log = logs.epochs.get(epoch)  # type: ignore[call-overload]
    return epoch if log is not None and channel in log.open and not log.mode.is_probe else None


def recorded(store: CutStore, number: int, entry: Any, *_: Any) -> int | None:
    return entry.epoch if isinstance(entry, Manifest) else None


CARRY_OUT = (TaskDriver, "_carry_out_one")
STEPS = {
    "aligned": Step("grow", *CARRY_OUT, "before", captured, "earlier"),
    "captured": Step("grow", *CARRY_OUT, "after", captured, "earlier"),
    "a source has captured": Step("begin", *CARRY_OUT, "after", captured, "earlier"),
    "logging": Step("grow", ChannelLogs, "receive", "after", logged, "earlier"),
    "the barrier is back": Step("grow", ChannelLogs, "seal", "after", came_back, "earlier"),
    "acknowledged": Step("grow", *CARRY_OUT, "after", acknowledged, "either"),
    "the manifest is not written": Step("supervisor", CutStore, "create", "before", recorded, "earlier", 1),
    "the manifest is written": Step("supervisor", CutStore, "create", "after", recorded, "this", 1),
    "the commit is lost": Step("seen", *CARRY_OUT, "before", committed, "this", 1),
    "committed and not confirmed": Step("seen", *CARRY_OUT, "after", committed, "this", 1),
}
TOGETHER = ["the barrier is back", "the commit is lost"]
"""The steps that stand for the others where there is little time."""


@pytest.mark.parametrize(
    "name", [*TOGETHER, *(pytest.param(n, marks=pytest.mark.long) for n in STEPS if n not in TOGETHER)]
)
def test_a_process_that_dies_at_a_step_of_a_cut(name: str, tmp_path: Path, evidence: Evidence):
    step, note, gate = STEPS[name], tmp_path / "note", Gate(tmp_path / "gate")
    point = FaultPoint(str(note), step.owner, step.method, step.side, step.epoch, step.number)
    options: dict[str, Any] = {"snapshots": tmp_path / "cuts", "every": 0.05, "actors": "task", "spares": 1}
    job = begin(stepping(point, step.place, gate), **options)
    reads = iter(range(COUNT // 4, COUNT))

    def one_more(story: Story) -> bool:
        """A record for each look, or there would be no commit."""
        gate.let(next(reads, COUNT))
        return note.exists() and story.restarts == 1 and story.state == "running"

    until(job, one_more, "the process has ended and the run has recovered")
    gate.open()
    result = job.wait()
    evidence.happened(f"processes that ended where {name}", note.exists())
    (restored,) = [restore["epoch"] for restore in result.restores]
    epoch = int(note.read_text())
    is_right = {"earlier": restored < epoch, "this": restored == epoch, "either": restored <= epoch}
    assert is_right[step.restores], f"epoch {restored} was restored after a death in epoch {epoch}"
    evidence.same(result.outputs["done"], MADE)
    evidence.cuts(tmp_path / "cuts")


def restored_again(loop: ActorLoop) -> int:
    return 0


@pytest.mark.long
def test_a_process_that_dies_while_it_restores_is_replaced_as_well(tmp_path: Path, evidence: Evidence):
    point, gate = (
        FaultPoint(str(tmp_path / "note"), ActorLoop, "_set_up", "after", restored_again, 1),
        Gate(tmp_path / "gate"),
    )
    options: dict[str, Any] = {"snapshots": tmp_path / "cuts", "every": 0.2, "actors": "task", "spares": 2}
    _, result = finish(stepping(point, "grow", gate), gate=gate, kills=["numbers@epoch=2"], **options)
    evidence.happened("processes that ended during a recovery", (tmp_path / "note").exists())
    first, second = [restore["epoch"] for restore in result.restores]
    assert first == second is not None
    evidence.same(result.outputs["done"], MADE)
    evidence.cuts(tmp_path / "cuts")


def opened(*_: Any) -> int:
    return 0


def test_a_process_that_dies_before_it_has_reported_its_mailbox_leaves_no_folder(tmp_path: Path, evidence: Evidence):
    """In the next attempt, with its sockets bound: nobody has heard of them. The fixture looks for the folder."""
    point, gate = FaultPoint(str(tmp_path / "note"), Mailbox, "__init__", "after", opened, 1), Gate(tmp_path / "gate")
    options: dict[str, Any] = {"snapshots": tmp_path / "cuts", "every": 0.2, "actors": "task", "spares": 2}
    _, result = finish(stepping(point, "grow", gate), gate=gate, kills=["numbers@epoch=2"], **options)
    evidence.happened("processes that ended with unreported sockets", (tmp_path / "note").exists())
    evidence.same(result.outputs["done"], MADE)
    evidence.cuts(tmp_path / "cuts")


# -- acknowledgements that are late --------------------------------------------------------------------------------


def complete_cuts(folder: Path) -> dict[int, str | None]:
    """Epoch of each complete cut -> the name of its savepoint."""
    entries = CutStore(str(folder), "stepping").chain()
    return {entry.epoch: entry.savepoint for entry in entries if isinstance(entry, Manifest)}


def test_a_late_acknowledgement_of_an_aborted_epoch_completes_nothing(tmp_path: Path, evidence: Evidence):
    note, told, gate = tmp_path / "note", tmp_path / "note.late", Gate(tmp_path / "gate")
    flow = stepping(HeldAcknowledgement(str(note), Abort), "grow", gate)
    job = begin(flow, snapshots=tmp_path / "cuts", every=0.2, actors="task", keep=1_000, cut_timeout=0.4)
    until(job, lambda story: told.exists() and (story.last_epoch or 0) > int(note.read_text()), "a later cut")
    gate.open()
    result = job.wait()
    late, aborted = map(int, told.read_text().split())
    evidence.happened("acknowledgements that came after the abort", late == aborted)
    cuts = complete_cuts(tmp_path / "cuts")
    assert late not in cuts and result.restores == ()
    evidence.survived("cuts completed after the one that was aborted", sum(epoch > late for epoch in cuts))
    evidence.same(result.outputs["done"], MADE)
    evidence.cuts(tmp_path / "cuts")


def test_a_savepoint_and_a_periodic_cut_that_overlap_are_both_complete(tmp_path: Path, evidence: Evidence):
    note, gate = tmp_path / "note", Gate(tmp_path / "gate")
    flow = stepping(HeldAcknowledgement(str(note), Trigger), "grow", gate)
    job = start(flow, snapshots=tmp_path / "cuts", every=0.2, actors="task", keep=1_000, progress=False)
    until(job, lambda story: note.exists(), "a periodic cut is open")
    savepoint = job.savepoint("beside")
    periodic, beside = map(int, (tmp_path / "note.late").read_text().split())
    assert beside == savepoint
    evidence.happened("cuts that were triggered while another was open", periodic < beside)
    until(job, lambda story: (story.last_epoch or 0) >= beside, "both are complete")
    gate.open()
    result = job.wait()
    cuts = complete_cuts(tmp_path / "cuts")
    assert cuts[periodic] is None and cuts[beside] == "beside"
    evidence.survived("overlapping cuts that are complete", 2)
    evidence.same(result.outputs["done"], MADE)
    evidence.cuts(tmp_path / "cuts")
