"""The user's view of a complete cut: the argument of `stop_when` and of invariants."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from backedge.engine.batches.batch import copy_records, decode
from backedge.engine.batches.columns import as_records
from backedge.engine.state.keyed_state import keyed_entries
from backedge.graphs.ids import ChannelId
from backedge.graphs.plan import Operator, Plan, loops_of_edges
from backedge.graphs.public import public
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.messages import marker_in
from backedge.recovery.restore.outline import CutOutline
from backedge.recovery.restore.restore_task import CutFiles, Logs

Transactions = Mapping[str, tuple[str, list[Any]]]
"""Transaction name -> sink operator and records."""


class CutUnreadableError(Exception):
    """A file of a complete cut could not be read; it may be readable later."""


@contextmanager
def reading_cut() -> Generator[None]:
    """Tell errors of the store apart from those of the user's function that reads through it."""
    try:
        yield
    except OSError as error:
        raise CutUnreadableError(str(error)) from error


@public
class CutView:
    """A consistent state of the whole run: every record is in it exactly once.

    A record is either not yet read, in the state of an operator, in a loop, or in the output; with policy "unaligned",
    or in front of a slow operator, it may also be in another channel. Only the parts that you ask for are read. Results
    may be modified.

    >>> from backedge.engine.simulation.simulate import simulate
    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow("count")
    >>> numbers = flow.read(Items([3, 4, 3]), name="numbers").key_by(lambda n: n)
    >>> counted = numbers.stateful_map(lambda count, n: (count + 1, (n, count + 1)), initial=0, name="counts")
    >>> counted.write(Collect(), name="counted")
    >>> def all_counted_is_written(view):
    ...     return sum(view.state("counts").values()) == len(view.output("counted"))
    >>> simulate(flow, seeds=range(5), invariant=all_counted_is_written).outputs["counted"]
    [(3, 1), (4, 1), (3, 2)]
    """

    def __init__(
        self, cut: CutOutline, files: CutFiles, plan: Plan, published: Transactions, prepared: Transactions
    ) -> None:
        """`published` may include output of earlier cuts; those of `prepared` that the cut lists belong to it."""
        self._cut = cut
        self._files = files
        self._plan = plan
        self._loops = loops_of_edges(plan.edges)
        listed = {name for task in cut.tasks.values() for name in task.transactions}
        later = [prepared[name] for name in sorted(listed & prepared.keys())]
        self._output = [*published.values(), *later]

    @property
    def epoch(self) -> int:
        """The number of the cut. Numbers increase, with gaps."""
        return self._cut.epoch

    def state(self, operator: str) -> dict[Any, Any]:
        """Key -> value, for an operator that keeps values by key, over all of its tasks."""
        self._named(operator, _keeps_values, "operator", "that keeps values by key")
        found = (keyed_entries(state, operator).values for state in self._states(operator))
        return {key: value for values in found for key, value in values.items()}

    def in_loop(self, loop: str) -> list[Any]:
        """The records in transit in a loop, and not in a loop within it; of an iteration, also the next round.

        They are on the back edge. With policy "unaligned", or in front of a slow operator, others are on other edges. A
        record on an edge that two loops share is in one of them.
        """
        loops = sorted({edge.loop for edge in self._plan.edges if edge.loop is not None})
        if loop not in loops:
            raise LookupError(f"there is no loop {loop!r}; the loops are {', '.join(map(repr, loops)) or 'none'}")
        found = [
            record
            for channel, payload, skip in self._in_channels()
            if self._loops.get(channel.edge) == loop and marker_in(payload) is None
            for record in as_records(decode(payload).rest(skip).records)
        ]
        if loop in self._plan.operators:
            found += [pickle.loads(payload)[0] for state in self._states(loop) for payload in state.pending]
        return found

    def output(self, sink: str) -> list[Any]:
        """Everything that the sink has published once the cut's output is published."""
        self._named(sink, lambda operator: operator.kind.is_sink, "sink", "")
        return copy_records([record for name, records in self._output if name == sink for record in records])

    def _states(self, operator: str) -> Iterator[OperatorState]:
        for id, task in self._cut.tasks.items():
            if operator in task.operators:
                with reading_cut():
                    state = self._files.state(id, operator)
                yield state

    def _in_channels(self) -> Iterator[tuple[ChannelId, bytes, int]]:
        """The batches between two tasks at the cut, logged or set aside for a later round.

        With each batch comes the number of its records that were processed before the cut.
        """
        for id, task in self._cut.tasks.items():
            with reading_cut():
                logs: Logs = self._files.logs(id) if task.logs else {}
                rounds = None if task.rounds is None else self._files.rounds(id)
            for channel, entries in logs.items():
                for entry in entries:
                    yield channel, entry.payload, entry.skip
            for channel, payloads in () if rounds is None else rounds.aside.items():
                for place, payload in enumerate(payloads):
                    yield channel, payload, 0 if place or rounds is None else rounds.skips.get(channel, 0)

    def _named(self, name: str, fits: Callable[[Operator], bool], kind: str, which: str) -> None:
        names = [operator.name for operator in self._plan.operators.values() if fits(operator)]
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise LookupError(f"there is no {kind} {name!r} {which}".rstrip() + f"; there are: {known}")


def _keeps_values(operator: Operator) -> bool:
    return operator.kind.keeps_values and bool(operator.keys)
