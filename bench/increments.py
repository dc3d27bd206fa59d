"""Cuts that write what changed: a million integers by key, 1 % of which change between cuts. And cuts of a gigabyte.

On Ray, with cuts in a folder:

- often_per_s, none_per_s: a run in two tasks with ten cuts a second, and the same without. Five pairs per turn: they
  differ most from one turn to the next. Of the cuts that are kept at the end of a run, it is counted how many hold what
  changed and how many everything.
- resume_whole, resume_deltas: a run that resumes from a cut of everything, and from one with a list of deltas. From the
  moment that the processes of its tasks have been given the flow until each has its first record.
- stall, large_stall: the longest time between two calls of the function of a task that holds a million keys, or ten
  million, over 40 cuts; the same number of keys changes in both. Each turn has five such windows. The ratio is that of
  the medians of all windows: a single longest time says what else the machine did at that moment.
- opaque_cut_s, peak_mb: values of 1 KB that cannot be compressed, a gigabyte in two tasks: a cut of everything, and the
  peak memory of the larger task, also when it takes that cut back. `peak_ratio`: what exceeds 150 MB, by its share.

In one process, in CPU time, which shows where it goes (`increments_in_process.py`):

- whole, delta: all of a cut, of a million keys of which 10,000 have changed since the cut before. *_stall: the capture.
- large_capture: the capture of a delta of ten million keys, as many of which have changed.
- whole_restore, deltas_restore: reading one file; reading one and some deltas behind it.
- plain, noted: a million records through a stateful_map, with and without noting the keys. Not among the limits.

Peers: none_per_s, resume_whole, stall; whole, whole_stall, whole_restore, plain; bare_s, two processes that pickle the
same gigabyte into a file each. `delta_bytes` is what a delta takes on disk, as a share of a whole cut.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from statistics import median

from bench import increments_in_process as in_process
from bench import increments_on_ray as on_ray
from bench import opaque_state
from bench.increments_on_ray import CutWindow
from bench.measuring import Limit, Report, Samples, interleaved
from bench.options import Options
from bench.peers import cut_bare, peers
from bench.session import session
from bench.workloads import OpaqueWorkload

KEYS = 1_000_000
LARGE = 10
CHANGED = 0.01
SECONDS = 5.0
BYTES_MAX = 0.03
RESTORE_MAX = 1.5
SPEED_MIN = 0.95
COMPLETED_MIN = 0.9
SPEEDS_PER_TURN = 5
PEAK_MAX = 1.5
PEAK_MB = 150.0
CUT_MAX = 1.5
PEERS = ("whole", "whole_stall", "whole_restore", "plain", "none_per_s", "resume_whole", "stall", "bare_s")


def run(options: Options) -> Report:
    """Measure in one process and then on Ray, each case in turns."""
    keys, seconds = options.records or KEYS, options.seconds or SECONDS
    changed = max(1, int(keys * CHANGED))
    known = peers({"bare": cut_bare.run}, options.peer)
    found, delta_bytes = in_process.measured(keys, LARGE * keys, changed, options.turns)
    windows: list[CutWindow] = []
    peaks_mb: list[float] = []
    stalls: dict[str, list[float]] = {"stall": [], "large_stall": []}
    opaque = OpaqueWorkload(keys, seed=options.seed)

    def often() -> float:
        windows.append(on_ray.speed(keys, changed, seconds, on_ray.EVERY_S))
        return windows[-1].window.records_per_s

    def stall(name: str, keys: int) -> float:
        windows_ms = on_ray.stalls_ms(keys, changed)
        stalls[name] += windows_ms
        return median(windows_ms)

    def opaque_cut() -> float:
        took_s, peak_mb = opaque_state.cut(opaque)
        peaks_mb.append(peak_mb)
        return took_s

    with session(), tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        restores = on_ray.Restores(folder, keys, changed)
        speeds = {
            "often_per_s": often,
            "none_per_s": lambda: on_ray.speed(keys, changed, seconds, None).window.records_per_s,
        }
        cases = {
            "resume_whole": lambda: restores.resume_ms(restores.whole),
            "resume_deltas": lambda: restores.resume_ms(restores.deltas),
            "stall": lambda: stall("stall", keys),
            "large_stall": lambda: stall("large_stall", LARGE * keys),
            "opaque_cut_s": opaque_cut,
            "bare_s": lambda: known["bare"](replace(opaque, folder=folder)),
        }
        found |= interleaved(speeds, SPEEDS_PER_TURN * options.turns, cold=dict.fromkeys(speeds, lambda: 0.0))
        found |= interleaved(cases, options.turns, cold=dict.fromkeys(cases, lambda: 0.0))
    found |= {name: Samples(tuple(windows_ms)) for name, windows_ms in stalls.items()}
    found["peak_mb"] = Samples(tuple(peaks_mb))
    return compare(found, windows, delta_bytes, opaque.mb / opaque.tasks, restores.files)


def compare(
    found: dict[str, Samples], windows: list[CutWindow], delta_bytes: float, share_mb: float, files: int
) -> Report:
    """What deltas save and cost. `share_mb`: opaque values of a task. `files`: those of a task in the restored cut."""
    ratios = {
        "whole": found["whole"].over(found["delta"]),
        "whole_stall": found["whole_stall"].over(found["delta_stall"]),
        "whole_restore": found["whole_restore"].over(found["deltas_restore"]),
        "plain": found["plain"].over(found["noted"]),
        "none_per_s": found["often_per_s"].over(found["none_per_s"]),
        "resume_whole": found["resume_whole"].over(found["resume_deltas"]),
        "stall": found["stall"].median / found["large_stall"].median,
        "bare_s": found["bare_s"].over(found["opaque_cut_s"]),
    }
    due = sum(int(each.window.seconds / on_ray.EVERY_S) for each in windows)
    completed = sum(each.window.epochs for each in windows)
    whole, deltas = sum(each.whole for each in windows), sum(each.deltas for each in windows)
    peak_ratio = (found["peak_mb"].median - PEAK_MB) / share_mb
    cut_ratio = found["opaque_cut_s"].over(found["bare_s"])
    restore, resume = (
        found["deltas_restore"].over(found["whole_restore"]),
        found["resume_deltas"].over(found["resume_whole"]),
    )
    capture = found["large_capture"].over(found["whole_stall"])
    stall = found["large_stall"].median / found["stall"].median
    speed = ratios["none_per_s"]
    return Report(
        bench="increments",
        unit="ms; in one process ms of CPU; *_per_s: records a second in two tasks",
        turns=len(found["delta"].figures),
        figures={name: samples for name, samples in found.items() if name not in PEERS},
        peers={name: found[name] for name in PEERS},
        ratios=ratios,
        limits=(
            Limit(
                f"a delta takes {delta_bytes:.2%} of the bytes of a whole cut, at most {BYTES_MAX:.0%}",
                delta_bytes <= BYTES_MAX,
            ),
            Limit(
                f"in one process a restore takes {restore:.2f} times as long with deltas, at most {RESTORE_MAX}",
                restore <= RESTORE_MAX,
            ),
            Limit(
                f"on Ray a restore takes {resume:.2f} times as long with deltas, at most {RESTORE_MAX}",
                resume <= RESTORE_MAX,
            ),
            Limit(
                f"a delta of ten times the keys is captured in {capture:.2f} of the time of all of a tenth, at most 1",
                capture <= 1,
            ),
            Limit(f"with ten times the keys the longest stall is {stall:.2f} times as long, at most 1", stall <= 1),
            Limit(
                f"with ten cuts a second the speed is {speed:.2f} of that of none, at least {SPEED_MIN}",
                speed >= SPEED_MIN,
            ),
            Limit(
                f"{completed} of {due} cuts completed, at least {COMPLETED_MIN:.0%}",
                completed >= COMPLETED_MIN * due,
            ),
            Limit(
                f"{deltas} of {deltas + whole} cuts hold what changed, at least {COMPLETED_MIN:.0%}",
                deltas >= COMPLETED_MIN * (deltas + whole) > 0,
            ),
            Limit(
                f"peak_ratio: {peak_ratio:.2f} of a task's share, and {PEAK_MB:.0f} MB, at most {PEAK_MAX}",
                peak_ratio <= PEAK_MAX,
            ),
            Limit(
                f"a cut of opaque values takes {cut_ratio:.2f} times as long as two bare processes, at most {CUT_MAX}",
                cut_ratio <= CUT_MAX,
            ),
        ),
        ours="delta",
        more={
            "delta_bytes": round(delta_bytes, 5),
            "epochs_requested": due,
            "epochs_completed": completed,
            "cuts_of_changes": deltas,
            "cuts_of_everything": whole,
            "delta_keys_max": max((each.rows for each in windows), default=0),
            "restored_files": files,
            "opaque_mb": round(2 * share_mb),
            "peak_ratio": round(peak_ratio, 3),
            "opaque_cut_ratio": round(cut_ratio, 3),
        },
    )
