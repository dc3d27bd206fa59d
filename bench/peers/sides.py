"""Processes of a peer that is written by hand: started afresh, and gone whatever happens."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

ANSWER_TIMEOUT_S = 180.0


def run_sides(target: Callable[..., None], sides: Sequence[tuple[Any, ...]], answers: int) -> list[float]:
    """Run `target(tell, *side)` in a process for each side, until so many figures have been told by `tell.send`."""
    spawn = multiprocessing.get_context("spawn")
    told, tell = spawn.Pipe(duplex=False)
    processes = [spawn.Process(target=target, args=(tell, *side), daemon=True) for side in sides]
    try:
        for process in processes:
            process.start()
        tell.close()
        found: list[float] = []
        while len(found) < answers:
            if not told.poll(ANSWER_TIMEOUT_S):
                raise RuntimeError(f"a peer has said nothing for {ANSWER_TIMEOUT_S:.0f} s")
            found.append(told.recv())
        return found
    finally:
        for process in processes:
            if process.is_alive():
                process.join(2)
                process.kill()
            if process.pid is not None:
                process.join()
