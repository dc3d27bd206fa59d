"""Counters: every number is added, goes round the loop once, and is subtracted, so all counters end at zero.

    python -m examples.cyclic.counters

This is the simplest test of a crashing loop. If a snapshot contains the addition of a number but not the number itself,
which was in the loop, it is never subtracted. If the number comes back twice, it is subtracted twice. Processes are
killed three times; then every counter is compared with zero and with its expected number of changes.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from typing import Any

from backedge import Collect, Flow, Generate, RunOptions
from backedge.faults import Faults, run_with_faults

Number = dict[str, int]

KILLS = ("head@epoch=2", "body@epoch=3", "head@epoch=5")
NUMBERS, COUNTERS = 16_000, 97


class Counters:
    """The state of a counter is its sum and its numbers of additions and subtractions."""

    outputs = ("added", "subtracted", "counters")

    def on_record(self, ctx: Any, number: Number) -> None:
        """Count a number and send it on: round the loop, or out of it."""
        total, added, subtracted = ctx.state.get((0, 0, 0))
        is_new = number["sign"] > 0
        total += number["sign"] * number["value"]
        ctx.state.set((total, added + is_new, subtracted + (not is_new)))
        ctx.emit(number, output="added" if is_new else "subtracted")

    def on_end(self, ctx: Any) -> None:
        """All numbers have passed twice: report the counters."""
        for counter in ctx.keys():  # noqa: SIM118
            total, added, subtracted = ctx.state.get()
            ctx.emit({"counter": counter, "total": total, "added": added, "subtracted": subtracted}, output="counters")


def flow(numbers: int = NUMBERS, counters: int = COUNTERS, rate: float = 2_500, pause_ms: float = 0.3) -> Flow:
    """The graph: the counters are the head, and what turns a number into its subtraction is the body.

    The body takes a moment for each number, so that there is always something in the loop.
    """

    def number(position: int) -> Number:
        return {"id": position, "counter": position % counters, "value": position % 1_000 + 1, "sign": 1}

    def turned(added: Number) -> Number:
        time.sleep(pause_ms / 1000)
        return {**added, "sign": -1}

    flow = Flow("counters")
    source = flow.read(Generate(number, count=numbers), rate=rate, name="numbers")
    again = flow.loop("again", of=dict[str, Any], max_rounds=1, on_limit="fail")
    counted = source.merge(again).key_by("counter").process(Counters, name="counted")
    again.feed(counted.key_by("id").map(turned, name="turned"))
    counted.side("subtracted").map(lambda gone: gone["id"], name="ids").write(Collect(), name="gone")
    counted.side("counters").write(Collect(), name="totals")
    return flow


def check(totals: list[dict[str, int]], gone: list[int], numbers: int, counters: int) -> None:
    """Raises unless every number was added once and subtracted once."""
    expected = Counter(position % counters for position in range(numbers))
    for found in totals:
        wanted = {"total": 0, "added": expected[found["counter"]], "subtracted": expected[found["counter"]]}
        if found != {"counter": found["counter"], **wanted}:
            raise ValueError(f"counter {found['counter']} should be {wanted} but is {found}")
    if sorted(found["counter"] for found in totals) != sorted(expected):
        raise ValueError(f"{len(expected)} counters were to be told of, and {len(totals)} were")
    if sorted(gone) != list(range(numbers)):
        raise ValueError(f"{numbers} numbers were to leave the loop once each, and {len(gone)} did")


def main() -> None:
    """Run the flow with kills, and check the counters."""
    with tempfile.TemporaryDirectory(prefix="counters-") as folder:
        options = RunOptions(snapshots=folder, every=0.5, actors="task")
        result = run_with_faults(flow(), Faults(KILLS), options)
    check(result.outputs["totals"], result.outputs["gone"], NUMBERS, COUNTERS)
    in_loop = ", ".join(str(restore["in_loop_records"]) for restore in result.restores)
    print(f"{len(result.kills)} processes were killed; numbers found in the loop by the restores: {in_loop}")
    print(f"{NUMBERS:,} numbers, each added once and subtracted once; all {COUNTERS} counters are at zero")
    if result.missed_faults:
        raise SystemExit(f"these kills did not happen: {', '.join(result.missed_faults)}")


if __name__ == "__main__":
    from examples.cyclic.command_line import take_no_options

    take_no_options(__name__)
    main()
