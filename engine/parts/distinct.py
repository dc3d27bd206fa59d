"""distinct: the first record of each key.

The state of a key is one number: the time from which it may pass again, or `NEVER_MS`. A timer would forget keys
earlier, but the end of a finite flow or loop waits for its timers, and nothing waits for a key to be forgotten.
Instead, keys whose time has passed are dropped in sweeps, each after as many new keys as the last one has left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.options import Placing, is_above_zero
from backedge.graphs.process_class import Context, Process
from backedge.graphs.public import public
from backedge.graphs.stream import Stream

T = TypeVar("T")

NEVER_MS = 2**62
SWEPT_KEYS_MIN = 1_000


@public
def distinct(
    stream: Stream[T],
    key: Callable[[T], Any] | str | Sequence[str],
    *,
    within: float | None = None,
    **options: Unpack[Placing],
) -> Stream[T]:
    """Only the first record of each key; with `within`, a key passes again that many seconds after it has passed.

    >>> from backedge import Collect, Flow, Items, distinct, simulate
    >>> flow = Flow("pages")
    >>> links = flow.read(Items([{"url": "/a"}, {"url": "/b"}, {"url": "/a"}]), name="links")
    >>> distinct(links, "url").write(Collect(), name="new")
    >>> sorted(link["url"] for link in simulate(flow, seeds=range(5)).outputs["new"])
    ['/a', '/b']
    """
    name = options.setdefault("name", "distinct")
    if within is not None and not is_above_zero(within):
        raise BadOptionError(f"distinct {name!r} has within={within!r}: give seconds above 0, or leave it out")
    within_ms = None if within is None else max(1, round(within * 1000))
    # What passes is not kept, so it shares nothing with the state.
    return stream.key_by(key).process(Distinct, within_ms=within_ms, copy_output=False, **options)


class Distinct(Process[Any, Any]):
    """Keeps, for each key, until when its records are dropped.

    - new: the keys that have come since the last sweep. left: how many the last sweep has left.
    """

    def __init__(self, within_ms: int | None) -> None:
        self.within_ms = within_ms
        self.new = 0
        self.left = SWEPT_KEYS_MIN

    def on_record(self, ctx: Context[Any], value: Any) -> None:
        """Pass it, unless its key has passed."""
        if ctx.now < ctx.state.get(0):
            return
        ctx.emit(value)
        if self.within_ms is None:
            ctx.state.set(NEVER_MS)
            return
        ctx.state.set(ctx.now + self.within_ms)
        self.new += 1
        if self.new > self.left:
            self.sweep(ctx)

    def sweep(self, ctx: Context[Any]) -> None:
        """Forget the keys that may pass again."""
        self.left = SWEPT_KEYS_MIN
        for _ in ctx.keys():  # noqa: SIM118  # ctx is not a dict
            if ctx.state.get() <= ctx.now:
                ctx.state.clear()
            else:
                self.left += 1
        self.new = 0
