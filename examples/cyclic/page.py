"""Generates README.md from the docstrings of the examples: `python -m examples.cyclic.page`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path

from backedge import draw

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """A row of the table: the kind of loop, what the example proves, and what it shows at the end."""

    loop: str
    proves: str
    seen: str


FREE, ROUNDS, PHASES = "free-running", "in rounds", "in phases of rounds"

ENTRIES = {
    "count_and_print": Entry(FREE, "two counters agree, and every count is printed once", "both counts side by side"),
    "token_ring": Entry(FREE, "exactly one token, so one member at a time", "the pages that each member printed"),
    "payments": Entry(FREE + ", with a limit", "every payment is settled once; `make demo`", "payments by tries"),
    "transfers": Entry(FREE, "accounts and transfers in flight add up to the initial sum", "accounts and balances"),
    "retry_queue": Entry(FREE + ", with a limit and timers", "every message is settled once", "tries and pauses"),
    "pagerank": Entry(
        ROUNDS + ", a vertex program", "the ranks of a run without crashes, up to rounding", "a bar chart"
    ),
    "components": Entry(ROUNDS + ", a vertex program", "exact components", "households by size"),
    "distances": Entry(FREE + ", a vertex program", "exact times; ends by itself", "a map"),
    "k_core": Entry(ROUNDS + ", a vertex program", "exactly the members that remain", "a bar chart"),
    "import_cycles": Entry(PHASES + ", a vertex program", "exact circles", "circles by size"),
    "communities": Entry(ROUNDS + ", a vertex program", "exact labels", "communities by size"),
    "triangles": Entry(ROUNDS + ", a vertex program", "the exact number of triangles", "a bar chart"),
    "connected_components": Entry(FREE, "exact groups, for any order of messages", "originals and their copies"),
    "shortest_paths": Entry(FREE, "exact times and paths; ends by itself", "a map with the longest path"),
    "reachability": Entry(
        FREE + ", a vertex program", "exact differences between versions of a graph", "a bar for some versions"
    ),
    "kmeans": Entry(ROUNDS + ", with a broadcast", "exactly the same groups and distances", "a table and a plot"),
    "nested_loops": Entry(
        ROUNDS + ", within rounds", "exact core numbers; rounds resume where they were", "a bar chart"
    ),
    "async_training": Entry(FREE, "every sample is used once; the learner is identical bit for bit", "learning curve"),
    "agent_loop": Entry(FREE + ", with external calls", "every conversation ends once, within its budget", "a table"),
    "crawler": Entry(FREE + ", with external calls", "every page is there once", "pages by host and status"),
}
"""The examples with a reference in Spark."""

SMALLER = {
    "counters": Entry(FREE, "all counters return to zero", "three lines"),
    "retries": Entry(FREE, "a loop in the simulator, with crashes", "a story"),
}
"""Two short examples, checked in Python only."""

HEAD = """\
# Examples: feedback loops to copy

Find the loop closest to yours, copy its file, and change it. Each example is a single file that reads from top to
bottom: the input (prepared by Spark if there is any), the graph, a reference that computes the same result in Spark,
and the invariants of every cut as SQL. `counters` and `retries`, at the end, are shorter and checked in Python only.
This page is generated from the files by `python -m examples.cyclic.page`.

    python -m examples.cyclic.token_ring --kill members@epoch=3    # one example: prepare, run, kill, compare, show
    backedge compare examples.cyclic.token_ring --kills 3          # run with and without kills, and audit the cuts
    make examples                                                  # all of them; each must detect a planted wrong row

The examples with a reference take the options of a run as flags, such as `--snapshots --every --resume --parallelism`,
and `--kill`, `--size`, `--rounds` and `--json`; `--help` lists them all. `counters` and `retries` take none.

- *free-running*: records circulate independently, and the loop ends when it is empty.
- *in rounds*: a round ends before the next one begins, and a value computed in the round decides whether to go on.
- *in phases of rounds*: when a phase has come to rest, another one begins.
"""


def page() -> str:
    """The whole page."""
    table = "\n".join(
        [
            "| example | what it does | loop | lines | what it proves under kills | output |",
            "| --- | --- | --- | ---: | --- | --- |",
            *(_row(name, entry) for name, entry in (ENTRIES | SMALLER).items()),
        ]
    )
    return "\n".join([HEAD, table, "", *(_section(name) for name in ENTRIES | SMALLER)])


def _row(name: str, entry: Entry) -> str:
    lines = len((FOLDER / f"{name}.py").read_text().splitlines())
    title = _paragraphs(name)[0].partition(": ")[2].replace("\n", " ").rstrip(".")
    return f"| [{name}](#{name}) | {title} | {entry.loop} | {lines} | {entry.proves} | {entry.seen} |"


def _section(name: str) -> str:
    first, *others = _paragraphs(name)
    flow = import_module(f"examples.cyclic.{name}").flow
    inputs = {"inputs": "inputs"} if "inputs" in signature(flow).parameters else {}
    drawing = draw(flow(**inputs).plan())
    text = "\n\n".join([first, *others])
    return f"## {name}\n\nThe file: [{name}.py]({name}.py)\n\n{text}\n\n```text\n{drawing}\n```\n"


def _paragraphs(name: str) -> list[str]:
    return (import_module(f"examples.cyclic.{name}").__doc__ or "").strip().split("\n\n")


if __name__ == "__main__":
    from examples.cyclic.command_line import take_no_options

    take_no_options(__name__)
    (FOLDER / "README.md").write_text(page())
