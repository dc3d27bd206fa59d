"""Who does not find the others when an attempt begins: told, and tried again; nobody waits for ever."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backedge import BadOptionError, Collect, Flow, JsonLines, Range, start
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.actor import actor_loop as loop
from backedge.engine.on_ray.actor.task_host import TaskHost
from backedge.engine.on_ray.api import starting
from backedge.engine.on_ray.run_spec import RunSpec
from backedge.engine.on_ray.supervisor import actor_starter, crew, switchboard
from backedge.engine.on_ray.supervisor.actor_starter import ActorStarter, FirstActors
from backedge.engine.on_ray.supervisor.crew import Crew, CrewError, NoRoomError
from backedge.engine.on_ray.supervisor.supervising import Supervising
from backedge.engine.on_ray.transport.control_messages import Arrival, Begin, Counts, Meeting, Outcome, TaskOptions
from backedge.engine.on_ray.transport.frames import Kind, Message, unpack_header
from backedge.engine.on_ray.transport.mailbox import Address, Keys
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, TaskId
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from tests.on_ray.flows import trips, trips_made, until
from tests.on_ray.in_process import Attending
from tests.on_ray.supervised import Supervised

ENDED = ("grow/0", "done/0")
NOWHERE = Path("/nowhere")


def ignore(*_: Any) -> None:
    """Of no interest here."""


class RunsHere(Exception):
    """The supervisor is to run in this process."""


def pipe() -> Flow:
    flow = Flow("pipe")
    flow.read(Range(10), name="numbers").rebalance().write(Collect(), name="kept")
    return flow


@pytest.mark.slow
def test_an_actor_that_hears_nothing_of_a_peer_gives_up(monkeypatch: pytest.MonkeyPatch):
    def lose_hello(message: Message) -> Iterable[Message]:
        return [] if unpack_header(message[0])[0] == Kind.HELLO else [message]

    monkeypatch.setattr(loop, "CONNECT_TIMEOUT_S", 0.3)
    with Attending(pipe(), disturb={("numbers/0", "kept/0"): lose_hello}) as run:
        run.until(lambda: "kept/0" in run.outcomes, "the sink has given up")
        assert run.outcomes["kept/0"].end == "failed"
        assert run.outcomes["kept/0"].reason == "actor kept/0 has not heard from numbers/0"
        assert "numbers/0" not in run.outcomes, "the source has heard of its peer"


class Standing:
    """An actor that is there, or has died."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrive = self
        self.asked = 0

    def remote(self, meeting: Meeting) -> Standing:
        self.asked += 1
        return self


def test_actors_that_died_together_are_replaced_together(monkeypatch: pytest.MonkeyPatch):
    """One failure, not one for each: a run may have more actors on a host than restarts."""
    started: list[Standing] = []

    def start_actor(kind: type, *given: Any, name: str, **options: Any) -> Standing:
        started.append(Standing(name.removeprefix("trips/")))
        return started[-1]

    def arrival_of(actor: Standing) -> Arrival:
        if actor.name in ENDED and len(started) == 4:
            raise cluster.ActorDiedError
        return Arrival(1, "here", Address("here", f"ipc://{NOWHERE}"))

    monkeypatch.setattr(crew.cluster, "start_actor", start_actor)
    killed: list[Any] = []
    monkeypatch.setattr(crew.cluster, "kill", killed.append)
    monkeypatch.setattr(crew.cluster, "place", lambda: "elsewhere")
    monkeypatch.setattr(crew.cluster, "machines", lambda: 1)
    monkeypatch.setattr(crew.cluster, "unanswered", lambda *_: [])
    monkeypatch.setattr(crew.cluster, "get", arrival_of)
    ours = Crew(ActorStarter("trips"), 0, ignore, ignore)
    names = ("numbers/0", "grow/0", "enough/0", "done/0")
    needs = dict.fromkeys(names, cluster.Needs())
    ours.fill(needs)
    with pytest.raises(CrewError, match=r"actor trips/grow/0 could not be started: .*actor trips/done/0 could not be"):
        ours.arrive(Attempt(1), Keys.new(), NOWHERE)
    assert [actor.asked for actor in started] == [1, 1, 1, 1], "everyone was waited for"
    assert [actor.name for actor in killed] == list(ENDED), "nothing is left of what only cannot be reached"
    ours.fill(needs)
    assert [actor.name for actor in started] == [*names, *ENDED]
    assert sorted(ours.arrive(Attempt(1), Keys.new(), NOWHERE)) == sorted(names)


