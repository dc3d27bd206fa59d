"""What each kind of operator makes of a batch, with hops of one number and of several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backedge import Stream
from backedge.graphs.task_errors import UserFunctionError
from tests.every import every
from tests.runtime.tasks import Tasks, by_receiver, flow_of, records_of


def sent(tasks: Tasks, records: list[Any], hops: Any = 0) -> list[tuple[str, list[Any], Any]]:
    """Where each batch went, its records, its hops."""
    return [(str(c.receiver), list(b.records), b.hops) for c, b in tasks.feed("op", records, hops)]


def fail_on_three(n: int) -> int:
    if n == 3:
        raise ValueError("three")
    return n


HOPS: dict[str, tuple[Any, list[tuple[list[int], Any, list[Any]]]]] = {
    "map keeps the hops of each record": (
        lambda s: s.map(lambda n: n * 10, name="op"),
        [([1, 2], 0, [("sink/0", [10, 20], 0)]), ([1, 2], [3, 4], [("sink/0", [10, 20], [3, 4])])],
    ),
    "filter keeps the hops of the records it keeps": (
        lambda s: s.filter(lambda n: n % 2, name="op"),
        [
            ([1, 2, 3], 7, [("sink/0", [1, 3], 7)]),
            ([1, 2, 3], [4, 5, 6], [("sink/0", [1, 3], [4, 6])]),
            ([1, 2], [4, 5], [("sink/0", [1], 4)]),
        ],
    ),
    "flat_map gives each result the hops of its record": (
        lambda s: s.flat_map(lambda n: range(n), name="op"),
        [
            ([2, 0, 1], 5, [("sink/0", [0, 1, 0], 5)]),
            ([2, 0, 1], [1, 2, 3], [("sink/0", [0, 1, 0], [1, 1, 3])]),
            ([0], [1], []),
        ],
    ),
    "split sends each record to one output": (
        lambda s: dict(zip(("odd", "even"), s.split(lambda n: n % 2, name="op"), strict=True)),
        [
            ([1, 2, 3], 0, [("odd/0", [1, 3], 0), ("even/0", [2], 0)]),
            ([1, 2, 3], [7, 8, 9], [("odd/0", [1, 3], [7, 9]), ("even/0", [2], 8)]),
            ([2, 4], 0, [("even/0", [2, 4], 0)]),
        ],
    ),
    "map_batches never mixes records of different hops": (
        lambda s: s.map_batches(lambda batch: [sum(batch)], name="op"),
        [([1, 2, 3], [0, 0, 1], [("sink/0", [3, 3], [0, 1])])],
    ),
    "stateful_map keeps a value a key": (
        lambda s: s.key_by(lambda n: n % 2).stateful_map(lambda t, n: (t + n, t + n), 0, name="op"),
        [([1, 2, 3, 4], 0, [("sink/0", [1, 2, 4, 6], 0)]), ([1], [5], [("sink/0", [5], [5])])],
    ),
}


@every(("step", "batches"), HOPS.values())
def test_each_operator_sends_what_it_makes_with_the_hops_that_it_came_with(step: Any, batches: list[Any]):
    tasks = Tasks(flow_of(step))
    assert [sent(tasks, records, hops) for records, hops, _ in batches] == [found for *_, found in batches]


def test_split_by_name_sends_to_the_output_that_the_function_names():
    def step(stream: Stream[str]):
        return dict(zip("abc", stream.split(lambda text: text[0], into=("a", "b", "c"), name="op"), strict=True))

    assert sent(Tasks(flow_of(step)), ["b1", "a1", "b2"]) == [("a/0", ["a1"], 0), ("b/0", ["b1", "b2"], 0)]


def test_map_batches_sees_at_most_batch_size_records_and_waits_for_none():
    sizes: list[int] = []

    def total(batch: list[int]) -> list[int]:
        sizes.append(len(batch))
        return [sum(batch)]

    tasks = Tasks(flow_of(lambda s: s.map_batches(total, batch_size=2, name="op")))
    assert sent(tasks, [1, 2, 3, 4, 5]) == [("sink/0", [3, 7, 5], 0)]
    assert sizes == [2, 2, 1]


def test_map_batches_makes_one_instance_of_a_class_a_task():
    class Numbered:
        made = 0

        def __init__(self) -> None:
            Numbered.made += 1

        def __call__(self, batch: list[int]) -> list[int]:
            return [Numbered.made] * len(batch)

    tasks = Tasks(flow_of(lambda s: s.map_batches(Numbered, name="op")))
    assert records_of(tasks.feed("op", [0]) + tasks.feed("op", [0])) == [1, 1]


@pytest.mark.parametrize("batch_format", ["numpy", "pyarrow"])
def test_map_batches_takes_columns_and_gives_records(batch_format: str):
    seen: list[Any] = []

    def same(columns: Any) -> Any:
        seen.append(type(columns).__module__.split(".")[0])
        return columns

    tasks = Tasks(flow_of(lambda s: s.map_batches(same, batch_format=batch_format, name="op")))
    records = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert sent(tasks, records) == [("sink/0", records, 0)]
    assert seen == [{"numpy": "builtins", "pyarrow": "pyarrow"}[batch_format]]


def test_a_function_of_map_batches_cannot_change_the_order_of_the_batch_it_was_given():
    def reverse_in_place(batch: list[int]) -> list[int]:
        batch.reverse()
        return []

    tasks = Tasks(flow_of(lambda s: {"reversed": s.map_batches(reverse_in_place, name="op"), "sink": s.map(abs)}))
    assert records_of(tasks.feed("op", records := [1, 2])) == []
    assert records == [1, 2]


def test_stateful_map_computes_each_key_once_whether_it_has_a_value_or_not():
    def count(seen: int, record: dict[str, str]) -> tuple[int, tuple[int, int]]:
        return seen + 1, (seen + 1, len(record))

    # A function that takes the key out of its record would fail if it was called again.
    tasks = Tasks(flow_of(lambda s: s.key_by(lambda r: r.pop("key")).stateful_map(count, 0, name="op")))
    for keys, counts in [("aab", [1, 2, 1]), ("bacab", [2, 3, 1, 4, 3]), ("cba", [2, 4, 5])]:
        assert sent(tasks, [{"key": key} for key in keys]) == [("sink/0", [(n, 0) for n in counts], 0)]


@every("before", [[], [1, 2], [1, 2, 3]])
@every("fails_in", ["key", "function"])
def test_a_key_error_in_stateful_map_is_not_taken_for_a_new_key(before: list[int], fails_in: str):
    # A second call would raise nothing.
    failures = [KeyError(12)]

    def key_of(record: int) -> int:
        if record == 12 and fails_in == "key" and failures:
            raise failures.pop()
        return record % 10

    def count(seen: int, record: int) -> tuple[int, int]:
        if record == 12 and failures:
            raise failures.pop()
        return seen + 1, record

    tasks = Tasks(flow_of(lambda s: s.key_by(key_of).stateful_map(count, 0, name="op")))
    tasks.feed("op", before)
    with pytest.raises(UserFunctionError) as caught:
        tasks.feed("op", [1, 12, 3])
    raised = {"key": "key_by between 'source' and 'op' raised KeyError: 12", "function": "raised KeyError: 12"}
    assert raised[fails_in] in str(caught.value)
    assert "record: 12" in str(caught.value)
    assert ("key: 2" in str(caught.value)) == (fails_in == "function")


def test_a_key_error_of_a_function_that_changes_its_key_is_told():
    class Number(int):
        def __init__(self, n: int) -> None:
            self.n = n

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Number) and self.n == other.n

        def __hash__(self) -> int:
            return self.n

    failures = [KeyError("of the function")]

    def change(seen: int, record: tuple[Number, bool]) -> tuple[int, int]:
        if record[1] and failures:
            record[0].n += 100
            raise failures.pop()
        return seen + 1, seen + 1

    tasks = Tasks(flow_of(lambda s: s.key_by(lambda r: r[0]).stateful_map(change, 0, name="op")))
    tasks.feed("op", [(Number(1), False)])
    with pytest.raises(UserFunctionError, match="raised KeyError: 'of the function'"):
        tasks.feed("op", [(Number(1), True)])


def test_a_mutable_initial_value_is_each_keys_own():
    def collect(seen: list[str], word: str) -> tuple[list[str], int]:
        seen.append(word)
        return seen, len(seen)

    tasks = Tasks(flow_of(lambda s: s.key_by(lambda w: w[0]).stateful_map(collect, initial=[], name="op")))
    assert sent(tasks, ["a1", "b1", "a2"]) == [("sink/0", [1, 1, 2], 0)]


def test_map_async_waits_for_answers_and_sends_them_as_they_come():
    tasks = Tasks(flow_of(lambda s: s.map_async(lambda n: n * 10, name="op")))
    home = tasks.home("op")
    assert sent(tasks, [1, 2], [3, 4]) == []
    first, second = home.unanswered
    function, record, *_ = home.call(second)
    assert [(b.records, b.hops) for _, b in home.on_answer(second, function(record))] == [([20], 4)]
    assert home.unanswered == (first,)


def test_equal_keys_of_several_types_have_one_budget():
    def ask(stream: Any) -> dict[str, Any]:
        asked = stream.key_by("of").map_async(str, cost=len, budget=1, on_error="dead_letter", name="op")
        return {"sink": asked, "dead": asked.dead_letters}

    tasks = Tasks(flow_of(ask))
    tasks.feed("op", [{"of": key} for key in (1, 1.0, np.int64(1), (1, "a"), (True, "a"), 2)])
    home = tasks.home("op")
    first, *_, of_pair, _, _ = home.unanswered
    for call_id in (first, of_pair):
        home.keep(call_id, "answer", None)
    assert [home.is_over_budget(call_id) for call_id in home.unanswered] == [True] * 5 + [False]


def test_an_end_with_unanswered_calls_and_an_answer_that_nobody_waits_for_are_refused_and_change_nothing():
    tasks = Tasks(flow_of(lambda s: s.map_async(abs, name="op")))
    tasks.feed("op", [1])
    home, before = tasks.home("op"), tasks.home("op").unanswered
    with pytest.raises(RuntimeError, match="1 calls have no answer yet"):
        home.end(now_ms=0)
    with pytest.raises(LookupError, match=r"task op/0 has no open call 77; its open calls are \(1,\)"):
        home.on_answer(77, 0)
    assert home.unanswered == before


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_call_of_stateful_map_whose_record_is_set_aside_leaves_the_state_as_it_was(fails_at: int):
    """Whether the key is new or known."""

    def collect(seen: list[int], n: int) -> tuple[list[int], list[int]]:
        seen.append(n)
        if n == fails_at:
            raise ValueError(n)
        return seen, list(seen)

    def step(stream: Stream[int]):
        good = stream.key_by(lambda n: 0).stateful_map(collect, initial=[], name="op", on_error="dead_letter")
        return {"good": good, "dead": good.dead_letters}

    left = [n for n in (1, 2, 3) if n != fails_at]
    emitted = by_receiver(Tasks(flow_of(step)).feed("op", [1, 2, 3]))
    assert emitted == {"good/0": [left[:1], left], "dead/0": [fails_at]}


def test_a_failed_answer_goes_to_the_dead_letters():
    def step(stream: Stream[int]):
        good = stream.map_async(abs, name="op", on_error="dead_letter")
        return {"good": good, "dead": good.dead_letters}

    tasks = Tasks(flow_of(step))
    tasks.feed("op", [1], 2)
    emitted = tasks.home("op").on_answer(1, None, TimeoutError("too slow"))
    assert [(c.receiver.name, b.records, b.hops) for c, b in emitted] == [("dead", [1], 2)]
    assert tasks.home("op").unanswered == ()


def test_dead_letters_hold_the_record_as_it_arrived():
    def spoil(record: dict[str, int]) -> None:
        record["a"] = 0
        raise ValueError

    def step(stream: Stream[Any]):
        good = stream.map(spoil, name="op", on_error="dead_letter")
        return {"good": good, "dead": good.dead_letters}

    assert by_receiver(Tasks(flow_of(step)).feed("op", [{"a": 1}])) == {"dead/0": [{"a": 1}]}


def test_a_failed_call_leaves_no_state_behind_that_it_did_not_return():
    def count(seen: int, n: int) -> tuple[int, int]:
        return seen + 1, fail_on_three(n) * 0 + seen + 1

    tasks = Tasks(
        flow_of(lambda s: s.key_by(lambda n: 0).stateful_map(count, initial=0, name="op", on_error="dead_letter"))
    )
    assert [b.records for c, b in tasks.feed("op", [1, 3, 1]) if c.receiver.name == "sink"] == [[1, 2]]
