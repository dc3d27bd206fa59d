"""Draws docs/run.svg, the picture of the README: a run whose process is killed, as it happened.

    .venv/bin/python scripts/draw_run.py docs/run.svg

It runs a loop on Ray, has the process of the loop's head killed, notes when what happened, checks that every order came
out exactly once, and draws these facts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from backedge import Collect, Flow, Generate, RunOptions  # noqa: E402
from backedge.faults import Faults, start_with_faults  # noqa: E402

ORDERS, RATE, TRIES_MAX = 500, 130, 6
KILLED_AT = 650
EVERY_S, LOOK_S = 0.5, 0.03
HEAD = "head of the loop"
OPERATORS = {"orders": "source", "attempts": HEAD, "outcome": "body of the loop", "done": "sink"}


@dataclass
class Facts:
    """What happened, in seconds since all processes ran for the first time."""

    cuts: dict[int, float] = field(default_factory=dict[int, float])
    down_s: float = 0.0
    up_s: float = 0.0
    end_s: float = 0.0
    restored: int = 0
    in_loop: int = 0
    lost: int = 0
    doubled: int = 0


def needed(order: int) -> int:
    """How many tries an order needs."""
    return 1 + order % TRIES_MAX


def attempt(tries: int, order: dict[str, int]) -> tuple[int, dict[str, int]]:
    """Try an order once more; the state counts its tries."""
    return tries + 1, {**order, "tries": tries + 1}


def is_done(order: dict[str, int]) -> bool:
    """Whether an order has been tried often enough. It takes a moment, so that the loop is never empty."""
    time.sleep(0.0025)
    return order["tries"] >= needed(order["id"])


def flow() -> Flow:
    """Orders are tried again and again, each until it succeeds."""
    flow = Flow("orders")
    orders = flow.read(Generate(lambda position: {"id": position}, count=ORDERS), rate=RATE, name="orders")
    again = flow.loop("again", of=dict[str, int])
    tried = orders.merge(again).key_by("id").stateful_map(attempt, initial=0, name="attempts")
    done, failed = tried.rebalance().split(is_done, name="outcome")
    again.feed(failed)
    done.rebalance().write(Collect(), name="done")
    return flow


def happened() -> Facts:
    """Run it with one kill, and look at it until it is over."""
    facts = Facts()
    with tempfile.TemporaryDirectory() as folder:
        options = RunOptions(snapshots=folder, every=EVERY_S, actors="task", spares=1, progress=False)
        job = start_with_faults(flow(), Faults(kills=[f"attempts@records={KILLED_AT}"]), options)
        began_s: float | None = None
        while (story := job.status()).state not in ("finished", "failed", "cancelled"):
            now_s = time.monotonic()
            if story.state == "running" and began_s is None:
                began_s = now_s
            if began_s is not None:
                facts.end_s = now_s - began_s
                if story.last_epoch is not None:
                    facts.cuts.setdefault(story.last_epoch, facts.end_s)
                if story.kills and not facts.down_s:
                    facts.down_s = facts.end_s
            time.sleep(LOOK_S)
        result = job.wait()
    (restore,) = result.restores
    facts.up_s = facts.down_s + restore["seconds"]
    facts.restored, facts.in_loop = restore["epoch"], restore["in_loop_records"]
    counted = Counter((order["id"], order["tries"]) for order in result.outputs["done"])
    wanted = Counter((order, needed(order)) for order in range(ORDERS))
    facts.lost, facts.doubled = (wanted - counted).total(), (counted - wanted).total()
    if result.missed_faults or facts.lost or facts.doubled or facts.in_loop < 2:
        sys.exit(f"no picture of this: {result}, {facts}")
    return facts


WIDTH, LEFT, RIGHT, TOP, LANE, BAR = 860, 150, 24, 96, 38, 18
STYLE = """
  .paper { fill: #ffffff } text { fill: #1f2328; font: 13px system-ui, sans-serif } .small { font-size: 11px }
  .soft { fill: #59636e } .inside { fill: #ffffff }
  .runs { fill: #3f78b5 } .waits { fill: #c4d8ee } .cut { stroke: #8c959f; stroke-width: 1 }
  .back { stroke: #1a7f37; fill: none; stroke-width: 2 } .good { fill: #1a7f37; font-weight: 600 }
  .died { stroke: #cf222e; stroke-width: 3 } .bad { fill: #cf222e; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #e6edf3 } .soft { fill: #9198a1 } .inside { fill: #ffffff }
    .waits { fill: #2b4463 } .cut { stroke: #6e7681 } .back { stroke: #3fb950 } .good { fill: #3fb950 }
    .died { stroke: #f85149 } .bad { fill: #f85149 }
  }
"""


def drawn(facts: Facts) -> str:
    """The picture, as SVG."""
    scale = (WIDTH - LEFT - RIGHT) / facts.end_s
    bottom = TOP + LANE * len(OPERATORS)
    parts: list[str] = []

    def at(seconds: float) -> float:
        return round(LEFT + seconds * scale, 1)

    def text(x: float, y: float, said: str, look: str = "", anchor: str = "start") -> None:
        parts.append(f'<text class="{look}" x="{x}" y="{y}" text-anchor="{anchor}">{said}</text>')

    def bar(lane: int, look: str, begin_s: float, end_s: float) -> None:
        y, width = TOP + LANE * lane + (LANE - BAR) / 2, round((end_s - begin_s) * scale, 1)
        parts.append(f'<rect class="{look}" x="{at(begin_s)}" y="{y}" width="{width}" height="{BAR}" rx="3"/>')

    for lane, (operator, role) in enumerate(OPERATORS.items()):
        text(LEFT - 12, TOP + LANE * lane + LANE / 2 - 1, operator, anchor="end")
        text(LEFT - 12, TOP + LANE * lane + LANE / 2 + 12, role, "small soft", "end")
        bar(lane, "runs", 0, facts.down_s)
        bar(lane, "runs", facts.up_s, facts.end_s)
        if role == HEAD:
            text(at(facts.up_s) + 10, TOP + LANE * lane + LANE / 2 + 4, "a new process", "small inside")
        else:
            bar(lane, "waits", facts.down_s, facts.up_s)
    for epoch, cut_s in facts.cuts.items():
        look = "back" if epoch == facts.restored else "cut"
        parts.append(f'<line class="{look}" x1="{at(cut_s)}" y1="{TOP - 4}" x2="{at(cut_s)}" y2="{bottom + 4}"/>')
        text(at(cut_s), bottom + 18, str(epoch), "small good" if look == "back" else "small soft", "middle")
    text(LEFT - 12, bottom + 18, "complete cuts", "small soft", "end")
    x, y, restored_x = at(facts.down_s), TOP + LANE * 1.5, at(facts.cuts[facts.restored])
    parts.append(f'<path class="died" d="M{x - 7} {y - 7} l14 14 m0 -14 l-14 14"/>')
    parts.append(
        f'<path class="back" d="M{x} {TOP - 6} C{x} {TOP - 34} {restored_x} {TOP - 34} {restored_x} {TOP - 6}"/>'
    )
    parts.append(f'<path class="back" d="M{restored_x - 5} {TOP - 13} l5 8 l5 -8"/>')
    gone_ms = (facts.up_s - facts.down_s) * 1000
    text(x + 14, TOP - 20, "SIGKILL", "bad")
    text(x + 84, TOP - 20, f"{gone_ms:,.0f} ms later, all tasks run again from cut {facts.restored},", "good")
    text(x + 84, TOP - 5, f"with the {facts.in_loop} orders that were in the loop", "good")
    text(LEFT, 26, f"{ORDERS} orders are tried up to {TRIES_MAX} times each; those that fail go round a loop.")
    text(LEFT, 44, "Each bar is a process. One is killed, and all go back to the last complete cut.", "small soft")
    for second in range(int(facts.end_s) + 1):
        text(at(second), bottom + 36, f"{second} s", "small soft", "middle")
    text(WIDTH - RIGHT, bottom + 62, f"{ORDERS} of {ORDERS} orders came out, each exactly once", "good", "end")
    height = bottom + 76
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="A run whose process is killed and that continues from its last complete cut">\n'
        f'<style>{STYLE}</style>\n<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    (target,) = map(Path, sys.argv[1:])
    target.write_text(drawn(happened()))
