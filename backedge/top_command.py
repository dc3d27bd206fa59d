"""`backedge top`: the operators of the runs that are alive, in a table that is drawn again until q or Ctrl-C.

0: done. 2: no run is alive, or none of this job.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import sys
import termios
import tty
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TextIO

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.living_runs import LivingRuns
from backedge.flows import WrongCallError
from backedge.graphs.wording import counted
from backedge.printing import amount, duration, fitting, refuse, share, table_lines
from backedge.recovery.stores.run_status import OperatorStatus, RunStatus

DONE = 0
REFRESH_S = 1.0
ALTERNATE, ORDINARY = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Switch to a screen of our own, without a cursor, and back to what the terminal has shown before."""
HOME, TO_THE_END_OF_LINE, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"

Ask = Callable[[], Sequence[RunStatus]]


@dataclass(frozen=True, slots=True)
class OperatorLoad:
    """One chain of operators now. busy and held are those of the task that has most of it.

    backlog: the records that wait in front of it; in_loop: those of them that go round a loop.
    """

    operator: str
    tasks: int
    in_per_s: float | None
    out_per_s: float | None
    busy: float | None
    held: float | None
    backlog: int
    in_loop: int


def loads_of(status: RunStatus) -> list[OperatorLoad]:
    """What the operators of a run do now, in the order of the flow."""
    backlog, in_loop = dict[str, int](), dict[str, int]()
    chains = {operator.name: set(operator.operators) for operator in status.operators}
    for channel in status.channels:
        sender, receiver = (end.rpartition("/")[0] for end in (channel.sender, channel.receiver))
        backlog[receiver] = backlog.get(receiver, 0) + channel.backlog
        ends = chains.get(sender, set()), chains.get(receiver, set())
        if any(all(end & set(loop.operators) for end in ends) for loop in status.loops):
            in_loop[receiver] = in_loop.get(receiver, 0) + channel.backlog
    return [_load(each, backlog.get(each.name, 0), in_loop.get(each.name, 0)) for each in status.operators]


def _load(operator: OperatorStatus, backlog: int, in_loop: int) -> OperatorLoad:
    tasks = operator.tasks
    taken = [task.in_per_s for task in tasks if task.in_per_s is not None]
    sent = [task.out_per_s for task in tasks if task.out_per_s is not None]
    return OperatorLoad(
        operator=" > ".join(operator.operators),
        tasks=len(tasks),
        in_per_s=sum(taken) if taken else None,
        out_per_s=sum(sent) if sent else None,
        busy=max((task.busy for task in tasks if task.busy is not None), default=None),
        held=max((task.held for task in tasks if task.held is not None), default=None),
        backlog=backlog,
        in_loop=in_loop,
    )


def lines_of(status: RunStatus) -> list[str]:
    """A run as a table, with a line about it on top."""
    cut = "no cut yet" if status.last_epoch is None else f"cut {status.last_epoch}"
    failed = f", {counted(len(status.failures), 'failure')}" if status.failures else ""
    head = f"{status.job}: {status.state}, attempt {status.attempt}, {cut}, {duration(status.seconds)}{failed}"
    rows = [("operator", "tasks", "in/s", "out/s", "busy", "held", "backlog", "in loop")]
    rows += [
        (
            load.operator,
            str(load.tasks),
            amount(load.in_per_s),
            amount(load.out_per_s),
            share(load.busy),
            share(load.held),
            f"{load.backlog:,}",
            f"{load.in_loop:,}" if load.in_loop else "-",
        )
        for load in loads_of(status)
    ]
    return [head, *table_lines(rows), ""]


@cluster.left_as_found()
def show_top(options: argparse.Namespace) -> int:
    """Draw the table until q or Ctrl-C; once, if the output is no terminal or JSON."""
    try:
        cluster.connect(must_exist=True)
        runs = LivingRuns()

        def ask() -> Sequence[RunStatus]:
            return [status for status in runs.ask() if options.job in (None, status.job)]

        if not (first := ask()):
            which = "run" if options.job is None else f"run of {options.job!r}"
            raise WrongCallError(f"no {which} is alive on this cluster: `backedge jobs --snapshots DIR` shows all jobs")
        if options.json:
            print(json.dumps({"runs": list(map(_facts, first))}))
        elif not sys.stdout.isatty():
            print("\n".join(line for status in first for line in lines_of(status)))
        else:
            watch(ask, sys.stdin, sys.stdout)
    except cluster.RayError as refused:
        return refuse("top", refused)
    return DONE


def _facts(status: RunStatus) -> dict[str, object]:
    return {"job": status.job, "state": status.state, "operators": list(map(asdict, loads_of(status)))}


def watch(ask: Ask, keys: TextIO, screen: TextIO) -> None:
    """Draw what is alive, again and again, until q is pressed."""
    with _own_screen(keys, screen):
        while True:
            _draw(ask(), screen)
            if _is_quit_within(REFRESH_S, keys):
                return


@contextmanager
def _own_screen(keys: TextIO, screen: TextIO) -> Generator[None]:
    """A screen of our own, and keys that come at once and are not shown; both are as before in the end."""
    before = termios.tcgetattr(keys.fileno()) if keys.isatty() else None
    try:
        if before is not None:
            tty.setcbreak(keys.fileno())
        screen.write(ALTERNATE)
        yield
    finally:
        screen.write(ORDINARY)
        screen.flush()
        if before is not None:
            termios.tcsetattr(keys.fileno(), termios.TCSADRAIN, before)


def _draw(statuses: Sequence[RunStatus], screen: TextIO) -> None:
    """Overwrite what was drawn before, in one piece, so that nothing flickers."""
    columns, rows = shutil.get_terminal_size()
    # A supervisor that is being replaced answers again in a moment.
    told = [line for status in statuses for line in lines_of(status)] or ["no run is alive"]
    lines = [fitting(line, columns) for line in told][: rows - 1]
    drawn = "".join(f"{line}{TO_THE_END_OF_LINE}\n" for line in lines)
    screen.write(f"{HOME}{drawn}{BELOW}{'q quits'[:columns]}")
    screen.flush()


def _is_quit_within(seconds: float, keys: TextIO) -> bool:
    """Whether q is pressed within that time, or the keyboard is closed."""
    readable, _, _ = select.select([keys] if keys.isatty() else [], [], [], seconds)
    return bool(readable) and (os.read(keys.fileno(), 64) or b"q").lower().startswith(b"q")
