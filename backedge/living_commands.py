"""`backedge attach`, `savepoint`, `rescale`, `rate`, `stop`, `cancel`: a detached run from any terminal, by its job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from backedge.arguments import digits
from backedge.engine.on_ray.api.detached_runs import attach
from backedge.engine.on_ray.api.job_handle import Job, RunResult
from backedge.engine.on_ray.run_spec import RequestFailedError
from backedge.flows import WrongCallError
from backedge.following import DONE, FAILED, Following, command, say
from backedge.graphs.rate import OFF, rate_in
from backedge.graphs.wording import one_line


@command("attach")
def follow_run(following: Following, given: argparse.Namespace) -> int:
    """Follow the run to its end, and report it as `backedge run` does. Ctrl-C leaves it alone."""
    job = attach(given.job)
    return following.follow(job, given.job, job.wait)


@command("savepoint")
def take_savepoint(following: Following, given: argparse.Namespace) -> int:
    epoch = attach(given.job, progress=False).savepoint(given.name)
    found = {"job": given.job, "savepoint": given.name, "epoch": epoch}
    following.tell(found, f"{given.job}: savepoint {given.name!r} is epoch {epoch}")
    return DONE


@command("rescale")
def rescale_run(following: Following, given: argparse.Namespace) -> int:
    """Give the run another number of tasks, and print for how long none of them ran."""
    parallelism = parallelism_in(given.parallelism)
    gap_ms = attach(given.job, progress=False).rescale(parallelism)
    following.tell({"job": given.job, "gap_ms": gap_ms}, f"{given.job}: rescaled, no task ran for {gap_ms} ms")
    return DONE


def parallelism_in(words: Sequence[str]) -> int | dict[str, int]:
    """The number of tasks for all operators, or for each that is named.

    >>> parallelism_in(["3"]), parallelism_in(["grow=3", "done=1"])
    (3, {'grow': 3, 'done': 1})
    """
    found: dict[str, int] = {}
    for word in words:
        name, is_named, number = word.rpartition("=")
        tasks = digits(number)
        if not tasks or bool(is_named) != bool(name):
            raise WrongCallError(f"parallelism {one_line(word)}: give a number of at least 1, or OPERATOR=NUMBER")
        if name in found:
            raise WrongCallError(f"parallelism gives {one_line(name) or 'a number'} twice: leave out one of them")
        found[name] = tasks
    if "" not in found:
        return found
    if len(words) > 1:
        raise WrongCallError("parallelism: give one number for all operators, or OPERATOR=NUMBER for each")
    return found[""]


@command("rate")
def limit_source(following: Following, given: argparse.Namespace) -> int:
    """Limit what the tasks of a source read, from now on."""
    rate = str(rate_in(given.rate) or OFF)
    attach(given.job, progress=False).rate(given.source, rate)
    found = {"job": given.job, "source": given.source, "rate": rate}
    following.tell(found, f"{given.job}: the rate of {given.source} is {rate}")
    return DONE


@command("stop")
def stop_run(following: Following, given: argparse.Namespace) -> int:
    job = attach(given.job, progress=False)
    try:
        return following.follow(job, given.job, lambda: job.stop(given.name))
    except RequestFailedError as error:
        return say("stop", f"{error}; the run goes on", FAILED)


@command("cancel")
def cancel_run(following: Following, given: argparse.Namespace) -> int:
    job = attach(given.job, progress=False)
    return following.follow(job, given.job, lambda: _cancelled(job))


def _cancelled(job: Job) -> RunResult:
    job.cancel()
    return job.wait()
