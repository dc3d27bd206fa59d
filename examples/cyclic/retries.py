"""Retries: a failed order goes round the loop up to five times; orders that keep failing are set aside.

    python -m examples.cyclic.retries

This prints the graph and then one run in the simulator: processes die while orders are in the loop, and nothing is
lost. Then the same seed runs without the loop log, to show what the log is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill
from typing import Any

from backedge import Collect, Flow, Items, Narration, draw, narrate

Order = dict[str, Any]

NEEDS = {"apples": 1, "bread": 3, "cheese": 2, "dates": 9, "eggs": 4, "figs": 3}
"""Number of tries until each order goes through."""

WITHOUT_LOG = "no-loop-log"
SEEDS_MAX = 1_000
TURNS_MAX = 9


def attempt(tries: int, order: Order) -> tuple[int, Order]:
    """Try an order once more. The state of an order is its number of tries."""
    tries += 1
    return tries, {**order, "tries": tries, "ok": tries >= order["needs"]}


def flow() -> Flow:
    """The graph: `again` is a stream with an open end, and feeding it is the back edge."""
    flow = Flow("retries")
    orders = flow.read(Items([{"id": id, "needs": needs} for id, needs in NEEDS.items()]), name="orders")
    again = flow.loop("again", of=dict, max_rounds=5, on_limit="dead_letter")
    tried = orders.merge(again).key_by("id").stateful_map(attempt, initial=0, name="attempts")
    done, failed = tried.split(lambda order: order["ok"], name="ok")
    again.feed(failed)
    done.write(Collect(), name="done")
    again.dead_letters.write(Collect(), name="given_up")
    return flow


def telling_runs() -> tuple[Narration, Narration]:
    """A run that restores orders from the loop, and the same seed without a loop log."""
    for seed in range(SEEDS_MAX):
        run = narrate(flow(), seed=seed, parallelism=2, crashes=2)
        if run.restores_with_log and len(run.turns) <= TURNS_MAX:
            without = narrate(flow(), seed=seed, parallelism=2, crashes=2, broken_rule=WITHOUT_LOG)
            if without.lacking and without.restores and len(without.turns) <= TURNS_MAX:
                return run, without
    raise LookupError(f"none of {SEEDS_MAX} seeds crashes while orders are in the loop")


def main() -> None:
    """Print the graph and the two runs."""
    print(draw(flow().plan()))
    run, without = telling_runs()
    print(f"\nOne run of it in the simulator, seed {run.seed}. Tasks are named OPERATOR/INDEX.")
    _print_turns(run)
    for sink, orders in run.expected.items():
        print(f"  {sink}: {', '.join(_named(orders))}")
    print(f"  {_verdict(run)}.")
    print("\nThe same seed, but the cuts leave out the records in the loop.")
    _print_turns(without)
    print(f"  {_verdict(without)}.")
    print(fill(f"The checker says: {str(without.problem).splitlines()[0]}", 100, subsequent_indent="    "))


def _print_turns(run: Narration) -> None:
    for turn in run.turns:
        print(f"  - {turn}")


def _verdict(run: Narration) -> str:
    if not (run.lacking or run.surplus):
        return "That is what a run without crashes gives: nothing lost, nothing doubled"
    lost, doubled = (", ".join(_named(_all(records))) or "none" for records in (run.lacking, run.surplus))
    return f"Lost: {lost}. Doubled: {doubled}"


def _all(records: Mapping[str, list[Order]]) -> list[Order]:
    return [order for orders in records.values() for order in orders]


def _named(orders: list[Order]) -> list[str]:
    return sorted(f"{order['id']} at try {order['tries']}" for order in orders)


if __name__ == "__main__":
    from examples.cyclic.command_line import take_no_options

    take_no_options(__name__)
    main()
