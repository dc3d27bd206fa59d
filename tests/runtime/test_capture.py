"""A capture is one moment, however long its encoding takes and whatever user code changes meanwhile."""

from __future__ import annotations

import pickle
import random
import threading
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

import backedge.engine.state.keyed_state as state_module
from backedge import Collect, Flow, Items
from backedge.engine.state.capture import Capture, OperatorCapture
from backedge.engine.state.keyed_state import KeyedState, StateEncoder, WholeState
from backedge.engine.state.typed_state import Layout
from backedge.engine.task.snapshotting import Snapshotting
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.routing import key_group
from backedge.graphs.task_errors import StateSerializationError
from backedge.recovery.cut.keyed_parts import Pickles, entries_of
from backedge.recovery.protocol.effects import TaskRecord
from tests.every import every, every_seed
from tests.runtime.tasks import Tasks, encoded, flow_of, records_of


def append(seen: list[int], pair: tuple[str, int]) -> tuple[list[int], None]:
    seen.append(pair[1])
    return seen, None


class Appender:
    """The same as a process operator."""

    def on_record(self, ctx: Any, pair: tuple[str, int]) -> None:
        seen = ctx.state.get([])
        seen.append(pair[1])
        ctx.state.set(seen)


def appending(by_class: bool = False) -> Flow:
    def step(stream: Any) -> Any:
        keyed = stream.key_by(lambda pair: pair[0])
        return keyed.process(Appender, name="op") if by_class else keyed.stateful_map(append, initial=[], name="op")

    return flow_of(step)


def capture_of(tasks: Tasks, epoch: int = 1) -> Capture:
    return tasks.home("op").capture(Epoch(epoch), Attempt(1))


def values_in(capture: Capture, entries_max: int = 1000) -> dict[Any, Any]:
    return dict(entries_of(encoded(capture, entries_max)["op"].keyed))


KEYS = [f"k{n}" for n in range(20)]


@pytest.mark.parametrize("by_class", [False, True], ids=["stateful_map", "process"])
@pytest.mark.parametrize("keyed_state", [KeyedState, WholeState])
def test_values_changed_in_place_while_they_are_encoded_are_captured_as_they_were(
    keyed_state: type[KeyedState], by_class: bool
):
    tasks = Tasks(appending(by_class), keyed_state=keyed_state)
    tasks.feed("op", [(key, 1) for key in KEYS])
    capture, at_once = capture_of(tasks), capture_of(tasks, 2)
    while not capture.encode_some(3):
        tasks.feed("op", [(key, 2) for key in KEYS] + [("new", 3)])
    assert values_in(capture) == values_in(at_once) == {key: [1] for key in KEYS}
    assert values_in(capture_of(tasks)) == {**{key: [1] + [2] * 6 for key in KEYS}, "new": [3] * 6}


def test_a_state_that_forgets_to_copy_is_caught_by_this_very_test():
    class Sharing(KeyedState):
        def must_copy(self, value: Any) -> bool:
            return False

    tasks = Tasks(appending(), keyed_state=Sharing)
    tasks.feed("op", [(key, 1) for key in KEYS])
    capture = capture_of(tasks)
    tasks.feed("op", [(key, 2) for key in KEYS])
    assert values_in(capture) == {key: [1, 2] for key in KEYS}


def test_several_captures_may_be_open_each_with_its_own_moment():
    tasks = Tasks(appending())
    captures: list[Capture] = []
    for epoch in range(1, 5):
        tasks.feed("op", [("a", epoch)] + [("b", epoch)] * (epoch % 2))
        captures.append(capture_of(tasks, epoch))
    tasks.feed("op", [("a", 5), ("b", 5)])
    assert [values_in(capture) for capture in reversed(captures)] == [
        {"a": [1, 2, 3, 4], "b": [1, 3]},
        {"a": [1, 2, 3], "b": [1, 3]},
        {"a": [1, 2], "b": [1]},
        {"a": [1], "b": [1]},
    ]


def test_a_value_that_two_captures_share_is_safe_when_the_newer_one_is_gone():
    tasks = Tasks(appending())
    tasks.feed("op", [("a", 1)])
    older, newer = capture_of(tasks, 1), capture_of(tasks, 2)
    newer.discard()
    tasks.feed("op", [("a", 2)])
    assert values_in(older) == {"a": [1]}