class Spare:
    """A process that waits, until its host is lost."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_there = True
        self.look = self

    def remote(self) -> Spare:
        return self


def test_spares_that_died_with_their_host_replace_nobody(monkeypatch: pytest.MonkeyPatch):
    """Each would fail an attempt of its own, and a run may have as many as restarts."""
    ended: list[Any] = []
    monkeypatch.setattr(crew.cluster, "start_actor", lambda kind, *given, name, **options: Spare(name))
    monkeypatch.setattr(crew.cluster, "kill", ended.append)
    monkeypatch.setattr(crew.cluster, "is_over", lambda asked, timeout_s: True)
    monkeypatch.setattr(crew.cluster, "succeeded", lambda asked: asked.is_there)
    ours = Crew(ActorStarter("trips"), 3, ignore, ignore)
    ours.fill_spares()
    lost, living, also_lost = ours._spares
    lost.is_there = also_lost.is_there = False
    ours.fill({"grow/0": cluster.Needs()})
    assert (ours._actors, ended) == ({"grow/0": living}, [also_lost])
    ours.fill(dict.fromkeys(("grow/0", "done/0"), cluster.Needs()))
    assert ours._actors["done/0"].name == "trips/done/0" and ended == [also_lost, lost]


def test_resources_that_ray_refuses_are_named_and_taken_for_no_other_run(monkeypatch: pytest.MonkeyPatch):
    def start_first(*_: Any, **options: Any) -> None:
        raise ValueError("Use the 'num_gpus' keyword instead of 'GPU' in 'resources' keyword")

    monkeypatch.setattr(starting, "start_first", start_first)
    plan = trips(count=1).plan()
    spec = RunSpec(expand(plan), TaskOptions(job="trips"), SnapshotOptions())
    with pytest.raises(BadOptionError, match="Ray cannot start processes with these resources: Use the 'num_gpus'"):
        starting._start_actors([spec], {})


@pytest.mark.parametrize("ends", [BadOptionError("Ray cannot start processes"), KeyboardInterrupt()])
def test_a_start_that_fails_without_cuts_leaves_its_output_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: BaseException
):
    """Nobody can resume the run, so nobody else could ever write there."""

    def start_actors(*_: Any) -> None:
        assert list(tmp_path.rglob("owner.json")), "it is claimed by now"
        raise ends

    monkeypatch.setattr(cluster, "connect", lambda **_: None)
    monkeypatch.setattr(cluster, "cpus", lambda: 1)
    monkeypatch.setattr(starting, "join", ignore)
    monkeypatch.setattr(starting, "_start_actors", start_actors)
    flow = Flow("pipe")
    flow.read(Range(10), name="numbers").write(JsonLines(f"{tmp_path}/out"), name="kept")
    for _ in range(2):
        with pytest.raises(type(ends)):
            start(flow, progress=False)


@pytest.mark.parametrize("is_superseded", [False, True])
def test_a_supervisor_that_has_a_successor_leaves_the_first_actors_to_it(
    monkeypatch: pytest.MonkeyPatch, is_superseded: bool
):
    ended: list[str] = []
    monkeypatch.setattr(crew.cluster, "start_actor", lambda kind, *given, name, **options: name)
    monkeypatch.setattr(crew.cluster, "kill", ended.append)
    ours = Crew(ActorStarter("trips", first={"grow/0": "grow/0 of the driver"}), 0, ignore, ignore)
    ours.fill(dict.fromkeys(("grow/0", "done/0"), cluster.Needs()))
    ours.is_superseded = is_superseded
    ours.dismiss_all()
    assert ended == ["grow/0 of the driver", "trips/done/0"][is_superseded:]


def test_a_supervisor_that_wakes_up_late_leaves_actors_alone_that_have_met_for_a_later_attempt(
    monkeypatch: pytest.MonkeyPatch,
):
    """It claimed attempt 1 and stood still before it asked them; its successor has begun attempt 2 with them."""
    host, ended = TaskHost(supervisor=None), list[str]()
    host._newest = Attempt(2)

    def answer_of(meeting: Meeting) -> Arrival:
        try:
            return host.arrive(meeting)
        except Exception as refusal:
            raise cluster.RayTaskError("arrive", str(refusal), refusal) from refusal

    first = SimpleNamespace(arrive=SimpleNamespace(remote=lambda meeting: meeting))
    monkeypatch.setattr(crew.cluster, "kill", ended.append)
    monkeypatch.setattr(crew.cluster, "place", lambda: "here")
    monkeypatch.setattr(crew.cluster, "machines", lambda: 1)
    monkeypatch.setattr(crew.cluster, "unanswered", lambda *_: [])
    monkeypatch.setattr(crew.cluster, "get", answer_of)
    late = Crew(ActorStarter("trips", first={"grow/0": first}), 0, ignore, ignore)
    late.fill({"grow/0": cluster.Needs()})
    with pytest.raises(CrewError, match="attempt 1 is over: this process has met others for 2"):
        late.arrive(Attempt(1), Keys.new(), NOWHERE)
    assert ended == []


@pytest.mark.parametrize("silent_looks", [0, 3])
def test_the_first_actors_are_found_when_the_cluster_answers_again(monkeypatch: pytest.MonkeyPatch, silent_looks: int):
    """An error while the supervisor is made would end the run, since Ray does not make it a second time."""
    looks: list[str] = []

    def find_actor(name: str, space: str) -> str | None:
        looks.append(name)
        if len(looks) <= silent_looks:
            raise cluster.RayError("the cluster does not answer")
        return name if name == "grow/0" else None

    monkeypatch.setattr(actor_starter.cluster, "find_actor", find_actor)
    monkeypatch.setattr(actor_starter, "FIND_PAUSE_S", 0.0)
    first = FirstActors("trips", "DEFAULT", {name: cluster.ActorName(name, "space") for name in ("grow/0", "done/0")})
    assert first.find() == {"grow/0": "grow/0"}
    assert looks == ["grow/0"] * silent_looks + ["grow/0", "done/0"]


def test_a_cluster_that_stays_silent_is_given_up(monkeypatch: pytest.MonkeyPatch):
    def find_actor(name: str, space: str) -> None:
        raise cluster.RayError("the cluster does not answer")

    monkeypatch.setattr(actor_starter.cluster, "find_actor", find_actor)
    monkeypatch.setattr(actor_starter, "FIND_TIMEOUT_S", 0.0)
    monkeypatch.setattr(actor_starter, "FIND_PAUSE_S", 0.001)
    with pytest.raises(cluster.RayError, match="does not answer"):
        FirstActors("trips", "DEFAULT", {"grow/0": cluster.ActorName("grow/0", "space")}).find()


class Reported(Future[Outcome]):
    """An outcome that Ray's thread has not reported yet."""

    def add_done_callback(self, fn: Any) -> None:
        pass


