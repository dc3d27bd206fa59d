"""The page of the examples, made of what they say of themselves: `python -m examples.cyclic.page` writes README.md."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path

from backedge import draw

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """What the table says of an example: how it loops, what it proves, and what one sees in the end."""

    loop: str
    proves: str
    seen: str


FREE, ROUNDS = "free-running", "in rounds"

ENTRIES = {
    "count_and_print": Entry(
        FREE, "two counters agree, and every print comes once", "the counts of both, side by side"
    ),
    "token_ring": Entry(FREE, "one token, so one member at a time", "the pages that each member printed"),
    "payments": Entry(FREE + ", with a limit", "every payment is settled once; `make demo`", "what was paid, by tries"),
    "transfers": Entry(FREE, "money in accounts and under way is what there was", "accounts and their balances"),
    "retry_queue": Entry(FREE + ", with a limit and timers", "everything is settled once", "tries and pauses, counted"),
    "pagerank": Entry(ROUNDS + ", on columns", "ranks of a run without crashes, but for last digits", "a bar chart"),
    "connected_components": Entry(FREE, "exact groups, in any order of messages", "copies, and what is kept for them"),
    "shortest_paths": Entry(FREE, "exact times and ways; ends by itself", "a map, with the longest way"),
    "reachability": Entry(FREE, "exact answers about a graph that changes meanwhile", "a bar for each question"),
    "kmeans": Entry(ROUNDS + ", with a broadcast", "groups and distances without a difference", "a table and a plot"),
    "nested_loops": Entry(
        ROUNDS + ", within rounds", "exact core numbers; rounds go on where they were", "a bar chart"
    ),
    "rollout_training": Entry(FREE, "every sample is used once; the learner is the same bit for bit", "learning curve"),
    "agent_loop": Entry(FREE + ", with calls outside", "every conversation ends once, within its budget", "a table"),
}
"""The examples that Spark computes, too."""

SMALLER = {
    "counters": Entry(FREE, "all counters come back to zero", "three lines"),
    "retries": Entry(FREE, "a loop in the simulator, with crashes", "a story"),
}
"""Two that are read in five minutes, and checked by Python alone."""

HEAD = """\
# Examples: feedback loops to copy

Find the loop that is nearest to yours, copy the file, and change it. Each is one file, read from top to bottom: the
graph, the input that Spark prepares where it needs any, the same result computed by Spark, and as SQL what holds in
every cut, where more does than of any graph. counters and retries, at the end, are smaller, and checked by Python
alone. The page is written by `python -m examples.cyclic.page`, from the files.

    python -m examples.cyclic.token_ring --kill members@epoch=3    # one: prepared, run, killed, compared, shown
    backedge compare examples.cyclic.token_ring --kills 3          # run clean and with kills; cuts audited
    make examples                                                  # all that Spark computes; a wrong row must be found

Those that Spark computes take the options of a run as flags, such as `--snapshots --every --resume --parallelism`, and
`--kill`, `--size`, `--rounds` and `--json`; `--help` lists them. counters and retries take none.

- *free-running*: records go round one by one, and the loop ends when it is empty.
- *in rounds*: all of a round is done before the next begins, and a figure of the round decides whether there is one.
"""


def page() -> str:
    """The whole page."""
    table = "\n".join(
        [
            "| example | what it is | loop | lines | what it shows under kills | what one sees |",
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
    said = "\n\n".join([first, *others])
    return f"## {name}\n\nThe file: [{name}.py]({name}.py)\n\n{said}\n\n```text\n{drawing}\n```\n"


def _paragraphs(name: str) -> list[str]:
    return (import_module(f"examples.cyclic.{name}").__doc__ or "").strip().split("\n\n")


if __name__ == "__main__":
    from examples.cyclic.command_line import take_no_options

    take_no_options(__name__)
    (FOLDER / "README.md").write_text(page())