def test_a_value_is_copied_once_a_capture_and_not_at_all_without_one():
    class Counting(KeyedState):
        copies = 0

        def own_copy(self, key: Any, value: Any) -> Any:
            Counting.copies += 1
            return super().own_copy(key, value)

    tasks = Tasks(appending(), keyed_state=Counting)
    tasks.feed("op", [("a", 1), ("a", 2)])
    assert Counting.copies == 0
    capture = capture_of(tasks)
    tasks.feed("op", [("a", 3), ("a", 4), ("b", 1), ("b", 2)])
    tasks.feed("op", [("a", 5)])
    assert Counting.copies == 1
    capture.discard()
    tasks.feed("op", [("a", 6)])
    assert Counting.copies == 1


def test_only_values_that_could_be_changed_are_copied():
    state = KeyedState("op")
    assert not any(map(state.must_copy, (1, "a", 0.5, None, True, b"x", ("a", (1, None)))))
    assert all(map(state.must_copy, ([1], {}, {1}, ("a", []), bytearray(b"x"), object())))


def test_a_capture_may_be_encoded_in_another_thread_while_the_task_goes_on():
    tasks = Tasks(appending())
    keys = [f"k{n}" for n in range(3000)]
    tasks.feed("op", [(key, 1) for key in keys])
    capture = capture_of(tasks)
    thread = threading.Thread(target=encoded, args=(capture, 10))
    thread.start()
    for number in range(20):
        tasks.feed("op", [(key, number) for key in keys])
    thread.join()
    assert values_in(capture) == {key: [1] for key in keys}


def test_equal_states_give_equal_bytes_in_the_order_of_the_groups():
    one, other = Tasks(appending()), Tasks(appending())
    one.feed("op", [("a", 1), ("b", 2), ("a", 3)])
    other.feed("op", [("".join(["a"]), 1), ("a", 3)])
    other.feed("op", [("b", 2)])
    (part,), (alike,) = (encoded(capture_of(tasks))["op"].keyed for tasks in (one, other))
    assert isinstance(part, Pickles) and isinstance(alike, Pickles) and part.stretch == alike.stretch
    assert part.groups.tolist() == alike.groups.tolist() == sorted({key_group("a"), key_group("b")})


class Weekday(IntEnum):
    """An integer that is more."""

    MONDAY = 1


def captured(state: KeyedState, pieces: int) -> tuple[list[tuple[Any, ...]], Layout]:
    """What a capture of the state holds, encoded so many entries at a time, and the keys that it knew from before."""
    capture = state.capture()
    encoder = StateEncoder("count", capture.entries)
    while encoder.encode_some(pieces) == pieces:
        continue
    capture.release()
    return entries_of(encoder.parts()), capture.entries.known


def test_keys_that_have_kept_their_places_are_packed_once():
    state = KeyedState("count")
    state.values.update({key: key for key in range(10)})
    assert not len(captured(state, 4)[1].keys)
    found, known = captured(state, 4)
    assert known.keys.tolist() == list(range(10)) and sorted(found) == sorted(state.values.items())
    assert captured(state, 3)[1] is known
    state.values[10] = 0
    found, still_known = captured(state, 4)
    assert still_known is known and sorted(found) == sorted(state.values.items())
    assert captured(state, 4)[1].keys.tolist() == list(range(11))
    state.remove(0)
    assert not len(captured(state, 4)[1].keys)
    assert captured(state, 4)[1].keys.tolist() == list(range(1, 11))


def test_keys_are_known_from_captures_that_were_encoded_before():
    state = KeyedState("count")
    state.values.update({key: key for key in range(10)})
    early = state.capture()
    assert sorted(captured(state, 4)[0]) == sorted(state.values.items())
    late = state.capture()
    encoders = [StateEncoder("count", capture.entries) for capture in (late, early)]
    for encoder in encoders:
        assert encoder.encode_some(100) < 100
        assert sorted(entries_of(encoder.parts())) == sorted(state.values.items())


@every(
    ("value", "is_packed"),
    [
        *((value, True) for value in (-(1 << 31), (1 << 31) - 1)),
        *((value, False) for value in (1 << 31, True, None, 0.5, [1], Weekday.MONDAY, object)),
    ],
)
def test_small_integers_of_known_keys_are_packed_as_they_are_captured(value: Any, is_packed: bool):
    """And nothing else is: what is no plain integer comes back as what it was. The state goes on meanwhile."""
    state = KeyedState("count")
    state.values.update({key: key for key in range(5)})
    captured(state, 4)
    state.values[3] = value
    capture = state.capture()
    expected = sorted(state.values.items(), key=repr)
    assert (capture.entries.packed is not None) is is_packed
    state.values.update(dict.fromkeys(range(5), 7))
    encoder = StateEncoder("count", capture.entries)
    while encoder.encode_some(2) == 2:
        continue
    found = entries_of(encoder.parts())
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_many_integers_are_not_packed_at_once(monkeypatch: pytest.MonkeyPatch):
    """It would hold the task up."""
    monkeypatch.setattr(state_module, "PACKED_AT_ONCE_MAX", 5)
    state = KeyedState("count")
    state.values.update({key: key for key in range(5)})
    captured(state, 4)
    assert state.capture().entries.packed is not None
    state.values[5] = 5
    captured(state, 4)
    captured(state, 4)
    assert state.capture().entries.packed is None


