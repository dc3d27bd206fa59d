"""The flows of a soak, each with what it must give. A gate lets their input come bit by bit: the load is bounded."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from backedge import Collect, Flow, Items, JsonLines, PostgresTable, Range, RunResult, Sink, VertexProgram
from tests.databases.postgres_process import PostgresProcess
from tests.formats.flows_of_cuts import COLUMNS, columns
from tests.gates import Gate, Gated
from tests.on_ray.drivers import LONG, long_trips
from tests.on_ray.flows import trips, trips_made


class Life(Struct):
    """One life of a flow: it reads `count` records, and has a folder of its own."""

    folder: Path
    count: int
    number: int

    @property
    def gate(self) -> Gate:
        return Gate(self.folder / "gate")

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def is_prepared(self) -> bool:
        """Whether a table is written in prepared transactions: in every other life."""
        return self.number % 2 == 0


def collected(_: Life, result: RunResult) -> list[tuple[Any, ...]]:
    """What the sink `done` has collected: tuples, or the values of rows."""
    return [tuple(row.values() if isinstance(row, dict) else row) for row in result.outputs["done"]]


def in_files(life: Life, _: RunResult) -> list[tuple[Any, ...]]:
    """What is in the files of a life."""
    return [tuple(json.loads(line)) for file in life.out.glob("*.jsonl") for line in file.read_text().splitlines()]


class Mixed(Struct):
    """One flow of the mix: how it is made, what its sink must hold in the end, and what it holds.

    - per_s: how many records come in a second.
    - forgives: what matches an error after which a user would resume it: its store or its sink was away.
    """

    make: Callable[[Life], Flow]
    wanted: Callable[[Life], Iterable[Any]]
    found: Callable[[Life, RunResult], Iterable[Any]] = collected
    per_s: float = 15.0
    forgives: str = "nothing"
    options: dict[str, Any] = {}


class Passing(VertexProgram):
    """Sums modulo a prime, round after round; until the gate is open, a round takes a while."""

    combine, message = "sum", np.int64
    PRIME, PAUSE_S = 997, 0.3

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def start(self, vertices: Any) -> dict[str, Any]:
        return {"value": vertices.ids.copy()}

    def send(self, vertices: Any) -> Any:
        return vertices["value"]

    def apply(self, vertices: Any, received: Any) -> dict[str, Any]:
        time.sleep(0.0 if self.gate.is_open else self.PAUSE_S)
        return {"value": received % self.PRIME}


VERTICES, ROUNDS = 200, 80
EDGES = [(vertex, (factor * vertex + 1) % VERTICES) for vertex in range(VERTICES) for factor in (1, 3)]


def rounds(life: Life) -> Flow:
    flow = Flow("rounds")
    edges = flow.read(Items([{"source": a, "target": b} for a, b in EDGES]), name="edges")
    flow.vertex_program(Passing, edges, name="pass", rounds=ROUNDS, gate=life.gate).write(Collect(), name="done")
    return flow


def rounds_wanted(_: Life) -> list[tuple[int, int]]:
    sources, targets = np.array(EDGES).T
    values = np.arange(VERTICES)
    for _ in range(ROUNDS):
        values = np.bincount(targets, values[sources], VERTICES).astype(np.int64) % Passing.PRIME
    return list(enumerate(values.tolist()))


TURNS = 4


async def ask(talk: tuple[int, int]) -> tuple[int, int]:
    """A service that takes a while."""
    await asyncio.sleep(0.02 * (1 + talk[0] % 10))
    return talk[0], talk[1] + 1


def calls(life: Life) -> Flow:
    """Each question is asked several times, one after the other, in a loop; answers are kept."""
    flow = Flow("calls")
    turns = flow.loop("turns")
    questions = flow.read(Gated(Range(life.count), life.gate), name="questions").map(lambda n: (n, 0), name="begin")
    asked = questions.merge(turns).map(tuple, name="talk").map_async(ask, name="ask")
    done, open_ = asked.split(lambda talk: talk[1] == TURNS, name="enough")
    turns.feed(open_)
    done.write(Collect(), name="done")
    return flow


def mix(server: PostgresProcess, dsn: str) -> dict[str, Mixed]:
    """All flows of the mix. `dsn` leads to the server through a proxy."""

    def looping(name: str, files: bool = False, **more: Any) -> Mixed:
        def make(life: Life) -> Flow:
            sink: Sink[Any] = JsonLines(str(life.out), roll_s=5.0) if files else Collect()
            return trips(life.count, name=name, sink=sink, gate=life.gate)

        return Mixed(make, lambda life: trips_made(life.count), in_files if files else collected, **more)

    def into_table(life: Life) -> Flow:
        server.execute(f"CREATE TABLE IF NOT EXISTS done_{life.number} (id integer)")
        flow = Flow("postgres")
        numbers = flow.read(Gated(Range(life.count), life.gate), name="numbers").rebalance()
        sink = PostgresTable(dsn, f"done_{life.number}", prepared=life.is_prepared)
        numbers.map(lambda n: {"id": n}, name="row").rebalance().write(sink, name="done")
        return flow

    def in_table(life: Life, _: RunResult) -> list[Any]:
        rows = server.execute(f"SELECT id FROM done_{life.number}")
        server.execute(f"DROP TABLE done_{life.number}")
        return [*rows, *server.prepared()]

    return {
        "steady": looping("steady", files=True, options={"every": 0.5, "silence_timeout": 60.0}),
        "disk": looping("disk", files=True, forgives="No space left"),
        "objects": looping("objects", forgives="s3://"),
        "rescaled": looping("rescaled"),
        "rounds": Mixed(rounds, rounds_wanted),
        "columns": Mixed(lambda life: columns(life.gate, ""), lambda _: [tuple(row.values()) for row in COLUMNS]),
        "calls": Mixed(calls, lambda life: [(n, TURNS) for n in range(life.count)], per_s=5.0),
        "postgres": Mixed(
            into_table,
            lambda life: [(n,) for n in range(life.count)],
            in_table,
            forgives="database|connection to server",
        ),
        # Its driver does not begin while Ray has no answer for it, on a machine that is very busy.
        "detached": Mixed(
            lambda life: long_trips(life.folder),
            lambda _: trips_made(LONG["count"], LONG["trips"]),
            forgives="the driver is over",
        ),
    }
