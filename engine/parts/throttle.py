"""throttle: records of a key leave one after the other, with a pause between them, and only some at a time.

1. What waits for its turn is in the state of its key, in the order in which it came, with the rounds that it has made.
2. A key has one timer, for the end of its pause. When that has passed and nothing of the key is waiting or out, the key
   has no state any more.
3. After a restore many timers may be due at once, so a record leaves when the pause is over on the clock, not when a
   timer fires.
4. A failed attempt may have let records go that its last cut does not know. So each attempt begins with a pause.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack, cast

from msgspec import Struct

from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.options import Placing, check_count, is_above_zero
from backedge.graphs.process_class import Context, ProcessInputs
from backedge.graphs.public import public
from backedge.graphs.stream import Stream, add_process
from backedge.graphs.task_errors import MisuseError, show

T = TypeVar("T")


@public
def throttle(
    stream: Stream[T],
    key: Callable[[T], Any] | str | Sequence[str],
    *,
    delay: float | None = None,
    in_flight: int | None = None,
    done: Stream[Any] | None = None,
    **options: Unpack[Placing],
) -> Stream[T]:
    """Records of a key leave at least `delay` seconds apart, and at most `in_flight` of them are out at a time.

    A record is out until one with the same key comes on the stream `done`, usually a loop that is fed with what became
    of the records: everything that has left has to come back there, also what has failed. Records of a key leave in the
    order in which they have come.

    >>> from backedge import Collect, Flow, Items, simulate, throttle
    >>> flow = Flow("fetches")
    >>> finished = flow.loop("finished", of=dict)
    >>> urls = flow.read(Items([{"host": "a", "path": path} for path in "xyz"]), name="urls")
    >>> held = throttle(urls, "host", delay=1.0, in_flight=2, done=finished)
    >>> fetched = held.map(lambda url: {**url, "status": 200}, name="fetch")
    >>> finished.feed(fetched)
    >>> fetched.write(Collect(), name="pages")
    >>> [page["path"] for page in simulate(flow, seeds=range(1)).outputs["pages"]]
    ['x', 'y', 'z']
    """
    what = f"throttle {options.setdefault('name', 'throttle')!r}"
    if delay is None and in_flight is None:
        raise BadOptionError(f"{what} holds nothing back: give delay=, in seconds, or in_flight= and done=")
    if delay is not None and not is_above_zero(delay):
        raise BadOptionError(f"{what} has delay={delay!r}: give seconds above 0, or leave it out")
    if in_flight is not None:
        check_count(in_flight, "in_flight", what)
    if (in_flight is None) != (done is None):
        raise BadOptionError(f"{what}: in_flight= and done= belong together, the records that are out and their return")
    inputs: dict[str, Stream[Any]] = {"in": stream.key_by(key)}
    if done is not None:
        inputs["done"] = done.key_by(key)
    arguments = {"delay_ms": math.ceil((delay or 0) * 1000), "in_flight": in_flight}
    # A record leaves the state when it leaves, so they share nothing.
    settings: dict[str, Any] = {**options, "copy_output": False}
    return add_process(stream.draft, Throttle, inputs, settings, arguments, named_inputs=True)


class Held(Struct):
    """The state of a key: what waits, each with its hops, how many are out, and from when the next one may leave."""

    waiting: deque[tuple[Any, int]]
    out: int = 0
    from_ms: int = 0


class Throttle(ProcessInputs[Any, Any]):
    """Lets records of a key go. `from_ms`: the end of the pause with which the attempt begins."""

    def __init__(self, delay_ms: int, in_flight: int | None) -> None:
        self.delay_ms = delay_ms
        self.in_flight = in_flight
        self.from_ms: int | None = None

    def on_record(self, ctx: Context[Any], input: str, value: Any) -> None:
        """A record comes, or comes back."""
        held = cast(Held, ctx.state.get() or Held(deque()))
        if input == "in":
            held.waiting.append((value, ctx.hops))
        elif held.out:
            held.out -= 1
        else:
            # Not an error: a batch that was damaged on its way is found out at the next barrier.
            ctx.counter("done_without_being_out").add()
        self.let_go(ctx, held)

    def on_timer(self, ctx: Context[Any], at_ms: int) -> None:
        """A pause is over."""
        if (held := ctx.state.get()) is not None:
            self.let_go(ctx, held)

    def on_end(self, ctx: Context[Any]) -> None:
        """Nothing comes back any more: raise if records wait for that."""
        for _ in ctx.keys():  # noqa: SIM118  # ctx is not a dict
            if waiting := cast(Held, ctx.state.get()).waiting:
                raise MisuseError(
                    f"throttle ends while {show(waiting[0][0])} waits for a record that left before it and did not "
                    "come back: feed done= with what became of each record, also of those that failed"
                )

    def let_go(self, ctx: Context[Any], held: Held) -> None:
        """Emit what may leave, and wake up when more may."""
        if self.from_ms is None:
            self.from_ms = ctx.now + self.delay_ms
        in_flight = math.inf if self.in_flight is None else self.in_flight
        from_ms = max(held.from_ms, self.from_ms)
        while held.waiting and held.out < in_flight and ctx.now >= from_ms:
            record, hops = held.waiting.popleft()
            ctx.emit(record, hops=hops)
            held.out += self.in_flight is not None
            held.from_ms = from_ms = ctx.now + self.delay_ms
        is_idle = not held.waiting and not held.out
        if is_idle and ctx.now >= from_ms:
            ctx.state.clear()
            return
        if ctx.now < from_ms and (is_idle or (held.waiting and held.out < in_flight)):
            ctx.set_timer(from_ms)
        ctx.state.set(held)
