"""Where records go: the right task by every routing, a copy for each target, and back edges that count."""

from __future__ import annotations

import random
from typing import Any

import pytest

from backedge import Collect, Flow, Items, Loop
from backedge.engine.batches.batch import Batch, encode, spread
from backedge.engine.operators.sending import TARGETS_CACHED_MAX
from backedge.graphs.routing import key_group, task_of_group
from backedge.graphs.task_errors import LoopLimitError, RecordSerializationError, RoutingError, UserFunctionError
from tests.runtime.tasks import Tasks, by_receiver, records_of


def routed(route: Any, parallelism: int = 3) -> Tasks:
    """An operator "op" with one task, in front of a sink with several."""
    flow = Flow("routed")
    stream = flow.read(Items([]), name="source").rebalance().map(lambda r: r, name="op", parallelism=1)
    route(stream).write(Collect(), name="sink", parallelism=parallelism)
    return Tasks(flow)


def targets(tasks: Tasks, records: list[Any], hops: Any = 0) -> list[tuple[int, list[Any], Any]]:
    return [(c.receiver.index, b.records, b.hops) for c, b in tasks.feed("op", records, hops)]


def owner(key: Any, parallelism: int = 3) -> int:
    return task_of_group(key_group(key), parallelism)


def test_a_keyed_record_goes_to_the_task_of_its_key_group_also_by_the_name_of_a_column():
    keys = [*range(40), *map(str, range(40)), ("a", 1), None, 0.5, b"x"]
    for index, records, _ in targets(routed(lambda s: s.key_by(lambda r: r)), keys):
        assert [owner(record) for record in records] == [index] * len(records)
    for index, records, _ in targets(routed(lambda s: s.key_by("id")), [{"id": n} for n in range(20)]):
        assert [owner(record["id"]) for record in records] == [index] * len(records)


def test_a_shuffled_batch_keeps_the_order_and_the_hops_of_its_records():
    records, hops = list(range(50)), [random.Random(n).randrange(4) for n in range(50)]
    sent = targets(routed(lambda s: s.key_by(lambda r: r)), records, hops)
    for _, part, part_hops in sent:
        assert part == sorted(part)
        assert (part_hops if isinstance(part_hops, list) else [part_hops] * len(part)) == [hops[n] for n in part]
    assert sorted(n for _, part, _ in sent for n in part) == records


def test_the_key_of_a_record_is_computed_once_whether_it_is_new_or_came_before():
    asked: list[int] = []
    tasks = routed(lambda s: s.key_by(lambda n: asked.append(n) or n))
    batches: list[tuple[list[int], Any]] = [([1, 2, 1], 0), ([2, 1, 3, 2, 4, 1], [5, 6, 7, 8, 9, 10]), ([4, 3], 0)]
    for records, hops in batches:
        asked.clear()
        sent = targets(tasks, records, hops)
        assert asked == records
        assert all([owner(record) for record in part] == [index] * len(part) for index, part, _ in sent)
        assert sorted(n for _, part, _ in sent for n in part) == sorted(records)
        if hops:
            of_record = {
                (record, n) for _, part, some in sent for record, n in zip(part, spread(some, len(part)), strict=True)
            }
            assert of_record == set(zip(records, hops, strict=True))


def test_more_keys_than_the_cache_holds_still_find_their_tasks():
    keys = list(range(TARGETS_CACHED_MAX + 10))
    tasks = routed(lambda s: s.key_by(lambda r: r))
    for _ in range(2):
        for index, records, _ in targets(tasks, keys):
            assert {owner(record) for record in records[-20:]} == {index}


def test_a_rebalance_deals_records_in_turn_however_they_are_batched():
    at_once = by_receiver(routed(lambda s: s.rebalance()).feed("op", list(range(10))))
    one_by_one: dict[str, list[Any]] = {}
    tasks = routed(lambda s: s.rebalance())
    for n in range(10):
        for receiver, records in by_receiver(tasks.feed("op", [n])).items():
            one_by_one.setdefault(receiver, []).extend(records)
    assert at_once == one_by_one == {"sink/0": [0, 3, 6, 9], "sink/1": [1, 4, 7], "sink/2": [2, 5, 8]}
    with_hops = targets(routed(lambda s: s.rebalance(), 2), [1, 2, 3], [7, 8, 9])
    assert with_hops == [(0, [1, 3], [7, 9]), (1, [2], 8)]


