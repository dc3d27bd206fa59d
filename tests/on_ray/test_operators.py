"""What operators and sinks promise holds on Ray when processes die: timers, calls, files, what is printed.

Drawn flows (test_drawn_on_ray.py) have loops and rounds, nested too.
"""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, JsonLines, Print, Range
from tests.gates import LOOK_S, Gate, Gated
from tests.on_ray.flows import expect, finish

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


COUNT = 200


class Reminder:
    """Emits a record some time after it came."""

    def on_record(self, ctx: Any, value: int) -> None:
        ctx.state.set(value)
        ctx.set_timer(ctx.now + 200 + value % 300)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        ctx.emit((ctx.key, ctx.state.get()))
        ctx.state.clear()


def test_processes_die_and_each_record_is_once_in_all_that_operators_and_sinks_have_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Some calls have no answer before the gate is open: they are in each cut, and made again in each attempt."""
    flow, gate, calls, out = Flow("all"), Gate(tmp_path / "gate"), str(tmp_path / "calls"), tmp_path / "out"

    def note(kind: str, number: int) -> int:
        with open(calls, "a") as file:
            file.write(f"{kind}{number}\n")
        return -number

    async def ask(number: int) -> int:
        while number % 10 == 0 and not gate.is_open:
            await asyncio.sleep(LOOK_S)
        return note("async", number)

    def ask_in_thread(number: int) -> int:
        while number % 10 == 0 and not gate.is_open:
            threading.Event().wait(LOOK_S)
        return note("sync", number)

    numbers = flow.read(Gated(Range(COUNT), gate, 50), name="numbers")
    reminded = numbers.key_by(lambda number: number).process(Reminder, name="remind")
    reminded.rebalance().write(Collect(), name="reminded")
    spread = numbers.rebalance()
    for kind, function in (("async", ask), ("sync", ask_in_thread)):
        asked = spread.map_async(function, concurrency=20, name=f"ask {kind}")
        asked.rebalance().write(Collect(), name=f"asked {kind}")
    spread.map(lambda n: {"n": n}, name="wrap").rebalance().write(JsonLines(str(out), roll_s=0.8), name="files")
    spread.write(Print("n="), name="shown")
    kills = ["remind@epoch=2", "ask async@epoch=3", "ask sync@epoch=4", "files@epoch=5", "shown@epoch=6"]
    options: dict[str, Any] = {"snapshots": tmp_path / "cuts", "every": 0.1, "parallelism": 2, "actors": "slice"}
    _, result = finish(flow, gate=gate, kills=kills, spares=1, **options)
    expect(result, [(number, number) for number in range(COUNT)], "reminded")
    asked_for = set(Path(calls).read_text().split())
    for kind in ("async", "sync"):
        expect(result, [-number for number in range(COUNT)], f"asked {kind}")
        assert asked_for >= {f"{kind}{number}" for number in range(COUNT)}
    lines = [line for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]
    assert sorted(lines, key=lambda line: (len(line), line)) == [f'{{"n":{n}}}' for n in range(COUNT)]
    # Readers skip what begins with an underscore; there the run keeps its claim of the folder.
    assert all(file.suffix == ".jsonl" for file in out.iterdir() if file.name != "_staging"), sorted(os.listdir(out))
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("n=")]
    assert sorted(printed) == sorted(f"n={n}" for n in range(COUNT))
