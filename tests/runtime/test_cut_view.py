"""The user's view of a cut: every record is in it once, and an error of the store is not the user's."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from backedge import Collect, Flow, Items, Range, simulate
from backedge.engine.cut_view import CutUnreadableError, CutView
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Epoch
from backedge.recovery.restore.outline import CutOutline, OperatorOutline, TaskOutline


class Unreadable:
    """Files on a disk that does not answer."""

    def state(self, *_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    logs = rounds = state


def view() -> CutView:
    flow = Flow("counting")
    again = flow.loop("again", max_rounds=3)
    numbers = flow.read(Range(3)).merge(again).key_by(lambda n: n)
    counted = numbers.stateful_map(lambda count, n: (count + 1, n), initial=0, name="counts")
    done, rest = counted.split(lambda n: True)
    again.feed(rest)
    done.write(Collect())
    plan = flow.plan()
    tasks = {
        id: TaskOutline(
            ended=False,
            operators={name: OperatorOutline() for name in task.operators},
            logs={channel.id: 1 for channel in task.inputs},
        )
        for id, task in expand(plan).tasks.items()
    }
    return CutView(CutOutline(Epoch(1), plan.hash, {}, tasks), Unreadable(), plan, {}, {})


@pytest.mark.parametrize("read", [lambda view: view.state("counts"), lambda view: view.in_loop("again")])
def test_a_store_that_does_not_answer_is_told_apart_from_an_error_of_the_users(read: Any):
    with pytest.raises(CutUnreadableError, match=os.strerror(errno.EIO)):
        read(view())


def test_a_record_in_a_loop_is_found_on_each_of_its_edges():
    """Also where a cut logs those that do not lead back, as it does with this policy and in front of slow operators."""
    flow = Flow("countdown")
    again = flow.loop("again")
    entered = flow.read(Items([(id, 3) for id in range(6)])).merge(again).key_by(lambda record: record[0])
    head = entered.stateful_map(lambda seen, record: (seen + 1, record), initial=0, name="head")
    left = head.rebalance().map(lambda record: (record[0], record[1] - 1), name="body")
    more, done = left.split(lambda record: record[1] > 0)
    again.feed(more)
    done.write(Collect(), name="done")
    on_other_edges = []

    def is_whole(cut: CutView) -> bool:
        inside = cut.in_loop("again")
        on_other_edges.extend(record for record in inside if record[1] == 3)
        return sorted(record[0] for record in inside + cut.output("done")) == sorted(cut.state("head"))

    simulate(flow, seeds=[4, 5], policy="unaligned", invariant=is_whole)
    assert on_other_edges, "on the back edge at most 2 rounds are left"