@every_seed(30)
def test_captures_one_after_the_other_hold_what_the_state_holds(seed: int):
    rng = random.Random(seed)
    state = KeyedState("count")
    for _ in range(20):
        for _ in range(rng.randrange(9)):
            key = rng.choice([rng.randrange(20), rng.choice([True, 0.0, "a", 1 << 70])])
            if rng.random() < 0.3:
                state.remove(key)
            else:
                state.replace(key, rng.choice([1, 2.5, "x"]) if rng.random() < 0.1 else rng.randrange(9))
        found, _ = captured(state, rng.choice([2, 3, 100]))
        assert sorted(map(repr, found)) == sorted(map(repr, state.values.items()))


def test_a_discarded_capture_gives_no_states_and_closing_a_task_discards_its_open_ones():
    tasks = Tasks(appending())
    tasks.feed("op", [("a", 1)])
    discarded, of_closed = capture_of(tasks), capture_of(tasks, 2)
    discarded.discard()
    assert not discarded.is_open and of_closed.is_open
    assert discarded.states == {}
    tasks.home("op").close()
    assert not of_closed.is_open


def test_records_gathered_for_a_round_are_captured_as_they_were_gathered():
    def spoil(record: dict[str, int]) -> dict[str, int]:
        record["n"] += 1
        return record

    flow = Flow("rounds")
    start = flow.read(Items([]), name="source").rebalance()
    flow.iterate(start, lambda s: s.map(spoil, name="body"), rounds=5, name="head").write(Collect(), name="sink")
    tasks = Tasks(flow)
    tasks.feed("head", [{"n": 1}, {"n": 2}], input="returned")
    head = tasks.home("head")
    capture = head.capture(Epoch(1), Attempt(1))
    records = records_of(head.release_round())
    tasks.feed("body", records)
    assert [pickle.loads(entry)[0] for entry in encoded(capture, 1)["head"].pending] == [{"n": 1}, {"n": 2}]
    assert records == [{"n": 2}, {"n": 3}]


def test_what_a_class_captures_is_encoded_at_once():
    class Own:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def on_record(self, ctx: Any, n: int) -> None:
            self.seen.append(n)

        def capture(self) -> list[int]:
            return self.seen

        def restore(self, state: list[int]) -> None:
            self.seen = state

    tasks = Tasks(flow_of(lambda s: s.process(Own, name="op")))
    tasks.feed("op", [1])
    capture = capture_of(tasks)
    tasks.feed("op", [2])
    whole = encoded(capture)["op"].whole
    assert whole is not None
    assert pickle.loads(whole)["own"] == [1]


def test_state_that_does_not_pickle_is_refused_with_operator_and_key():
    tasks = Tasks(flow_of(lambda s: s.key_by(abs).stateful_map(lambda lock, n: (threading.Lock(), n), None, name="op")))
    tasks.feed("op", [7])
    with pytest.raises(StateSerializationError) as caught:
        encoded(capture_of(tasks))
    fact, fix = str(caught.value).splitlines()
    assert fact.startswith("operator 'op' holds a value for key 7 that cannot be put into a snapshot: TypeError")
    assert "on_start" in fix


def test_a_class_whose_own_state_does_not_pickle_is_refused():
    class Own:
        def on_record(self, ctx: Any, n: int) -> None:
            ctx.emit(n)

        def capture(self) -> Any:
            return (n for n in [1])

        def restore(self, state: Any) -> None:
            raise NotImplementedError

    with pytest.raises(StateSerializationError, match=r"operator 'op' holds state .*: TypeError"):
        capture_of(Tasks(flow_of(lambda s: s.process(Own, name="op"))))


def test_what_is_encoded_is_dropped_when_it_is_written():
    written: list[Any] = []
    writer: Any = SimpleNamespace(write=lambda attempt, epoch, task, parts: written.append(parts()))
    snapshots = Snapshotting(TaskId("task", 0), Attempt(1), writer)
    capture = Capture({"op": OperatorCapture(pending=[(1, 0)])})
    snapshots.captures[Epoch(1)] = capture
    assert snapshots.encode_piece(Epoch(1), 10)
    snapshots.write(Epoch(1), TaskRecord((), (), False, None), Epoch(1))
    assert written[0].operators["op"].pending and capture.states
    snapshots.written(Epoch(1), "files")
    assert not capture.states