def test_the_last_counts_of_an_actor_are_heard_before_ray_has_told_that_it_has_left(monkeypatch: pytest.MonkeyPatch):
    counted = Counts(records=7, by_task={TaskId("grow", 0): 7})
    ends = {
        "grow/0": Outcome("stopped", counts=counted),
        "done/0": Outcome("died", "its process is gone"),
        "numbers/0": Outcome("failed", "the disk is full"),
    }

    def over(name: str) -> Reported:
        future = Reported()
        future.set_result(ends[name])
        return future

    def actor(kind: type, *given: Any, name: str, **options: Any) -> Any:
        return SimpleNamespace(take_part=SimpleNamespace(remote=lambda begin: name.removeprefix("trips/")))

    killed: list[Any] = []
    monkeypatch.setattr(crew.cluster, "start_actor", actor)
    monkeypatch.setattr(crew.cluster, "kill", killed.append)
    monkeypatch.setattr(crew.cluster, "place", lambda: "here")
    monkeypatch.setattr(crew.cluster, "future", over)
    board = switchboard.Switchboard(ActorStarter("trips"), 0, ignore)
    board.crew.fill(dict.fromkeys(ends, cluster.Needs()))
    for name in ends:
        board.crew.begin(name, Begin(Attempt(0), name, None, {}, {}, None, ()))  # type: ignore[arg-type]
    assert list(board.stop_all()) == [("grow/0", ends["grow/0"])]
    assert len(killed) == 1, "the process of done/0"
    assert list(board.stop_all()) == [], "they count once"
    board.close()


def test_an_attempt_that_ray_cannot_begin_is_followed_by_another_one(monkeypatch: pytest.MonkeyPatch):
    """As while others fill the object store, through which constants and plans of restores travel."""
    run = Supervised(monkeypatch)
    begin, refusals = run.actors.begin, [cluster.RayError("the object store is full")]

    def begin_later(to_all: Begin) -> None:
        if refusals:
            raise refusals.pop()
        begin(to_all)

    monkeypatch.setattr(run.actors, "begin", begin_later)
    run.begin()
    run.turn()
    run.turn()
    assert "attempt 1 failed: RayError: the object store is full" in run.lines
    assert run.run.driver.runs and run.supervisor.attempt == 2


