"""The cost of cuts during a run: keyed state of 100,000 keys with integer values, all of which keep changing.

The same flow runs with a cut every second, with none, and with one every 100 ms, for 30 seconds per turn; its records
per second are compared. The number of requested epochs is the number of intervals in the measured time, whether or not
the coordinator began them.

Then the stall: one task holds a million keys, and its user function checks the clock. The longest time between two of
its calls, for whatever reason, over at least 5 epochs, is compared with one `dict.copy()` of such a state.

Peers: none, none_100ms: ours without cuts; dict_copy.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from backedge import Collect, Flow, Generate
from bench.measuring import Limit, Report, Samples, at_least, interleaved
from bench.notes import note, read_notes
from bench.options import Options
from bench.ours import BenchError, Window, begin, watch
from bench.peers import peers, snapshot_dict_copy
from bench.session import session
from bench.workloads import CopyWorkload

LIMITS = {"none": 0.95, "none_100ms": 0.85, "dict_copy": 0.33}
SECONDS_MIN = 30.0
COMPLETED_MIN = 0.9
KEYS = 100_000
STALL_KEYS = 1_000_000
STALL_EPOCHS = 5
STALL_TIMEOUT_S = 120.0
GAP_NOTED_S = 0.001
WARM_UP_S = 2.0
INTERVALS = {"every_1s": 1.0, "every_100ms": 0.1}


def run(options: Options) -> Report:
    """Measure the three runs, the stall and the copy in turns."""
    seconds, keys = options.seconds or SECONDS_MIN, options.records or STALL_KEYS
    workload = CopyWorkload(keys=keys, seed=options.seed)
    known = peers({"dict_copy": snapshot_dict_copy.run}, options.peer)
    windows: dict[str, list[Window]] = {name: [] for name in INTERVALS}

    def measure(name: str) -> float:
        window = watch(make_flow(options.seed), min(WARM_UP_S, seconds), seconds, every=INTERVALS.get(name), **SLICES)
        windows.setdefault(name, []).append(window)
        return window.records_per_s

    with session():
        found = interleaved(
            {
                "every_1s": lambda: measure("every_1s"),
                "none": lambda: measure("none"),
                "every_100ms": lambda: measure("every_100ms"),
                "stall_ms": lambda: stall_ms(keys, min(1.0, seconds)),
                "dict_copy": lambda: known["dict_copy"](workload),
            },
            options.turns,
            cold=dict.fromkeys(("every_1s", "none", "every_100ms", "stall_ms"), lambda: 0.0),
        )
    return compare(found, windows)


SLICES: dict[str, Any] = {"parallelism": 2, "actors": "slice"}


def compare(found: dict[str, Samples], windows: dict[str, list[Window]]) -> Report:
    """The remaining share of the speed, and the share of requested epochs that were completed."""
    none, copy = found["none"], found["dict_copy"]
    ratios = {
        "none": found["every_1s"].over(none),
        "none_100ms": found["every_100ms"].over(none),
        "dict_copy": copy.over(found["stall_ms"]),
    }
    epochs = {name: completed(windows[name], every) for name, every in INTERVALS.items()}
    shares = {name: done / max(due, 1) for name, (due, done) in epochs.items()}
    seconds = min(window.seconds for name in INTERVALS for window in windows[name])
    return Report(
        bench="snapshot",
        unit="records a second in two tasks each; *_ms and dict_copy: ms",
        turns=len(none.figures),
        figures={name: found[name] for name in ("every_1s", "every_100ms", "stall_ms")},
        peers={"none": none, "none_100ms": none, "dict_copy": copy},
        ratios=ratios,
        limits=(
            *at_least(ratios, LIMITS),
            *(
                Limit(
                    f"{name}: {share:.0%} of the epochs completed, at least {COMPLETED_MIN:.0%}", share >= COMPLETED_MIN
                )
                for name, share in shares.items()
            ),
            Limit(f"{seconds:.1f} s measured in the shortest turn, at least {SECONDS_MIN}", seconds >= SECONDS_MIN),
        ),
        ours="every_1s",
        more={
            "epochs_requested": epochs["every_1s"][0],
            "epochs_completed": epochs["every_1s"][1],
            "epochs_requested_100ms": epochs["every_100ms"][0],
            "epochs_completed_100ms": epochs["every_100ms"][1],
        },
    )


def completed(windows: list[Window], every: float) -> tuple[int, int]:
    """The numbers of requested and of completed epochs, over all turns."""
    return sum(int(window.seconds / every) for window in windows), sum(window.epochs for window in windows)


def make_flow(seed: int) -> Flow:
    """A count of keys that occur in turn, beginning at `seed`."""
    flow = Flow("snapshot")
    numbers = flow.read(Generate(lambda position: (position + seed) % KEYS), name="numbers")
    counted = numbers.key_by(_same).stateful_map(count, initial=0, name="count")
    counted.filter(_is_never, name="chosen").write(Collect(), name="none")
    return flow


def _same(number: int) -> int:
    return number


def count(seen: int, number: int) -> tuple[int, int]:
    """One more."""
    return seen + 1, number


def _is_never(number: int) -> bool:
    return number < 0


# -- the stall ---------------------------------------------------------------------------------------------------


def stall_ms(keys: int, every: float) -> float:
    """The longest time between two calls of the user function of a task with many keys, while cuts are taken."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        path = str(Path(folder) / "gaps")
        job = begin(make_stall_flow(keys, path), f"{folder}/cuts", every, {"actors": "task"})
        try:
            deadline_s = time.monotonic() + STALL_TIMEOUT_S
            started_at: tuple[float, int] | None = None
            while time.monotonic() < deadline_s:
                time.sleep(0.05)
                story = job.status()
                if started_at is None:
                    if any(gap < 0 for _, gap in read_notes(path)):
                        started_at = time.monotonic(), story.snapshots
                elif story.snapshots >= started_at[1] + STALL_EPOCHS:
                    gaps = [gap for at_s, gap in read_notes(path) if at_s >= started_at[0]]
                    return max(gaps, default=GAP_NOTED_S) * 1e3
        finally:
            job.cancel()
    raise BenchError(f"a task with {keys} keys has not taken {STALL_EPOCHS} cuts in {STALL_TIMEOUT_S:.0f} s")


def make_stall_flow(keys: int, path: str) -> Flow:
    """All keys in one task, whose function notes when it has not been called for a while; -1: all keys are there."""
    called_at_s = time.perf_counter()

    def look(seen: int, number: int) -> tuple[int, int]:
        nonlocal called_at_s
        now_s = time.perf_counter()
        if now_s - called_at_s > GAP_NOTED_S:
            note(path, now_s - called_at_s)
        if number == 0 and seen == 1:
            note(path, -1.0)
        called_at_s = now_s
        return seen + 1, number

    flow = Flow("stall")
    numbers = flow.read(Generate(lambda position: position % keys), name="numbers")
    counted = numbers.key_by(_same).stateful_map(look, initial=0, name="count")
    counted.filter(_is_never, name="chosen").write(Collect(), name="none")
    return flow
