"""The user's view of a cut: an error of the store while it is read is not the user's."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from backedge import Collect, Flow, Range
from engine.cut_view import CutUnreadableError, CutView
from graphs.expansion import expand
from graphs.ids import Epoch
from recovery.outline import CutOutline, OperatorOutline, TaskOutline


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
