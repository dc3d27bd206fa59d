"""What systems lose, do twice and pay for twice when their processes die: each has the same conversations with a model.

A model on loopback answers after 0.05 to 0.8 s and counts; a call that comes again is a new call to it. Each system is
a small program in `bench/peers/losses_*.py` that has conversations of one to six calls, eight at a time. First it runs
undisturbed. Then its main process, or one in which Ray runs code for it, is killed again and again, and at last all of
its processes, with the Ray that it has started. When the main process has died, the rest is ended and the program is
started again. A kill comes some time after new progress; these times are drawn, and the same for all systems.

- lost: conversations that are not in the storage of the program at the end. ended_twice: those that are in it again.
- answered_again: calls made again although the conversation had gone on after their answer: its next call was made, or,
  since none follows the last one, a second passed without a kill. running_again: all others made again.
- progress_s: from a kill to the first call that was never made before.
- lines: those of the program without docstrings and comments, as `ast.unparse` writes them.

With fewer conversations (`--records`) there are fewer kills. With all of them, the table of docs/losses.md is written.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from aiohttp import web

from bench.measuring import Limit, Report, Samples
from bench.options import Options
from bench.ours import BenchError
from bench.session import NICENESS, ROOT
from examples.cyclic.loopback import serve

OURS = "backedge"
SYSTEMS = {
    OURS: (),
    "langgraph": ("langgraph", "aiosqlite"),
    "dbos": ("dbos",),
    "by_hand": (),
    "ray_data": ("fsspec", "pandas"),
}
"""The programs, and the optional modules that each needs."""

CONVERSATIONS = 500
CALLS_MAX = 6
KILLS = 20
CALL_S = (0.05, 0.8)
PAUSE_S = (0.5, 4.0)
ENDED_S = 1.0
TIMEOUT_S = 600.0
RESTARTS_MAX = 3 * KILLS

NOT_THE_PROGRAMS = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Processes of Ray that run no code of a program. A node ends with its agents."""

DOCUMENTED = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

PAGE = Path(ROOT, "docs", "losses.md")
BEGIN, END = "<!-- written by `python -m bench losses` -->\n", "<!-- until here -->\n"

Question = tuple[int, int]
"""A conversation, and how often the model has answered in it."""

Calls = defaultdict[Question, list["Call"]]
"""All calls of each question, in the order in which they were made."""


def run(options: Options) -> Report:
    """Have each system run undisturbed, and then be killed."""
    conversations = options.records or CONVERSATIONS
    found: dict[str, Losses] = {}
    for system, needed in SYSTEMS.items():
        if all(importlib.util.find_spec(module) for module in needed):
            found[system] = of_system(system, conversations, options.seed)
            print(f"{system}: {found[system]}", file=sys.stderr, flush=True)
    if conversations == CONVERSATIONS and found.keys() == SYSTEMS.keys():
        write_page(found)
    return compare(found, conversations)


class Losses(NamedTuple):
    """What a system has lost, made again and needed. `answers_per_s`: undisturbed."""

    kills: int
    lost: int
    ended_twice: int
    needed: int
    paid: int
    answered_again: int
    running_again: int
    progress_s: float
    answers_per_s: float
    lines: int


def compare(found: Mapping[str, Losses], conversations: int) -> Report:
    """The limits: ours loses nothing, and pays for nothing again that was answered."""
    ours = found[OURS]
    none = ("lost", "ended_twice", "answered_again")
    kills = KILLS * conversations // CONVERSATIONS + 1
    rates = {system: Samples((losses.answers_per_s,)) for system, losses in found.items()}
    figures = {OURS: rates.pop(OURS)}
    return Report(
        bench="losses",
        unit="answers/s",
        turns=1,
        figures=figures,
        peers=rates,
        ratios={peer: figures[OURS].over(rate) for peer, rate in rates.items()},
        limits=(
            *(Limit(f"{name}: {getattr(ours, name)}, none", getattr(ours, name) == 0) for name in none),
            Limit(f"kills: {ours.kills}, at least {kills}", ours.kills >= kills),
        ),
        ours=OURS,
        more={"losses": {system: losses._asdict() for system, losses in found.items()}},
    )