def test_route_sends_to_the_task_the_function_names_modulo_their_number():
    tasks = routed(lambda s: s.route(lambda r: r))
    assert by_receiver(tasks.feed("op", [0, 1, 4, -1])) == {"sink/0": [0], "sink/1": [1, 4], "sink/2": [-1]}


def test_a_broadcast_gives_every_task_a_copy_of_its_own():
    sent = targets(routed(lambda s: s.broadcast()), [{"n": 1}])
    assert [index for index, _, _ in sent] == [0, 1, 2]
    for _, records, _ in sent:
        records[0]["n"] += 1
        records.append("more")
    assert [records for _, records, _ in sent] == [[{"n": 2}, "more"]] * 3


def spoil(record: dict[str, int]) -> dict[str, int]:
    record["n"] += 1
    return record


def test_two_targets_in_one_task_never_see_each_others_changes():
    flow = Flow("two")
    source = flow.read(Items([{"n": 1}, {"n": 2}]), name="source")
    source.map(spoil).write(Collect(), name="one")
    source.map(spoil).map(spoil).write(Collect(), name="two")
    source.write(Collect(), name="three")
    tasks = Tasks(flow)
    tasks.run()
    assert len(tasks.runtimes) == 1
    assert tasks.output("one") == [{"n": 2}, {"n": 3}]
    assert tasks.output("two") == [{"n": 3}, {"n": 4}]
    assert tasks.output("three") == [{"n": 1}, {"n": 2}]


def test_a_chained_target_and_a_channel_never_see_each_others_changes():
    flow = Flow("two")
    stream = flow.read(Items([]), name="source").rebalance().map(lambda r: r, name="op")
    stream.map(spoil).map(spoil).write(Collect(), name="chained")
    stream.rebalance().write(Collect(), name="apart")
    tasks = Tasks(flow)
    assert records_of(tasks.feed("op", [{"n": 1}])) == [{"n": 1}]
    assert tasks.output("chained") == [{"n": 3}]


# -- back edges ---------------------------------------------------------------------------------------------------


def looping(max_rounds: int | None = 2, on_limit: Any = "dead_letter", use: Any = None) -> Tasks:
    """Everything goes round again, shuffled, until the limit; `use` may do something with the loop handle."""
    flow = Flow("loop")
    source = flow.read(Items([]), name="source").rebalance()
    again: Loop[int] = flow.loop("again", of=int, max_rounds=max_rounds, on_limit=on_limit, endless=max_rounds is None)
    out, back = source.merge(again).key_by(abs).map(lambda n: n, name="op").split(lambda n: n < 0)
    out.rebalance().write(Collect(), name="sink")
    again.feed(back)
    if use is not None:
        use(again)
    return Tasks(flow)


def test_a_back_edge_adds_one_hop():
    emitted = looping().feed("op", [5, -5], hops=1)
    assert [(c.receiver.name, b.records, b.hops) for c, b in emitted] == [("sink", [-5], 1), ("op", [5], 2)]


def test_a_record_that_went_round_max_rounds_times_goes_to_the_dead_letters():
    tasks = looping(use=lambda again: again.dead_letters.rebalance().write(Collect(), name="dead"))
    emitted = tasks.feed("op", [1, 2, 3], hops=[0, 2, 1])
    assert [(c.receiver.name, b.records, b.hops) for c, b in emitted] == [("dead", [2], 2), ("op", [1, 3], [1, 2])]
    emitted = tasks.feed("op", [4], hops=2)
    assert [(c.receiver.name, b.records, b.hops) for c, b in emitted] == [("dead", [4], 2)]


def test_dead_letters_that_nobody_reads_are_kept():
    tasks = looping()
    assert tasks.feed("op", [7], hops=2) == []
    assert tasks.output("again.dead_letters") == [7]


