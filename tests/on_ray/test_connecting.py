"""Who does not find the others when an attempt begins: told, and tried again; nobody waits for ever."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from engine.on_ray import cluster, crew, loop, starting, switchboard
from engine.on_ray.control import Arrival, Begin
from engine.on_ray.crew import Crew, CrewError
from engine.on_ray.frames import Kind, Message, unpack_header
from engine.on_ray.mailbox import Address, Keys
from engine.on_ray.options import RunSpec
from engine.on_ray.supervising import Supervising
from graphs import Collect, Flow, Range
from tests.on_ray.flows import trips, trips_made
from tests.on_ray.in_process import Attending

ENDED = ("grow/0", "done/0")


class RunsHere(Exception):
    """The supervisor is to run in this process."""


def pipe() -> Flow:
    flow = Flow("pipe")
    flow.read(Range(10), name="numbers").rebalance().write(Collect(), name="kept")
    return flow


def test_an_actor_that_hears_nothing_of_a_peer_gives_up(monkeypatch: pytest.MonkeyPatch):
    def lose_hello(message: Message) -> Iterable[Message]:
        return [] if unpack_header(message[0])[0] == Kind.HELLO else [message]

    monkeypatch.setattr(loop, "CONNECT_TIMEOUT_S", 0.3)
    with Attending(pipe(), disturb={("numbers/0", "kept/0"): lose_hello}) as run:
        run.until(lambda: "kept/0" in run.outcomes, "the sink has given up")
        assert run.outcomes["kept/0"].end == "failed"
        assert run.outcomes["kept/0"].reason == "actor kept/0 has heard nothing of numbers/0"
        assert "numbers/0" not in run.outcomes, "the source has heard of its peer"


class Standing:
    """An actor that is there, or has died."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arrive = self
        self.asked = 0

    def remote(self, keys: Keys, on_network: bool) -> Standing:
        self.asked += 1
        return self


def test_actors_that_died_together_are_replaced_together(monkeypatch: pytest.MonkeyPatch):
    """One failure, not one for each: a run may have more actors on a host than restarts."""
    started: list[Standing] = []

    def start_actor(kind: type, *, name: str, **options: Any) -> Standing:
        started.append(Standing(name.removeprefix("trips/")))
        return started[-1]

    def arrival_of(actor: Standing, timeout_s: float) -> Arrival:
        if actor.name in ENDED and len(started) == 4:
            raise cluster.ActorDiedError
        return Arrival(1, "here", Address("here", "ipc:///nowhere"))

    monkeypatch.setattr(crew.cluster, "start_actor", start_actor)
    monkeypatch.setattr(crew.cluster, "machines", lambda: 1)
    monkeypatch.setattr(crew.cluster, "get", arrival_of)
    ours = Crew("trips", "run", "DEFAULT", 0, lambda *_: None)
    names = ("numbers/0", "grow/0", "enough/0", "done/0")
    needs = dict.fromkeys(names, cluster.Needs())
    ours.fill(needs)
    with pytest.raises(CrewError, match=r"actor trips/grow/0 could not be started: .*actor trips/done/0 could not be"):
        ours.arrive(Keys.new())
    assert [actor.asked for actor in started] == [1, 1, 1, 1], "everyone was waited for"
    ours.fill(needs)
    assert [actor.name for actor in started] == [*names, *ENDED]
    assert sorted(ours.arrive(Keys.new())) == sorted(names)


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_an_actor_that_is_not_heard_of_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What it was told to begin is lost once, as with a connection that fails: the next attempt has them all."""
    specs: list[RunSpec] = []
    lost: list[str] = []
    begin = Crew.begin

    def begin_all_but_one(self: Crew, name: str, begun: Begin) -> None:
        if name == "grow/0" and not lost:
            lost.append(name)
        else:
            begin(self, name, begun)

    def run_here(spec: RunSpec) -> None:
        specs.append(spec)
        raise RunsHere

    monkeypatch.setattr(starting, "_start_supervisor", run_here)
    with pytest.raises(RunsHere):
        starting.start(trips(count=50, rate=None), snapshots=tmp_path, every=0.1, actors="task", progress=False)
    monkeypatch.setattr(switchboard, "CONNECT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(Crew, "begin", begin_all_but_one)
    story = Supervising(specs[0]).run()
    assert lost == ["grow/0"]
    assert story.state == "finished", story.lines
    assert any("nothing was heard of actor grow/0" in line for line in story.lines)
    assert sorted(story.outputs["done"]) == trips_made(50)
