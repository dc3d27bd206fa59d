"""What operators and sinks promise holds on Ray when processes die: timers, calls, files, what is printed.

Drawn flows (test_drawn_on_ray.py) have loops and rounds, nested too.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, JsonLines, Print, Range
from tests.gates import LOOK_S, Gate, Gated
from tests.on_ray.flows import expect, finish

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


class Reminder:
    """Emits a record some time after it came."""

    def on_record(self, ctx: Any, value: int) -> None:
        ctx.state.set(value)
        ctx.set_timer(ctx.now + 200 + value % 300)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        ctx.emit((ctx.key, ctx.state.get()))
        ctx.state.clear()


def test_every_timer_fires_once_though_its_task_dies(tmp_path: Path):
    flow, gate = Flow("timers"), Gate(tmp_path / "gate")
    numbers = flow.read(Gated(Range(200), gate, 50), name="numbers").key_by(lambda number: number)
    numbers.process(Reminder, name="remind").rebalance().write(Collect(), name="done")
    options: dict[str, Any] = {"snapshots": tmp_path / "cuts", "every": 0.1, "parallelism": 2, "actors": "slice"}
    kills = ["remind@epoch=2", "remind@epoch=4"]
    _, result = finish(flow, gate=gate, kills=kills, spares=1, **options)
    expect(result, [(number, number) for number in range(200)])


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_calls_are_made_at_least_once_and_their_answers_count_once(tmp_path: Path, kind: str):
    """Some calls have no answer before the gate is open: they are in each cut, and made again in each attempt."""
    flow, gate, calls = Flow("calls"), Gate(tmp_path / "gate"), str(tmp_path / "calls")

    def note(number: int) -> int:
        with open(calls, "a") as file:
            file.write(f"{number}\n")
        return -number

    async def ask(number: int) -> int:
        while number % 10 == 0 and not gate.is_open:
            await asyncio.sleep(LOOK_S)
        return note(number)

    def ask_in_thread(number: int) -> int:
        while number % 10 == 0 and not gate.is_open:
            threading.Event().wait(LOOK_S)
        return note(number)

    numbers = flow.read(Gated(Range(300), gate, 100), name="numbers").rebalance()
    asked = numbers.map_async(ask if kind == "async" else ask_in_thread, concurrency=20, name="ask")
    asked.rebalance().write(Collect(), name="done")
    kills = ["ask@epoch=2", "ask@epoch=4"]
    _, result = finish(flow, gate=gate, snapshots=tmp_path / "cuts", every=0.1, actors="slice", kills=kills, spares=1)
    expect(result, [-number for number in range(300)])
    asked_for = Counter(map(int, Path(calls).read_text().split()))
    assert asked_for.keys() == set(range(300))


def test_files_hold_every_record_once_and_nothing_else(tmp_path: Path):
    flow, gate, out = Flow("files"), Gate(tmp_path / "gate"), tmp_path / "out"
    numbers = flow.read(Gated(Range(200), gate, 50), name="numbers").rebalance().map(lambda n: {"n": n}, name="wrap")
    numbers.rebalance().write(JsonLines(str(out), roll_s=0.8), name="done")
    kills = ["sink@epoch=2", "sink@epoch=5"]
    finish(flow, gate=gate, snapshots=tmp_path / "cuts", every=0.1, kills=kills, actors="task", spares=1)
    lines = [line for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert sorted(lines, key=lambda line: (len(line), line)) == [f'{{"n":{n}}}' for n in range(200)]
    # Readers skip what begins with an underscore; there the run keeps its claim of the folder.
    assert all(file.suffix == ".jsonl" for file in out.iterdir() if file.name != "_staging"), sorted(os.listdir(out))


def test_printed_is_what_is_committed_each_line_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flow, gate = Flow("printed"), Gate(tmp_path / "gate")
    flow.read(Gated(Range(150), gate, 50), name="numbers").rebalance().write(Print("n="), name="shown")
    finish(flow, gate=gate, snapshots=tmp_path / "cuts", every=0.1, kills=["shown@epoch=3"], spares=1)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("n=")]
    assert sorted(printed) == sorted(f"n={n}" for n in range(150))
