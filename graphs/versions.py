"""Versions of a large value that a flow makes while it runs, such as the weights of a model that a loop trains.

A process class publishes a value and gets a number. Records carry the number; functions that read it get the value,
which travels beside the records: each host has one copy of its arrays and tables, and cuts name it by its digest.

What a number stands for, the engine says with `use_versions`: in a process of a run, what the current attempt has
published, or what the cut names that it has restored. `recovery/protocol/versions.py` has the rules.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from backedge.graphs.public import public


@public
class VersionNotKeptError(LookupError):
    """A function asked for a version that is not kept any more, or was never published.

    Fix: raise `keep=` of `flow.versions`, the number of versions that can be read. `ctx.publish` returns the numbers.
    """


@public
class Versions:
    """The versions of a value that a process class publishes. `flow.versions` makes one.

    >>> from backedge import Collect, Flow, Items, Process, simulate
    >>> flow = Flow("training")
    >>> weights = flow.versions("weights", keep=2)
    >>> class Learn(Process):
    ...     def on_record(self, ctx, step):
    ...         ctx.emit(ctx.publish(weights, {"step": step}))
    >>> numbers = flow.read(Items([5, 6]), name="steps", parallelism=1).process(Learn, name="learn", parallelism=1)
    >>> numbers.rebalance().map(lambda number: (number, weights[number]["step"])).write(Collect(), name="done")
    >>> sorted(simulate(flow, seeds=range(3)).outputs["done"])
    [(1, 5), (2, 6)]
    """

    def __init__(self, flow: str, name: str, keep: int) -> None:
        self.flow = flow
        self.name = name
        self.keep = keep

    def __getitem__(self, number: int) -> Any:
        """The value that was published under a number. Do not change it: others read the same memory."""
        return source_of(self).read(self, number)

    def not_kept(self, number: int, kept: Collection[int]) -> VersionNotKeptError:
        """The error to raise for a number, if these are kept."""
        listed = ", ".join(map(str, sorted(kept))) or "none"
        fix = "publish it first: ctx.publish returns the numbers"
        if number in range(1, max(kept, default=0)):
            fix = f"its record has come too late; raise keep={self.keep} of flow.versions({self.name!r})"
        return VersionNotKeptError(
            f"version {number!r} of {self.name!r} is not kept; kept now: {listed}, the last {self.keep}: {fix}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Versions, (self.flow, self.name, self.keep)

    def __deepcopy__(self, memo: dict[int, Any]) -> Versions:
        return self

    def __repr__(self) -> str:
        return f"<versions {self.name!r} of flow {self.flow!r}>"


class VersionSource(Protocol):
    """The versions that one attempt may read, in one process."""

    def read(self, versions: Versions, number: int) -> Any:
        """The value of a version. Raises `VersionNotKeptError`."""
        ...

    def publish(self, versions: Versions, number: int, value: Any, kept: Collection[int]) -> Any:
        """Let all tasks of the attempt read a value under this number; return what the publishing task keeps of it.

        `kept`: the numbers that the task has kept until now.
        """
        ...


class AttemptOverError(BaseException):
    """A version could not be read or published, because the attempt is over or a process that has it has died.

    Or a call could not begin, because the attempt that has made its instance is over.

    No error of the user's function, which must not handle it: the attempt ends, and the run goes on with another one.
    """


_sources: dict[str, VersionSource] = {}


def use_versions(flow: str, source: VersionSource) -> None:
    """Have the versions of a flow come from `source`, in this process."""
    _sources[flow] = source


def source_of(versions: Versions) -> VersionSource:
    source = _sources.get(versions.flow)
    if source is None:
        raise LookupError(
            f"{versions!r} have no values in this process, which is no process of a run of that flow: use them in "
            "functions of the flow"
        )
    return source
