"""Sources whose splits are found while they are read: two operators and a loop between them.

    splits  --- key of the reader: a split --->  reader tasks  ---> records
       ^                                              |
       +------------- a split that is read <----------+

One task finds splits and hands each to a reader that has nothing to read, or, if splits never end, to the one that has
the fewest. A reader reports what it has read, over a back edge. So nothing is new for the protocol: a split that was
handed out is a record of a loop, and its position is the state of its reader by key. The key says which reader has it,
also after there are other readers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from backedge.graphs.draft import Draft, Tail
from backedge.graphs.io import Source
from backedge.graphs.kinds import BuiltIn, Read
from backedge.graphs.loop import open_loop
from backedge.graphs.operator_kind import Shape
from backedge.graphs.options import Placing
from backedge.graphs.plan import Operator, Plan
from backedge.graphs.rate import Rate
from backedge.graphs.routing import groups_of_task, key_in_group
from backedge.graphs.stream import Stream, add_step

WANTED, READ = "wanted", "read"
"""The value of a split that is not handed out yet, and of one that is read. In between it is the key of its reader."""

AHEAD = 2
"""How many splits a reader has while there are more than readers: it does not wait for the next one."""


def has_enough(source: Source[Any], load: int, wanted: int, readers: int) -> bool:
    """Whether a reader that has `load` splits gets none of those that are wanted for now."""
    return source.splits_end and load >= (AHEAD if wanted > readers else 1)


def free_key(taken: Collection[int], task: int, readers: int, load: int) -> int:
    """A key that leads to this reader, which has `load` splits, and that no other split has.

    The keys of a reader are far apart: if there are more readers, each gets some of its splits.

    >>> from backedge.graphs.routing import key_group, task_of_group
    >>> key = free_key((), 1, 2, load=0)
    >>> task_of_group(key_group(key), 2), free_key((key,), 1, 2, load=0) == key
    (1, False)
    >>> [task_of_group(key_group(free_key((), 0, 1, load)), 4) for load in range(4)]
    [0, 2, 1, 3]
    """
    groups, bits, number = groups_of_task(task, readers), f"{load:b}", 0
    group = groups[int(bits[::-1], 2) * len(groups) >> len(bits)]
    while (key := key_in_group(group, number)) in taken:
        number += 1
    return key


@dataclass(frozen=True)
class FindSplits(BuiltIn):
    """Finds the splits of a source, and hands each to a task of the operator `readers`."""

    source: Source[Any]
    readers: str

    runtime = "backedge.engine.operators.find_splits:FindSplitsOperator"
    kind_word = "splits"
    drawn_as: ClassVar[Shape] = "source"
    is_source = True

    @property
    def subject(self) -> Any:
        return self.source

    @property
    def may_wait(self) -> bool:
        return True


@dataclass(frozen=True)
class ReadSplits(Read):
    """Reads the splits that are handed to its tasks."""

    runtime = "backedge.engine.operators.read_splits:ReadSplitsOperator"
    kind_word = "reader of splits"
    is_source = False

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("out", "finished")


def sources_of(plan: Plan) -> list[str]:
    """The operators that read, in the place of those that find splits for them."""
    return [source_name(operator) for operator in plan.operators.values() if operator.kind.is_source]


def source_name(operator: Operator) -> str:
    """The name of a source, also of the operator that finds its splits."""
    return operator.kind.readers if isinstance(operator.kind, FindSplits) else operator.name


def add_discovered(draft: Draft, source: Source[Any], rate: Rate | None, options: Placing) -> Stream[Any]:
    """Read a source that goes on finding splits."""
    name = draft.name_for(Read(source), options.get("name"))
    # What is wrong with it is found before a part of it is added.
    draft.check_free(name, f"operator {name!r}")
    add_step(Draft(draft.name), Read(source, rate), {}, {**options, "name": name})
    finished = open_loop(draft, f"{name}.finished", endless=True)
    found = add_step(
        draft,
        FindSplits(source, name),
        {"finished": finished.key_by("split")},
        {"name": f"{name}.splits", "parallelism": 1},
    )
    splits = Stream[Any](draft, (Tail(found),)).key_by("key")
    add_step(draft, ReadSplits(source, rate), {"splits": splits}, {**options, "name": name})
    finished.feed(Stream(draft, (Tail(name, "finished"),)))
    return Stream(draft, (Tail(name),))