class Waiting:
    """A crew of two actors, of which `far` has no place before the cluster has been looked at `looks` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
        self.looks = looks
        self.machines = 1
        self.asked: list[tuple[str, bool]] = []
        self.told: list[str] = []
        monkeypatch.setattr(crew.cluster, "start_actor", lambda kind, *given, name, **options: _Asked(self, name))
        monkeypatch.setattr(crew.cluster, "machines", lambda: self.machines)
        monkeypatch.setattr(crew.cluster, "unanswered", self.unanswered)
        monkeypatch.setattr(crew.cluster, "get", lambda name: Arrival(1, "here", Address("here", f"ipc:///{name}/box")))
        monkeypatch.setattr(crew.cluster, "place", lambda: "here")
        self.crew = Crew(ActorStarter("trips"), 0, ignore, lambda waited_s, lacking: self.told.append(lacking))
        self.crew.fill({"near/0": cluster.Needs(), "far/0": cluster.Needs(2, 1, (("tpu", 0.5),))})

    def unanswered(self, pending: list[str], timeout_s: float) -> list[str]:
        self.looks -= timeout_s > 0
        return [name for name in pending if "far" in name and self.looks >= 0]


class _Asked:
    def __init__(self, waiting: Waiting, name: str) -> None:
        self.arrive = self
        self.waiting = waiting
        self.name = name

    def remote(self, meeting: Meeting) -> str:
        self.waiting.asked.append((self.name, meeting.on_network))
        return self.name


LACKING = "actor trips/far/0 needs a machine with 2 CPU, 1 GPU, 0.5 tpu: add one to the cluster, or ask for less"


def test_nobody_waits_for_a_place_for_ever(monkeypatch: pytest.MonkeyPatch):
    waiting = Waiting(monkeypatch, looks=2)
    monkeypatch.setattr(crew, "PLACE_TIMEOUT_S", 0.0)
    with pytest.raises(NoRoomError, match=f"given up after 0 s: {LACKING}"):
        waiting.crew.arrive(Attempt(1), Keys.new(), NOWHERE)
    assert list(waiting.crew.arrivals) == ["near/0"], "its process can be ended though it is stopped"


def test_what_joins_the_cluster_meanwhile_is_another_machine(monkeypatch: pytest.MonkeyPatch):
    """Mailboxes for one host alone could not be reached from there."""
    waiting = Waiting(monkeypatch, looks=1)
    waiting.crew._on_wait = lambda waited_s, lacking: setattr(waiting, "machines", 2)
    waiting.crew.arrive(Attempt(1), Keys.new(), NOWHERE)
    assert waiting.asked == [(f"trips/{name}/0", on) for on in (False, True) for name in ("near", "far")]


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_run_that_waits_for_a_machine_says_so_and_can_be_cancelled(tmp_path: Path):
    """Nothing is left of it, the mailboxes included of those that have a place: the fixture looks."""
    job = start(trips(count=10, resources={"nowhere": 1}), snapshots=str(tmp_path), progress=False)
    story = until(job, lambda story: bool(story.lines), "it is told what the run waits for")
    assert "needs a machine with 1 nowhere: add one to the cluster" in story.lines[0]
    job.cancel()
    assert job.result is not None and job.result.state == "cancelled"


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_an_actor_that_is_not_heard_of_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What it was told to begin is lost once, as with a connection that fails: the next attempt has them all."""
    specs: list[RunSpec] = []
    lost: list[str] = []
    begin = Crew.begin

    def begin_all_but_one(self: Crew, name: str, begun: Begin) -> None:
        is_lost = name == "grow/0" and not lost
        if is_lost:
            lost.append(name)
        else:
            begin(self, name, begun)
        if name == "grow/0":  # on a busy machine others, too, need more than the first attempt gives
            monkeypatch.setattr(switchboard, "CONNECT_TIMEOUT_S", 0.5 if is_lost else 60.0)

    def run_here(of_pipelines: list[RunSpec], constants: object) -> None:
        specs.extend(of_pipelines)
        raise RunsHere

    monkeypatch.setattr(starting, "_start_actors", run_here)
    with pytest.raises(RunsHere):
        starting.start(trips(count=50), snapshots=tmp_path, every=0.1, actors="task", progress=False)
    monkeypatch.setattr(Crew, "begin", begin_all_but_one)
    story = Supervising(specs[0]).run()
    assert lost == ["grow/0"]
    assert story.state == "finished", story.lines
    assert [line for line in story.lines if re.search("nothing was heard of actor .*grow/0", line)], story.lines
    assert sorted(story.outputs["done"]) == trips_made(50)