def of_system(system: str, conversations: int, seed: int) -> Losses:
    """Have a system run twice, and count."""
    model = Model(seed)
    with started(system, model, conversations) as program:
        program.until(program.has_ended)
    answered_s = sorted(call.answered_s for calls in model.calls.values() for call in calls if call.answered_s)
    answers_per_s = len(answered_s) / (answered_s[-1] - model.calls[0, 0][0].at_s)

    model = Model(seed)
    with started(system, model, conversations) as program:
        kills_s = kill_some(program, model, KILLS * conversations // CONVERSATIONS, seed)
        program.until(program.has_ended)
        ended = Counter(program.ended())
    needed = sum(model.length(conversation) for conversation in range(conversations))
    answered_again, running_again = divide(model.calls, kills_s)
    return Losses(
        kills=len(kills_s),
        lost=conversations - len(ended),
        ended_twice=ended.total() - len(ended),
        needed=needed,
        paid=sum(map(len, model.calls.values())),
        answered_again=answered_again,
        running_again=running_again,
        progress_s=median(progress(model.calls, kills_s)),
        answers_per_s=answers_per_s,
        lines=lines_of(system),
    )


# -- the model ---------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """When a call was made, and when it was answered; None: it is running, or its caller was gone by then."""

    at_s: float
    answered_s: float | None = None


class Model:
    """Answers, and counts.

    - calls: all that were made. new_s: when a question was last asked for the first time.
    """

    def __init__(self, seed: int) -> None:
        self.calls: Calls = defaultdict(list)
        self.new_s = 0.0
        self._seed = seed

    async def answer(self, sent: web.BaseRequest) -> web.Response:
        asked = await sent.json()
        question = asked["conversation"], len(asked["messages"])
        call = Call(time.monotonic())
        if question not in self.calls:
            self.new_s = call.at_s
        self.calls[question].append(call)
        await asyncio.sleep(self._seconds(question))
        if sent.transport is not None:
            call.answered_s = time.monotonic()
        is_last = len(asked["messages"]) + 1 == self.length(asked["conversation"])
        return web.json_response({"message": "done" if is_last else "go on"})

    def length(self, conversation: int) -> int:
        """How often the model answers in a conversation."""
        return random.Random(f"{self._seed} {conversation}").randint(1, CALLS_MAX)

    def _seconds(self, question: Question) -> float:
        """Short calls are as frequent as long ones, on a scale of powers."""
        least, most = CALL_S
        return least * (most / least) ** random.Random(f"{self._seed} {question}").random()


def divide(calls: Mapping[Question, Sequence[Call]], kills_s: Sequence[float]) -> tuple[int, int]:
    """How many calls were made again after which the conversation had gone on, and how many others."""
    answered = running = 0
    for (conversation, number), made in calls.items():
        following = calls.get((conversation, number + 1))
        for before, again in pairwise(made):
            if following:
                has_gone_on = following[0].at_s < again.at_s
            else:
                sent_s = before.answered_s
                has_gone_on = sent_s is not None and not any(abs(at_s - sent_s) < ENDED_S for at_s in kills_s)
            answered += has_gone_on
            running += not has_gone_on
    return answered, running


def progress(calls: Mapping[Question, Sequence[Call]], kills_s: Sequence[float]) -> list[float]:
    """The seconds from each kill to the next question that had never been asked, where there was one."""
    new_s = sorted(made[0].at_s for made in calls.values())
    return [next(at_s for at_s in new_s if at_s > kill_s) - kill_s for kill_s in kills_s if new_s[-1] > kill_s]


# -- the programs ------------------------------------------------------------------------------------------------------


def command(system: str) -> list[str]:
    return ["-m", f"bench.peers.losses_{system}"]


class Program:
    """One of the programs, which is started again until it ends by itself.

    - restarts: how often it was started again.
    """

    def __init__(self, system: str, url: str, folder: str, conversations: int) -> None:
        self.restarts = 0
        self._system = system
        self._folder = Path(folder)
        self._command = [sys.executable, *command(system), url, folder, str(conversations)]
        own = {"HOME": folder, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", NICENESS: "0", "PYTHONPATH": ROOT}
        self._environment = {**os.environ, **own}
        self._environment.pop("RAY_ADDRESS", None)
        self._start()

    def _start(self) -> None:
        with (self._folder / "out").open("wb") as out, (self._folder / "errors").open("ab") as errors:
            self._main = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=out, stderr=errors, start_new_session=True
            )

    def has_ended(self) -> bool:
        return self._main.poll() == 0

    def ended(self) -> list[int]:
        """The conversations that the program has at its end."""
        return json.loads((self._folder / "out").read_text().splitlines()[-1])

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait, and start the program again when it dies."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while not holds():
            if time.monotonic() > deadline_s or self.restarts > RESTARTS_MAX:
                words = (self._folder / "errors").read_text(errors="replace")[-2_000:]
                raise BenchError(f"{self._system} does not go on after {self.restarts} restarts: {words}")
            if self._main.poll():
                self.end()
                self.restarts += 1
                self._start()
            time.sleep(0.02)

    def let_run(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end_s or self.has_ended())

    def kill_one(self, rng: random.Random) -> None:
        """Kill the main process or one in which Ray runs code of the program."""
        workers = [
            pid
            for pid, command in self._processes()
            if command.startswith("ray::") and not command.startswith(NOT_THE_PROGRAMS)
        ]
        os.kill(rng.choice([self._main.pid, *sorted(workers)]), signal.SIGKILL)

    def end(self) -> None:
        """Kill all of its processes."""
        while found := self._processes():
            for pid, _ in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self._main.wait()

    def _processes(self) -> list[tuple[int, str]]:
        """All that belong to the session of the main process, with their command lines."""
        found: list[tuple[int, str]] = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                is_ours = entry.name.isdigit() and os.getsid(int(entry.name)) == self._main.pid
                if is_ours and (command := (entry / "cmdline").read_text()):
                    found.append((int(entry.name), command))
        return found


@contextmanager
def started(system: str, model: Model, conversations: int) -> Generator[Program]:
    """A program, which asks this model, for the duration of the block."""
    url = serve(model.answer)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        program = Program(system, url, folder, conversations)
        try:
            yield program
        finally:
            program.end()


def kill_some(program: Program, model: Model, kills: int, seed: int) -> list[float]:
    """Kill a process some time after each progress, and at last all of them, unless the program ends. Returns when."""
    moments, choices = random.Random(seed), random.Random(seed + 1)
    kills_s: list[float] = []
    while len(kills_s) <= kills:
        program.until(lambda: model.new_s > max(kills_s, default=0.0) or program.has_ended())
        program.let_run(moments.uniform(*PAUSE_S))
        if program.has_ended():
            break
        is_last = len(kills_s) == kills
        kills_s.append(time.monotonic())
        if is_last:
            program.end()
        else:
            program.kill_one(choices)
    return kills_s


def lines_of(system: str) -> int:
    """The lines of a program without docstrings and comments."""
    tree = ast.parse(Path(ROOT, "bench", "peers", f"losses_{system}.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return sum(map(bool, ast.unparse(tree).splitlines()))


# -- the page ----------------------------------------------------------------------------------------------------------


def table(found: Mapping[str, Losses]) -> str:
    """The figures of all systems, a row each."""
    heads = [name.replace("_", " ") for name in Losses._fields]
    rows = [["", *heads], ["---", *["---:"] * len(heads)]]
    rows += [
        [system, *(f"{figure:.3g}" if isinstance(figure, float) else str(figure) for figure in losses)]
        for system, losses in found.items()
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def write_page(found: Mapping[str, Losses]) -> None:
    """Put the table into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{rest.partition(END)[2]}")
