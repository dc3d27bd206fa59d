"""`backedge attach`, `savepoint`, `stop` and `cancel`: a detached run from any terminal, found by its job's name."""

from __future__ import annotations

import argparse

from backedge.following import DONE, FAILED, Following, say
from engine.on_ray.api.detached_runs import attach
from engine.on_ray.api.job_handle import Job, RunResult
from engine.on_ray.run_spec import RequestFailedError


def follow_run(given: argparse.Namespace) -> int:
    """Follow the run to its end, and report it as `backedge run` does. Ctrl-C leaves it alone."""
    following = Following("attach", given)

    def act() -> int:
        job = attach(given.job)
        return following.follow(job, given.job, job.wait)

    return following.obey(act)


def take_savepoint(given: argparse.Namespace) -> int:
    """Take a savepoint of the run, and print its epoch."""
    following = Following("savepoint", given)

    def act() -> int:
        try:
            epoch = attach(given.job, progress=False).savepoint(given.name)
        except RequestFailedError as error:
            return say("savepoint", str(error), FAILED)
        found = {"job": given.job, "savepoint": given.name, "epoch": epoch}
        following.tell(found, f"{given.job}: savepoint {given.name!r} is epoch {epoch}")
        return DONE

    return following.obey(act)


def stop_run(given: argparse.Namespace) -> int:
    """End the run with a savepoint, and report it."""
    following = Following("stop", given)

    def act() -> int:
        job = attach(given.job, progress=False)
        try:
            return following.follow(job, given.job, lambda: job.stop(given.name))
        except RequestFailedError as error:
            return say("stop", f"{error}; the run goes on", FAILED)

    return following.obey(act)


def cancel_run(given: argparse.Namespace) -> int:
    """End the run at once, and report it."""
    following = Following("cancel", given)

    def act() -> int:
        job = attach(given.job, progress=False)
        return following.follow(job, given.job, lambda: _cancelled(job))

    return following.obey(act)


def _cancelled(job: Job) -> RunResult:
    job.cancel()
    return job.wait()
