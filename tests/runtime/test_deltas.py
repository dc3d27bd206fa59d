"""What a capture writes of keyed state when a base is named, and what a restore makes of several files."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest

from backedge import Collect, Flow, Items
from backedge.engine.state.compaction import put_together
from backedge.engine.state.keyed_state import KeyedState, encode_entries, keyed_entries
from backedge.engine.state.timers import Timers
from backedge.engine.state.touched_keys import TouchedKeys
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.cut.keyed_parts import Numbers, entries_of
from tests.runtime.tasks import Tasks

ONE = Attempt(1)


class Sessions:
    """Holds records by key until a timer, and forgets keys whose record is negative."""

    def on_record(self, ctx: Any, value: int) -> None:
        if value < 0:
            ctx.state.clear()
            return
        held = ctx.state.get()
        if held is None:
            held = []
            ctx.state.set(held)
        held.append(value)
        ctx.set_timer(100 + value)

    def on_timer(self, ctx: Any, at_ms: int) -> None:
        """Nothing is sent."""


def sessions() -> Tasks:
    flow = Flow("sessions")
    keyed = flow.read(Items([]), name="items").key_by(lambda value: abs(value) % 10)
    keyed.process(Sessions, name="op").write(Collect(), name="sink")
    return Tasks(flow)


def states(tasks: Tasks, epoch: int, base: int | None = None) -> tuple[OperatorState, Epoch | None]:
    capture = tasks.home("op").capture(Epoch(epoch), ONE, None if base is None else Epoch(base))
    while not capture.encode_some():
        continue
    return capture.states["op"], capture.base


def test_a_delta_holds_the_keys_that_changed_and_their_timers_and_none_that_has_fired():
    tasks = sessions()
    tasks.feed("op", [1, 2, 3])
    whole, _ = states(tasks, 1)
    tasks.feed("op", [11, -2])
    delta, base = states(tasks, 2, base=1)
    assert base == 1
    values, timers, _ = keyed_entries(delta)
    assert values == {1: [1, 11]} and sorted(timers) == [(1, 101, 0), (1, 111, 0), (2, 102, 0)]
    values, timers, _ = keyed_entries(OperatorState(whole.keyed, deltas=(delta.keyed,)))
    assert values == {1: [1, 11], 3: [3]}
    assert sorted(timers) == [(1, 101, 0), (1, 111, 0), (2, 102, 0), (3, 103, 0)]
    tasks.home("op").fire_timers(101)
    later, _ = states(tasks, 3, base=1)
    left = keyed_entries(OperatorState(whole.keyed, deltas=(later.keyed,))).timers
    assert sorted(left) == [(1, 111, 0), (2, 102, 0), (3, 103, 0)]


def test_a_delta_looks_at_no_timers_but_those_of_the_keys_that_changed(monkeypatch: pytest.MonkeyPatch):
    tasks = sessions()
    tasks.feed("op", [1, 2, 3])
    states(tasks, 1)
    tasks.feed("op", [11])
    monkeypatch.delattr(Timers, "_in_order")
    delta, _ = states(tasks, 2, base=1)
    assert keyed_entries(delta).timers == [(1, 101, 0), (1, 111, 0)]


@pytest.mark.parametrize("hops", [(4, 0), (0, 4)])
def test_timers_of_a_key_at_one_time_fire_in_the_same_order_if_they_come_from_a_delta(hops: tuple[int, int]):
    timers, restored = (Timers(note=lambda key: None) for _ in range(2))
    for each in hops:
        timers.add(10, "a", each)
    restored.restore(timers.of(["a"]), ())
    assert list(restored.due(10)) == list(timers.due(10))


def test_a_delta_holds_what_aborted_captures_held():
    tasks = sessions()
    states(tasks, 1)
    tasks.feed("op", [1])
    states(tasks, 2, base=1)
    tasks.feed("op", [2])
    delta, _ = states(tasks, 3, base=1)
    assert keyed_entries(delta).values.keys() == {1, 2}


def test_a_key_that_comes_once_all_others_were_noted_is_in_the_delta():
    flow = Flow("counts")
    keyed = flow.read(Items([]), name="items").key_by(lambda value: value)
    keyed.stateful_map(lambda seen, value: (seen + 1, value), 0, name="op").write(Collect(), name="sink")
    tasks = Tasks(flow)
    tasks.feed("op", [1, 2, 3])
    states(tasks, 1)
    tasks.feed("op", [2])
    assert keyed_entries(states(tasks, 2, base=1)[0]).values == {2: 2}
    tasks.feed("op", [1, 2, 3])
    tasks.feed("op", [3, 4, 1, 5])
    tasks.feed("op", [4])
    assert keyed_entries(states(tasks, 3, base=2)[0]).values == {1: 3, 2: 3, 3: 3, 4: 2, 5: 1}
    tasks.feed("op", [6])
    assert keyed_entries(states(tasks, 4, base=3)[0]).values == {6: 1}


def counts(limit: int = 1_000, *, as_text: bool = False) -> tuple[Tasks, KeyedState]:
    """A stateful_map that keeps the records of each key, and its state, which tracks `limit` changed keys."""

    def write(held: str | tuple[()], value: int) -> tuple[str, int]:
        return f"{held or ''}{value} ", value

    def keep(held: list[int] | tuple[int, ...], value: int) -> tuple[Any, int]:
        if value % 3:
            return (*held, value), value
        held = list(held)
        held.append(value)
        return held, value

    flow = Flow("kept")
    keyed = flow.read(Items([]), name="items").key_by(lambda value: value % 50)
    keyed.stateful_map(write if as_text else keep, (), name="op").write(Collect(), name="sink")
    tasks = Tasks(flow)
    state: Any = tasks.home("op")._wiring.operators["op"].keyed_state
    state._touched.tracked_min = limit
    return tasks, state


def records_in(held: str | list[int] | tuple[int, ...]) -> list[int]:
    return list(map(int, held.split())) if isinstance(held, str) else list(held)


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("at_once", [2_000, 4, 1])
@pytest.mark.parametrize("limit", [1_000, 20, 3])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_what_batches_set_is_in_the_values_and_in_the_deltas(
    seed: int, limit: int, at_once: int, as_text: bool, monkeypatch: pytest.MonkeyPatch
):
    """Whatever is between two batches: a capture, one that stays open, a base of long ago, a look at the values."""
    monkeypatch.setattr(KeyedState, "merged_at_once_max", at_once)
    monkeypatch.setattr(KeyedState, "apart_batches", seed % 3)
    handed_over = 0

    def hand_over(state: KeyedState) -> None:
        nonlocal handed_over
        handed_over += 1
        former(state)

    former = KeyedState._hand_over_recent  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(KeyedState, "_hand_over_recent", hand_over)
    drawn = random.Random(seed)
    tasks, state = counts(limit, as_text=as_text)
    expected: dict[int, list[int]] = {}
    cuts: dict[int, dict[int, Any]] = {}
    deltas = superseding = epoch = 0
    for _ in range(120):
        different = drawn.choice([3, 500])
        values = [drawn.randrange(different) for _ in range(drawn.choice([0, 1, 5, 30]))]
        tasks.feed("op", values)
        for value in values:
            expected.setdefault(value % 50, []).append(value)
        if drawn.random() < 0.3:
            assert {key: records_in(held) for key, held in state.values.items()} == expected
        if drawn.random() < 0.5:
            epoch += 1
            base = drawn.choice([None, *cuts][-4:])
            found, since = states(tasks, epoch, base)
            below = {} if since is None else cuts[since]
            deltas += since is not None
            superseding += since is not None and since != base
            cuts[epoch] = below | keyed_entries(found).values
            assert {key: records_in(held) for key, held in cuts[epoch].items()} == expected
    assert deltas > 5 or limit < 1_000
    assert superseding > 0 or limit < 1_000
    assert (handed_over > 5) is (at_once < 2_000) or limit < 1_000


@pytest.mark.parametrize("at_once", [2_000, 1])
def test_values_that_a_batch_sets_while_a_capture_is_open_are_not_in_it(at_once: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(KeyedState, "merged_at_once_max", at_once)
    tasks, state = counts()
    tasks.feed("op", [3, 4])
    first = state.capture(Epoch(1))
    tasks.feed("op", [53, 54, 153])
    second = state.capture(Epoch(2), Epoch(1))
    tasks.feed("op", [203, 204, 203])
    found = (dict(zip(*taken, strict=True)) for taken in (first.entries.take(9), second.entries.take(9)))
    expected = [{3: [3], 4: [4]}, {3: [3, 53, 153], 4: [4, 54]}, {3: [3, 53, 153, 203, 203], 4: [4, 54, 204]}]
    assert [{key: list(held) for key, held in values.items()} for values in (*found, state.values)] == expected


def test_a_value_that_a_batch_has_set_to_none_counts_although_an_older_one_is_there():
    """In the batch that sets it and in later ones, while older values of the key are kept apart from it."""
    flow = Flow("states")
    keyed = flow.read(Items([]), name="items").key_by(lambda value: 0)
    shown = keyed.stateful_map(lambda state, value: (value, (state, value)), initial="initial", name="op")
    shown.write(Collect(), name="sink")
    tasks = Tasks(flow)

    def feed(*values: Any) -> list[Any]:
        return [record for _, batch in tasks.feed("op", values) for record in batch.records]

    tasks.home("op").capture(Epoch(1), ONE)
    assert feed(1) == []
    tasks.home("op").capture(Epoch(2), ONE, Epoch(1))
    feed(None, 2, None)
    feed(3)
    assert tasks.output("sink") == [("initial", 1), (1, None), (None, 2), (2, None), (None, 3)]


def test_a_base_that_is_not_found_means_everything():
    tasks = sessions()
    tasks.feed("op", [1, 2])
    states(tasks, 2)
    assert states(tasks, 3, base=1)[1] is None
    assert states(tasks, 4, base=3)[1] == 3
    assert states(tasks, 5, base=2)[1] is None, "the sets before the base are dropped"


def test_a_delta_that_holds_all_keys_of_the_one_before_is_relative_to_its_base():
    tasks = sessions()
    tasks.feed("op", [1, 2, 3])
    whole, _ = states(tasks, 1)
    tasks.feed("op", [1, 2])
    assert states(tasks, 2, base=1)[1] == 1
    tasks.feed("op", [11, -2])
    delta, base = states(tasks, 3, base=2)
    assert base == 1
    assert keyed_entries(OperatorState(whole.keyed, deltas=(delta.keyed,))).values == {1: [1, 1, 11], 3: [3]}
    tasks.feed("op", [21])
    assert states(tasks, 4, base=3)[1] == 3, "it does not say that 2 is gone"
    tasks.feed("op", [31])
    assert states(tasks, 5, base=4)[1] == 3


def test_large_deltas_are_not_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TouchedKeys, "compared_max", 1)
    tasks = sessions()
    tasks.feed("op", [1, 2, 3])
    states(tasks, 1)
    for epoch in (2, 3):
        tasks.feed("op", [1, 2])
        assert states(tasks, epoch, base=epoch - 1)[1] == epoch - 1


def test_a_restored_task_writes_what_changed_since_the_restored_cut():
    tasks = sessions()
    tasks.feed("op", [1, 2])
    whole, _ = states(tasks, 7)
    restored = sessions()
    restored.home("op").open({"op": whole}, Epoch(7))
    restored.feed("op", [12])
    delta, base = states(restored, 8, base=7)
    assert base == 7 and keyed_entries(delta).values == {2: [2, 12]}


def test_too_many_touched_keys_mean_everything():
    class FewTracked(TouchedKeys):
        tracked_min = 1

    touched = FewTracked()
    touched.capture(Epoch(1), None, keys=16)
    touched.newest.update({1: None, 2: None})  # type: ignore[union-attr]
    assert touched.has(Epoch(1), keys=16)
    touched.newest[3] = None  # type: ignore[index]
    assert touched.noting(keys=16) is None
    assert not touched.has(Epoch(1), keys=16)
    assert touched.capture(Epoch(2), Epoch(1), keys=16) is None
    assert touched.newest == {}, "from there on it is tracked again"


def test_a_value_that_was_only_read_is_written_because_it_may_be_changed():
    state = KeyedState("op")
    state.restore({"a": [1], "b": 2})
    state.begin(Epoch(1))
    state.touch("a").append(2)
    state.touch("b")
    capture = state.capture(Epoch(2), Epoch(1))
    assert capture.keys is not None and list(capture.keys) == ["a"]


def test_compaction_writes_what_a_restore_would_take_back():
    tasks = sessions()
    tasks.feed("op", [1, 2, 3])
    files = [states(tasks, 1)[0]]
    for epoch, records in ((2, [11, -2]), (3, [-1, 4]), (4, [2])):
        tasks.feed("op", records)
        files.append(states(tasks, epoch, base=epoch - 1)[0])
    together = stack(files)
    found, keys = put_together({"op": together})
    values, timers, _ = keyed_entries(found["op"])
    assert values == keyed_entries(together).values == {2: [2], 3: [3], 4: [4]}
    assert sorted(timers) == sorted(keyed_entries(together).timers) and keys == len(values) + len(timers)


def stack(files: list[OperatorState]) -> OperatorState:
    return OperatorState(files[0].keyed, deltas=tuple(file.keyed for file in files[1:]))


def test_compacted_deltas_do_to_the_file_below_them_what_each_of_them_did():
    tasks = sessions()
    tasks.feed("op", [1, 2, 3, 5])
    files = [states(tasks, 1)[0]]
    # 2 goes and comes again, 1 and 5 go, 6 comes and goes.
    for epoch, records in ((2, [11, -2, -5, 6]), (3, [-1, 4]), (4, [2, -6])):
        tasks.feed("op", records)
        files.append(states(tasks, epoch, base=epoch - 1)[0])
    found, keys = put_together({"op": stack(files[1:])}, is_delta=True)
    together, apart = keyed_entries(stack([files[0], found["op"]])), keyed_entries(stack(files))
    assert together.values == apart.values == {2: [2], 3: [3], 4: [4]}
    assert sorted(together.timers) == sorted(apart.timers)
    values, timers, gone = keyed_entries(found["op"])
    assert gone.keys() == {1, 5, 6} and keys == len(values) + len(timers) + len(gone)


@pytest.mark.parametrize("of_another_kind", [False, True])
def test_deltas_that_are_stored_as_numbers_are_compacted_to_what_they_hold(of_another_kind: bool):
    files = [encode_entries("op", dict.fromkeys(range(first, 40), first), ()) for first in (30, 0, 20)]
    if of_another_kind:
        files[1] = encode_entries("op", dict.fromkeys(range(40), 0.5), ())
    assert all(isinstance(part, Numbers) for parts in files for part in parts)
    found, keys = put_together({"op": OperatorState(files[0], deltas=tuple(files[1:]))})
    older = 0.5 if of_another_kind else 0
    assert dict(entries_of(found["op"].keyed)) == {key: 20 if key >= 20 else older for key in range(40)}
    assert keys == 40


def test_a_compaction_decodes_only_the_first_part_twice():
    """Parts are decoded when they are iterated over; the first one shows whether all are those of a table."""
    decoded: list[int] = []

    class Files(list[Any]):
        def __iter__(self) -> Any:
            for number, part in enumerate(super().__iter__()):
                decoded.append(number)
                yield part

    parts = [encode_entries("op", {key: key}, ()) for key in range(4)]
    found, keys = put_together({"op": OperatorState(Files(chain.from_iterable(parts)))})
    assert dict(entries_of(found["op"].keyed)) == {0: 0, 1: 1, 2: 2, 3: 3} and keys == 4
    assert decoded == [0, 0, 1, 2, 3]


def with_ten_recent_of_a_hundred(keys: range, *, apart_batches: int) -> tuple[KeyedState, dict[Any, Any]]:
    """A state in which a batch has set 1 for these keys since the cut 1, and the values that are not recent."""
    state = KeyedState("op")
    state.merged_at_once_max, state.apart_batches = 3, apart_batches
    state.restore(dict.fromkeys(range(100), 0))
    state.capture(Epoch(1)).release()
    values, _, recent = state.for_batch()
    assert recent is not None
    recent.update(dict.fromkeys(keys, 1))
    return state, values


def test_a_delta_of_many_recent_values_does_not_look_at_the_others():
    """A look at a large state waits for memory once per key. Here it would miss keys, since the values are hidden."""
    state, values = with_ten_recent_of_a_hundred(range(0, 100, 10), apart_batches=0)
    hidden, state._values = state._values, {}  # pyright: ignore[reportPrivateUsage]
    taken = state.capture(Epoch(2), Epoch(1)).entries.take(99)
    assert dict(zip(*taken, strict=True)) == dict.fromkeys(range(0, 100, 10), 1)
    state._values = hidden  # pyright: ignore[reportPrivateUsage]
    assert values is hidden and set(values.values()) == {0}, "they are put there later"
    state.for_batch()
    assert (sum(values.values()), state.touch_if_needed(90), state.touch_if_needed(91)) == (3, 1, 0)
    assert sum(state.values.values()) == 10


def test_values_that_were_all_set_again_are_forgotten_in_the_batch_before():
    """A look at each of them again, some with each batch, would take longer than to find that none is left."""
    state, values = with_ten_recent_of_a_hundred(range(10), apart_batches=2)
    state.capture(Epoch(2), Epoch(1)).release()
    _, older, recent = state.for_batch()
    assert (len(older), recent) == (10, {})
    recent.update(dict.fromkeys(range(10), 2))
    _, older, _ = state.for_batch()
    assert (older, set(values.values())) == ({}, {0})
    assert sum(state.values.values()) == 20


def test_values_of_a_delta_that_are_set_again_are_not_put_among_the_others():
    state, values = with_ten_recent_of_a_hundred(range(10), apart_batches=2)
    state.capture(Epoch(2), Epoch(1)).release()
    for _ in range(2):
        _, older, recent = state.for_batch()
        assert older == dict.fromkeys(range(10), 1) and recent is not None and set(values.values()) == {0}
        recent.update(dict.fromkeys(range(9), 2))
    for _ in range(4):
        state.for_batch()
    assert [key for key, value in values.items() if value] == [9] and state.for_batch()[1] == {}
    assert [state.values[key] for key in range(11)] == [2] * 9 + [1, 0]


def test_captures_that_are_all_aborted_are_not_remembered_for_ever():
    """Their sets would hold the same keys again and again, as long as no cut completes."""
    touched = TouchedKeys()
    touched.begin(Epoch(1))
    seen: set[int] = set()
    for epoch in range(2, 100):
        keys = range(epoch // 3, epoch // 3 + 100)
        seen.update(keys)
        assert touched.newest is not None
        touched.newest.update(dict.fromkeys(keys))
        assert set(touched.capture(Epoch(epoch), Epoch(1), keys=100_000) or ()) == seen
    kept = touched._since, touched._written  # pyright: ignore[reportPrivateUsage]
    assert [len(sets) for sets in kept] == [TouchedKeys.open_max + 1, TouchedKeys.open_max]
    assert touched.newest is not None
    touched.newest[7] = None
    assert list(touched.capture(Epoch(101), Epoch(99), keys=100_000) or ()) == [7]


@pytest.mark.parametrize("since", [1, 2])
def test_keys_that_no_delta_can_hold_are_forgotten(since: int):
    """All captures are aborted, or two are open at a time: so a delta would hold the keys of several sets."""
    touched = TouchedKeys()
    touched.begin(Epoch(1))
    touched.capture(Epoch(2), Epoch(1), keys=2_000)
    for epoch in range(3, 100):
        assert touched.newest is not None
        touched.newest.update(dict.fromkeys(range(epoch * 600, epoch * 600 + 600)))
        base = Epoch(1 if since == 1 else epoch - since)
        has_base = touched.has(base, keys=2_000)
        assert not has_base or epoch == 3
        assert (touched.capture(Epoch(epoch), base if has_base else None, keys=2_000) is not None) is has_base
    kept = touched._since  # pyright: ignore[reportPrivateUsage]
    assert sum(map(len, kept.values())) <= touched.limit(2_000) and len(kept) <= 2
    assert touched.has(Epoch(99), keys=2_000)
