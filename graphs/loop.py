"""The open end of a loop: a stream that is consumed before it is fed."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from backedge.graphs.draft import Draft, OpenLoop, Tail
from backedge.graphs.graph_errors import BadOptionError, FedTwiceError, LoopError, UnknownOutputError
from backedge.graphs.hops import HOPS_MAX, counts_up_to
from backedge.graphs.naming import check_name
from backedge.graphs.options import check_choice, check_count
from backedge.graphs.public import public
from backedge.graphs.stream import Stream, check_stream

T = TypeVar("T")

OnLimit = Literal["dead_letter", "fail"]


@public
class Loop(Stream[T]):
    """The records that come round the loop. `feed` closes the loop with a stream; that connection is the back edge.

    Each record counts the rounds it has made. A record made from several takes the largest of their counts.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow("halve")
    >>> again = flow.loop("again", of=int)
    >>> odd, even = flow.read(Items([12, 7])).merge(again).split(lambda n: n % 2 == 1)
    >>> again.feed(even.map(lambda n: n // 2))
    >>> odd.write(Collect(), name="odd")
    >>> [edge.name for edge in flow.plan().edges if edge.is_back]
    ['map-1.out->split-1.in']
    """

    def __init__(self, draft: Draft, loop: OpenLoop) -> None:
        super().__init__(draft, (Tail("", loop=loop.name),))
        self._loop = loop

    def feed(self, stream: Stream[T]) -> None:
        """Close the loop: send the records of `stream` round. Call it once per loop."""
        name = self._loop.name
        check_stream(self.draft, stream, f"loop {name!r}")
        if self._loop.fed is not None:
            raise FedTwiceError(f"loop {name!r} is fed twice: merge the two streams and feed the merged one")
        if any(tail.loop is not None for tail in stream.tails):
            raise LoopError(
                f"loop {name!r} is fed with the open end of a loop, on which no operator would ever run: "
                "put an operator in between"
            )
        self._loop.fed = stream.tails

    @property
    def dead_letters(self) -> Stream[Any]:
        """The records that would have gone round more than `max_rounds` times. If unread, they are kept and counted."""
        if self._loop.max_rounds is None or self._loop.on_limit != "dead_letter":
            raise UnknownOutputError(
                f'loop {self._loop.name!r} has no dead letters: give it max_rounds= and on_limit="dead_letter"'
            )
        return Stream(self.draft, (Tail("", "dead", loop=self._loop.name),))


def open_loop(
    draft: Draft, name: str, max_rounds: int | None = None, on_limit: OnLimit = "dead_letter", endless: bool = False
) -> Loop[Any]:
    """Open a loop of this name; its back edge is added by `feed`."""
    what = f"loop {check_name(name, 'loop')!r}"
    draft.check_free(name, what)
    check_choice(on_limit, ("dead_letter", "fail"), "on_limit", what)
    if max_rounds is not None:
        check_count(max_rounds, "max_rounds", what)
        if endless:
            raise BadOptionError(
                f"{what} is endless but has max_rounds={max_rounds}, which ends it: leave out one of the two"
            )
    elif on_limit == "fail":
        raise BadOptionError(f'{what} has on_limit="fail" but no limit: give it max_rounds=')
    loop = OpenLoop(name, max_rounds, on_limit, endless)
    limits = [other.max_rounds for other in (*draft.loops.values(), loop) if other.max_rounds is not None]
    if counts_up_to(limits) > HOPS_MAX:
        raise BadOptionError(
            f"{what}: the limits of {len(limits)} loops multiply to {counts_up_to(limits):,}, more than can be counted "
            f"({HOPS_MAX:,}): use a lower max_rounds"
        )
    draft.loops[name] = loop
    return Loop(draft, loop)
