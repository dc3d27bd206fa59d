"""What operators promise holds on Ray when processes die: rounds, nested rounds, timers, calls, classes with state."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, Items, JsonLines, Print, Range, Stream, UserFunctionError, run
from tests.on_ray.flows import expect, finish, killed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def double(record: tuple[int, int]) -> tuple[int, int]:
    return record[0], record[1] + 1


def rounds_of(count: int, rounds: int) -> Flow:
    flow = Flow("rounds")
    begun = flow.read(Range(count), name="numbers").map(lambda number: (number, 0), name="begin").rebalance()

    def body(records: Stream[tuple[int, int]]) -> Stream[tuple[int, int]]:
        return records.key_by(lambda record: record[0]).map(double, name="double").rebalance()

    flow.iterate(begun, body, rounds=rounds, name="again").rebalance().write(Collect(), name="done")
    return flow


@pytest.mark.parametrize(("actors", "parallelism"), [("task", 1), ("slice", 2)])
def test_rounds_are_complete_though_their_tasks_die(tmp_path: Path, actors: Any, parallelism: int):
    kills = ["double@records=2000", "again@records=3000"]
    flow = rounds_of(count=100, rounds=200)
    _, result = finish(
        flow, snapshots=tmp_path, every=0.1, actors=actors, parallelism=parallelism, kills=kills, spares=1
    )
    expect(result, [(number, 200) for number in range(100)])
    assert sorted(killed(result)) == sorted(kills)


def test_an_iteration_within_an_iteration_survives_a_death(tmp_path: Path):
    flow = Flow("nested")
    begun = flow.read(Range(20), name="numbers").map(lambda number: (number, 0), name="begin").rebalance()

    def inner(records: Stream[Any]) -> Stream[Any]:
        return records.key_by(lambda record: record[0]).map(double, name="double").rebalance()

    def outer(records: Stream[Any]) -> Stream[Any]:
        return flow.iterate(records, inner, rounds=7, name="inner").rebalance()

    flow.iterate(begun, outer, rounds=20, name="outer").rebalance().write(Collect(), name="done")
    kills = ["double@records=1000", "outer@records=50"]
    _, result = finish(flow, snapshots=tmp_path, every=0.1, actors="slice", parallelism=2, kills=kills, spares=1)
    expect(result, [(number, 140) for number in range(20)])


class Reminder:
    """Emits a record some time after it came."""

    def on_record(self, ctx: Any, value: int) -> None:
        ctx.state.set(value)
        ctx.set_timer(ctx.now + 200 + value % 300)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        ctx.emit((ctx.key, ctx.state.get()))
        ctx.state.clear()


def test_every_timer_fires_once_though_its_task_dies(tmp_path: Path):
    flow = Flow("timers")
    numbers = flow.read(Range(200, rate=100), name="numbers").key_by(lambda number: number)
    numbers.process(Reminder, name="remind").rebalance().write(Collect(), name="done")
    kills = ["remind@epoch=2", "remind@records=40"]
    _, result = finish(flow, snapshots=tmp_path, every=0.1, parallelism=2, actors="slice", kills=kills, spares=1)
    expect(result, [(number, number) for number in range(200)])


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_calls_are_made_at_least_once_and_their_answers_count_once(tmp_path: Path, kind: str):
    calls = str(tmp_path / "calls")

    def note(number: int) -> int:
        with open(calls, "a") as file:
            file.write(f"{number}\n")
        return -number

    async def ask(number: int) -> int:
        await asyncio.sleep(0.05)
        return note(number)

    flow = Flow("calls")
    numbers = flow.read(Range(300, rate=200), name="numbers").rebalance()
    asked = numbers.map_async(ask if kind == "async" else note, concurrency=20, name="ask")
    asked.rebalance().write(Collect(), name="done")
    kills = ["ask@epoch=2", "ask@records=60"]
    _, result = finish(flow, snapshots=tmp_path / "cuts", every=0.1, actors="slice", kills=kills, spares=1)
    expect(result, [-number for number in range(300)])
    asked_for = Counter(map(int, Path(calls).read_text().split()))
    assert asked_for.keys() == set(range(300))


def test_no_more_calls_are_out_at_a_time_than_there_may_be():
    out = 0

    async def ask(number: int) -> int:
        nonlocal out
        out += 1
        await asyncio.sleep(0.001)
        seen, out = out, out - 1
        return seen

    flow = Flow("few")
    flow.read(Range(300), name="numbers").map_async(ask, concurrency=3, name="ask").write(Collect(), name="done")
    result = run(flow, progress=False)
    assert len(result.outputs["done"]) == 300
    assert max(result.outputs["done"]) == 3


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_call_that_takes_too_long_has_failed(kind: str):
    async def ask(number: int) -> int:
        await asyncio.sleep(30 if number == 5 else 0)
        return number

    def ask_in_thread(number: int) -> int:
        threading.Event().wait(30 if number == 5 else 0)
        return number

    flow = Flow("late")
    function = ask if kind == "async" else ask_in_thread
    asked = flow.read(Range(10), name="numbers").map_async(function, timeout=0.3, on_error="dead_letter", name="ask")
    asked.write(Collect(), name="done")
    asked.dead_letters.write(Collect(), name="late")
    result = run(flow, progress=False)
    expect(result, [number for number in range(10) if number != 5])
    expect(result, [5], "late")
    assert result.seconds < 15


def test_a_call_that_takes_too_long_is_told_with_its_limit():
    async def ask(number: int) -> int:
        await asyncio.sleep(30)
        return number

    flow = Flow("late")
    flow.read(Items([5]), name="numbers").map_async(ask, timeout=0.3, name="ask").write(Collect(), name="done")
    with pytest.raises(UserFunctionError) as raised:
        run(flow, progress=False)
    assert "operator 'ask' raised TimeoutError: no answer within timeout=0.3 seconds" in str(raised.value)
    assert "asyncio" not in str(raised.value), "no frame of a library is told as the user's"


class Sums:
    """Keeps a sum that it captures and restores itself."""

    def __init__(self) -> None:
        self.sum = 0

    def on_record(self, ctx: Any, value: int) -> None:
        self.sum += value

    def on_end(self, ctx: Any) -> None:
        ctx.emit(self.sum)

    def capture(self) -> int:
        return self.sum

    def restore(self, state: int) -> None:
        self.sum = state


def test_what_a_class_captures_itself_counts_once(tmp_path: Path):
    flow = Flow("sums")
    numbers = flow.read(Range(200, rate=100), name="numbers").rebalance()
    numbers.process(Sums, name="sum", parallelism=1).write(Collect(), name="done")
    _, result = finish(flow, snapshots=tmp_path, every=0.1, kills=["sum@epoch=2", "sum@epoch=5"], spares=1)
    expect(result, [sum(range(200))])


def test_files_hold_every_record_once_and_nothing_else(tmp_path: Path):
    out = tmp_path / "out"
    flow = Flow("files")
    numbers = flow.read(Range(200, rate=100), name="numbers").rebalance().map(lambda n: {"n": n}, name="wrap")
    numbers.rebalance().write(JsonLines(str(out), roll_s=0.8), name="done")
    kills = ["sink@epoch=2", "sink@epoch=5"]
    _, result = finish(flow, snapshots=tmp_path / "cuts", every=0.1, kills=kills, actors="task", spares=1)
    assert 1 < len(list(out.glob("*.jsonl"))) < result.snapshots, "a file holds the records of several cuts"
    lines = [line for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert sorted(lines, key=lambda line: (len(line), line)) == [f'{{"n":{n}}}' for n in range(200)]
    # Readers skip what begins with an underscore; there the run keeps its claim of the folder.
    assert all(file.suffix == ".jsonl" for file in out.iterdir() if file.name != "_staging"), sorted(os.listdir(out))


def test_printed_is_what_is_committed_each_line_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flow = Flow("printed")
    flow.read(Range(150, rate=100), name="numbers").rebalance().write(Print("n="), name="shown")
    finish(flow, snapshots=tmp_path, every=0.1, kills=["shown@epoch=3"], spares=1)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("n=")]
    assert sorted(printed) == sorted(f"n={n}" for n in range(150))
