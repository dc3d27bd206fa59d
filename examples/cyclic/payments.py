"""Payments: one that the bank refuses goes round the loop, is reminded of, and is tried again, five times at most.

    python -m examples.cyclic.payments        (or: make demo)

First on Ray, a process for each task, with payments from a file: the process that tries them is killed twice while
refused payments are on their way round, and the files that come out are compared with the one that went in. Then the
same kill in the simulator, where the log of the loop can be switched off, to see what it is for.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from backedge import Flow, JsonLines, Narration, draw, narrate, run

Payment = dict[str, Any]

DATA = Path(__file__).parent / "data" / "payments.jsonl"
ROUNDS_MAX = 5
KILLS = ("head@epoch=2", "head@epoch=4")
WITHOUT_LOG = "no-loop-log"
SEEDS_MAX = 1_000
TURNS_MAX = 9


def attempt(tries: int, payment: Payment) -> tuple[int, Payment]:
    """One more try: state by payment is how often it was tried."""
    tries += 1
    return tries, {**payment, "tries": tries, "paid": tries > payment["refusals"]}


def reminder(pause_s: float) -> Any:
    """Writes to the customer, which takes a moment. State by customer is how often that was done."""

    def remind(reminders: int, payment: Payment) -> tuple[int, Payment]:
        time.sleep(pause_s)
        return reminders + 1, {**payment, "reminders": reminders + 1}

    return remind


def flow(payments: str = str(DATA), output: str = "payments", rate: float = 160, pause_ms: float = 3) -> Flow:
    """The graph: `again` is a stream with an open end, and feeding it is the back edge."""
    flow = Flow("payments")
    arriving = flow.read(JsonLines(payments, rate=rate), name="arriving")
    again = flow.loop("again", of=dict, max_rounds=ROUNDS_MAX)
    tried = arriving.merge(again).key_by("id").stateful_map(attempt, initial=0, name="attempts")
    paid, refused = tried.split(lambda payment: payment["paid"], name="paid")
    reminded = refused.key_by("customer").stateful_map(reminder(pause_ms / 1000), initial=0, name="reminders")
    again.feed(reminded)
    paid.write(JsonLines(f"{output}/done"), name="done")
    again.dead_letters.write(JsonLines(f"{output}/given_up"), name="given_up")
    return flow


def read(path: Path) -> list[Payment]:
    """The payments in a file, or in all files of a folder."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def differences(arrived: Iterable[Payment], done: Iterable[Payment], given_up: Iterable[Payment]) -> list[str]:
    """What is lost, doubled, or came out otherwise than it must; nothing after a good run."""
    wanted = {payment["id"]: payment for payment in arrived}
    found: dict[str, str] = {}
    wrong: list[str] = []
    for sink, payments in (("done", done), ("given_up", given_up)):
        for payment in payments:
            id, refusals = payment["id"], payment["refusals"]
            must = ("done", refusals + 1) if refusals <= ROUNDS_MAX else ("given_up", ROUNDS_MAX + 1)
            if id in found:
                wrong.append(f"{id} is doubled")
            elif (sink, payment["tries"]) != must or payment["cents"] != wanted[id]["cents"]:
                wrong.append(f"{id} must be {must[0]} at try {must[1]}, and is {sink} at try {payment['tries']}")
            found[id] = sink
    return wrong + [f"{id} is lost" for id in wanted if id not in found]


def show_on_ray() -> None:
    """Runs on a local Ray with two kills, and compares the files."""
    arrived = read(DATA)
    with tempfile.TemporaryDirectory(prefix="payments-") as folder:
        print(f"{len(arrived)} payments from {DATA.name}, on Ray, a process for each task.")
        print("The process of the head, which tries them, is going to be killed twice.\n", flush=True)
        result = run(flow(output=folder), snapshots=f"{folder}/cuts", every=0.5, actors="task", kills=KILLS)
        done, given_up = read(Path(folder, "done")), read(Path(folder, "given_up"))
    wrong = differences(arrived, done, given_up) + [f"{fault} did not happen" for fault in result.missed_faults]
    if wrong:
        raise SystemExit(f"{len(wrong)} things are wrong: {', '.join(wrong[:10])}")
    print()
    for kill, restore in zip(result.kills, result.restores, strict=True):
        cut = "the beginning" if restore["epoch"] is None else f"cut {restore['epoch']}"
        print(f"  process {kill['pid']} got {kill['signal']}; all went back to {cut}, ", end="")
        print(f"which holds {restore['in_loop_records']} payments that were in the loop")
    print(
        f"  {len(done)} went through, {len(given_up)} were given up: {len(done) + len(given_up)}, each once, as it must"
    )
    print("  Nothing lost, nothing doubled.")


def run_without_log() -> Narration:
    """A run in the simulator that kills the head while payments are in the loop, and whose cuts leave those out."""
    few = [payment for payment in read(DATA) if payment["refusals"]][:6]
    for seed in range(SEEDS_MAX):
        told = narrate(
            flow(pause_ms=0), {"arriving": few}, seed=seed, parallelism=1, crashes=1, broken_rule=WITHOUT_LOG
        )
        if "attempts/0 dies" in told.turns and told.lacking and not told.surplus and len(told.turns) <= TURNS_MAX:
            return told
    raise LookupError(f"none of {SEEDS_MAX} seeds kills the head while payments are in the loop")


def show_without_log() -> None:
    """The same kill where cuts leave out what is in the loop."""
    told = run_without_log()
    print("\nThe same kill without the log of the loop: only the simulator can do that. Six of the payments suffice.\n")
    for turn in told.turns:
        print(f"  - {turn}")
    lost = sorted(payment["id"] for payments in told.lacking.values() for payment in payments)
    print(f"  Lost: {', '.join(lost)}. They were in the loop, and so in no state and in no file.")


def main() -> None:
    """Prints the graph, and what happens in it with and without the log."""
    print(draw(flow().plan()), end="\n\n")
    show_on_ray()
    show_without_log()


if __name__ == "__main__":
    main()