def test_a_run_whose_loop_may_not_exceed_its_limit_fails_and_says_how_to_go_on():
    with pytest.raises(LoopLimitError) as caught:
        looping(on_limit="fail").feed("op", [7], hops=2)
    for words in ("loop 'again'", "record 7", "2 times", "'split-1'", "max_rounds", 'on_limit="dead_letter"'):
        assert words in str(caught.value)


def test_where_no_loop_has_a_limit_nothing_is_counted():
    [(_, batch)] = looping(max_rounds=None).feed("op", [1], hops=10**6)
    assert batch.hops == 10**6


def test_a_record_over_the_limit_is_one_dead_letter_however_many_read_the_loop():
    flow = Flow("two readers")
    source = flow.read(Items([]), name="source").rebalance()
    again: Loop[int] = flow.loop("again", of=int, max_rounds=1)
    first = source.merge(again).key_by(abs).map(lambda n: n, name="op")
    again.feed(first.merge(again.rebalance().filter(bool, name="other")))
    first.write(Collect(), name="seen")
    tasks = Tasks(flow)
    assert by_receiver(tasks.feed("op", [3], hops=0)) == {"op/0": [3], "other/0": [3]}
    assert by_receiver(tasks.feed("op", [3], hops=1)) == {"again.dead_letters/0": [3]}


def test_a_loop_in_one_task_comes_back_to_it_over_a_channel_of_its_own():
    flow = Flow("halve")
    again: Loop[int] = flow.loop("again", of=int)
    odd, even = flow.read(Items([12, 7]), name="source").merge(again).split(lambda n: n % 2, name="op")
    again.feed(even.map(lambda n: n // 2))
    odd.write(Collect(), name="odd")
    tasks = Tasks(flow)
    [(channel, batch)] = tasks.feed("op", [12, 7])
    assert (channel.sender, channel.receiver) == (tasks.home("op").task.id,) * 2
    assert batch.records == [6]
    tasks.run()
    assert sorted(tasks.output("odd")) == [3, 7, 7]


# -- what cannot be sent ------------------------------------------------------------------------------------------


def test_a_key_that_cannot_be_hashed_is_refused_with_the_record():
    with pytest.raises(RoutingError, match=r"'op' and 'sink': the key \[1\] of record 1 cannot be hashed"):
        routed(lambda s: s.key_by(lambda r: [r])).feed("op", [1])


def test_a_key_without_a_stable_hash_is_refused():
    said = r"'op' and 'sink': the key frozenset\(\{1\}\) of record 1: a key of type frozenset has no hash"
    with pytest.raises(RoutingError, match=said) as caught:
        routed(lambda s: s.key_by(lambda r: frozenset([r]))).feed("op", [1])
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__context__ is None


@pytest.mark.parametrize("missing", [1, 7])
@pytest.mark.parametrize("before", [[], [1, 2, 3]])
def test_a_key_error_of_a_key_function_is_not_taken_for_a_new_key(before: list[int], missing: int):
    names: dict[int, int] = {1: 1, 2: 2, 3: 3}

    def look_up(record: int) -> int:
        if record not in names:
            raise KeyError(missing)
        return names[record]

    tasks = routed(lambda s: s.key_by(look_up))
    tasks.feed("op", before)
    with pytest.raises(UserFunctionError) as caught:
        tasks.feed("op", [1, 2, 99, 3])
    assert str(caught.value).startswith(f"key_by between 'op' and 'sink' raised KeyError: {missing}\n  record: 99\n")


def test_a_key_function_that_raises_only_once_is_blamed_and_not_its_key():
    failures = [TimeoutError("busy")]

    def ask(record: int) -> int:
        if failures:
            raise failures.pop()
        return record

    with pytest.raises(UserFunctionError) as caught:
        routed(lambda s: s.key_by(ask)).feed("op", [1])
    assert str(caught.value).startswith("key_by between 'op' and 'sink' raised TimeoutError: busy\n  record: 1\n")


def test_a_record_that_does_not_pickle_is_named():
    bad = [1, lambda: 0]
    for send in (lambda: encode(Batch(bad)), lambda: routed(lambda s: s.broadcast()).feed("op", bad)):
        with pytest.raises(RecordSerializationError, match=r"(?s)^record <function .*send values that pickle"):
            send()
