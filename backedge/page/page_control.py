"""What the buttons of the live page do to a run: savepoint, stop, rescale, cancel. Only with `--control`."""

from __future__ import annotations

from collections.abc import Callable

from backedge.engine.on_ray.api.job_handle import Job
from backedge.flows import WrongCallError
from backedge.living_commands import parallelism_in


class PageControl:
    """Steers the living runs of a page. `job_of` finds a run by its number."""

    def __init__(self, job_of: Callable[[str], Job]) -> None:
        self._job_of = job_of

    def steer(self, run: str, action: str, given: str) -> str:
        """Do it, and say what was done. Blocks. `given` is the name of a cut, or the numbers of tasks."""
        match action:
            case "savepoint":
                return f"savepoint {given!r} is cut {self._job_of(run).savepoint(given)}"
            case "stop":
                return f"the run ends with cut {self._job_of(run).request_stop(given)}, {given!r}"
            case "rescale":
                if not given:
                    raise WrongCallError("give the number of tasks for all operators, or OPERATOR=NUMBER for each")
                gap_ms = self._job_of(run).rescale(parallelism_in(given.split()))
                return f"rescaled to {given}; no task ran for {gap_ms} ms"
            case "cancel":
                self._job_of(run).cancel()
                return "cancelled; its last complete cut stays"
            case _:
                raise WrongCallError(f"{action!r} is none of savepoint, stop, rescale and cancel")
