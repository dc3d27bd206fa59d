"""What the supervisor needs to know about a run, and the errors that a run ends with."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from backedge.engine.on_ray.planned_faults import Kill
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Epoch
from backedge.graphs.public import public
from backedge.recovery.protocol.pipelines import THE_JOB, Pipeline
from backedge.recovery.protocol.restarts import RestartOptions
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.restore.graph_change import GraphChange
from backedge.recovery.stores.keys import derived_key


@public
class RunFailedError(RuntimeError):
    """The run has failed for good; the message says why.

    Fix: remove the cause, then start the same run with `resume="latest"`.
    """


@public
class RequestFailedError(RuntimeError):
    """A requested savepoint, rescale or stop failed; the message says why.

    Fix: look at the state of the run with `backedge status`, and ask again if it is alive. If `is_for_good`, the same
    request would fail again: correct it.
    """

    def __init__(self, message: str, *, is_for_good: bool = False) -> None:
        super().__init__(message)
        self.is_for_good = is_for_good


RESULT_KEPT_S = 60.0
"""Seconds for which the supervisor of a detached run stays when the run has ended."""

NOT_COMPARED = ("snapshots", "key", "resume", "replace_output", "drop", "rename", "detached", "progress")
"""Options that a process that joins a run may give otherwise. The first two are compared as `root` and `key`."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What two calls have in common if they start the same run. `key` is derived from the one that signs cuts.

    `constants` has digests: of the joining call, only those of values that it gives.

    >>> a = RunIdentity("f00d", "/cuts", None, {"parallelism": 2, "every": 0.5})
    >>> a.differences(RunIdentity("f00d", "/cuts", b"..", {"parallelism": 3, "every": 0.5}))
    ['another key', 'parallelism=2, not 3']
    """

    graph: str
    root: str | None
    key: bytes | None = field(repr=False)
    options: dict[str, Any]
    constants: Mapping[str, str] = field(default_factory=dict[str, str])

    def differences(self, living: RunIdentity) -> list[str]:
        """What this call has and the living run has not."""
        found = ["another graph"] if self.graph != living.graph else []
        if self.root != living.root:
            found.append(f"snapshots={self.root!r}, not {living.root!r}")
        if self.key != living.key:
            found.append("another key")
        found += [
            f"another value of constant {name!r}"
            for name, digest in self.constants.items()
            if living.constants.get(name) != digest
        ]
        pairs = ((name, value, living.options[name]) for name, value in self.options.items())
        return found + [f"{name}={value!r}, not {theirs!r}" for name, value, theirs in pairs if value != theirs]


def identity_of(graph: str, options: TaskOptions, run: RunOptions, constants: Mapping[str, str]) -> RunIdentity:
    """The identity of a run of this graph with these options and digests of constants."""
    compared = {option.name: getattr(run, option.name) for option in fields(run) if option.name not in NOT_COMPARED}
    return RunIdentity(graph, options.root, derived_key(options.key, "join"), compared, constants)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A run, or one pipeline of a run: its tasks, the user's options, and these options in the core's terms.

    `change` leads from the graph of the cut that the run begins with to the graph of the run, if they differ. `id` is a
    random number that all supervisors of the run share, and no other run of the job has. `result_kept_s`: how long the
    supervisor of a detached run stays when the run has ended. `resume_from`: the cut to resume from; None means the
    latest one, or the beginning. `graph` is the hash of the whole flow.
    """

    deployment: Deployment
    options: TaskOptions
    snapshots: SnapshotOptions
    run: RunOptions = field(default_factory=RunOptions)
    kills: tuple[Kill, ...] = ()
    change: GraphChange | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    result_kept_s: float = RESULT_KEPT_S
    resume_from: Epoch | None = None
    pipeline: Pipeline = THE_JOB
    graph: str = ""

    @property
    def identity(self) -> RunIdentity:
        """What another call must have in common with this run to join it."""
        digests = {name: file.digest for name, file in self.options.constants.items()}
        return identity_of(self.graph, self.options, self.run, digests)

    @property
    def takeovers_max(self) -> int:
        """How many supervisors may be replaced. Without snapshots there is nothing to continue from."""
        return 0 if self.options.root is None else self.run.max_restarts

    def for_successor(self) -> RunSpec:
        """The same run, without the planned faults that happen once, which may have happened already."""
        return replace(self, kills=tuple(kill for kill in self.kills if kill.when == "every"))

    @property
    def restarts(self) -> RestartOptions:
        run = self.run
        return RestartOptions(
            run.max_restarts,
            None if run.restart_window is None else int(run.restart_window * 1000),
            pause_ms=int(run.restart_pause * 1000),
            pause_ms_max=int(run.restart_pause_max * 1000),
            is_exponential=run.restart_strategy == "exponential",
        )

    @property
    def silence_ms(self) -> int:
        """Milliseconds without a report after which an actor counts as silent."""
        return int(self.run.silence_timeout * 1000)
