"""What pickles and cannot be unpickled is found when it is first captured or sent, not by the first restart."""

from __future__ import annotations

import pickle
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import pytest

from backedge import Collect, Flow, Items, simulate
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.batches.columns import Columns
from backedge.engine.batches.unpickle_check import check_reads_back, unreadable_class
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import UnwritableRecordError
from backedge.engine.io.files.parts import PicklePart, read_pickles
from backedge.engine.state.capture import Capture, OperatorCapture, dump
from backedge.engine.state.keyed_state import KeyedState, StateEncoder
from backedge.graphs.task_errors import RecordSerializationError, StateSerializationError
from backedge.recovery.cut.keyed_parts import entries_of
from tests.columns.given import columns


class TwoArguments(Exception):
    """Pickles with the one argument that `Exception` knows of, and cannot be made of it."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what)
        self.where = where


BAD = TwoArguments("lost", "here")


class Counted:
    """Counts how often it is read back."""

    reads: ClassVar[int] = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).reads += 1
        self.__dict__.update(state)


class CountedInside(Counted):
    """The same, for another test: a class that was read back once is known."""

    reads: ClassVar[int] = 0


def encoded(values: dict[Any, Any]) -> StateEncoder:
    state = KeyedState("orders")
    state.values.update(values)
    encoder = StateEncoder("orders", state.capture().entries)
    while encoder.encode_some(100) == 100:
        continue
    return encoder


def test_the_premise_holds():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'where'"):
        pickle.loads(pickle.dumps(BAD))


@pytest.mark.parametrize("value", [BAD, {"last": BAD}, [(1, BAD)], {147: "x", "errors": [BAD]}], ids=repr)
def test_state_that_no_restart_could_read_is_refused_at_its_first_capture(value: Any):
    with pytest.raises(StateSerializationError) as refused:
        encoded({"plain": 1, "k": value})
    told = str(refused.value)
    assert told.startswith("operator 'orders' holds a value for key 'k' that a restart could not read")
    assert f"{__name__}.TwoArguments" in told
    assert "missing 1 required positional argument: 'where'" in told


def test_keys_state_of_a_task_and_records_that_wait_are_read_back_too():
    with pytest.raises(StateSerializationError, match=r"TwoArguments"):
        dump("orders", "a timer", (BAD, 5, 0))
    whole = OperatorCapture(whole={"seen": BAD})
    with pytest.raises(StateSerializationError, match=r"operator 'op' holds state that a restart .*TwoArguments"):
        Capture({"op": whole})
    capture = Capture({"op": OperatorCapture(pending=[(BAD, 0)])})
    with pytest.raises(StateSerializationError, match=r"operator 'op' holds a record that waits .*TwoArguments"):
        capture.encode_some()


@pytest.mark.parametrize("records", [[BAD], [{"id": 1}, {"id": 2, "error": BAD}], [*range(100, 200), BAD]])
def test_a_batch_that_nobody_could_decode_is_not_sent(records: list[Any]):
    with pytest.raises(RecordSerializationError) as refused:
        encode(Batch(records))
    assert "TwoArguments('lost')" in str(refused.value)
    assert "cannot be pickled and unpickled" in str(refused.value)


def test_collected_results_are_read_back(tmp_path: Path):
    part = PicklePart(Disk(), tmp_path / "part", "done")
    part.write([1, 2])
    with pytest.raises(UnwritableRecordError, match=r"(?s)sink 'done' cannot write .*record: TwoArguments\('lost'\)"):
        part.write([3, BAD])
    part.close()
    assert list(read_pickles(tmp_path / "part")) == [[1, 2]]


def test_a_class_is_read_back_once_however_many_values_and_captures_there_are():
    values = {key: Counted(key) for key in range(200)}
    for _ in range(3):
        groups = encoded(values).parts()
        encode(Batch(list(values.values())))
    assert Counted.reads == 1
    assert len(entries_of(groups)) == 200
    assert Counted.reads == 201
    encoded({key: [CountedInside(key)] for key in range(200)})
    assert CountedInside.reads == 1


def test_one_bad_value_is_found_behind_any_number_of_good_ones():
    values: dict[Any, Any] = {key: {"at": date(2026, 1, 1), "error": None} for key in range(1000)}
    values[900]["error"] = BAD
    with pytest.raises(StateSerializationError, match=r"key 900 .*TwoArguments"):
        encoded(values)


def test_an_object_is_read_back_again_when_it_holds_a_class_that_is_new():
    account = Counted(1)
    encoded({"k": account})
    account.__dict__["error"] = BAD
    with pytest.raises(StateSerializationError, match=r"key 'k' .*TwoArguments"):
        encoded({"k": account})


def test_plain_values_are_not_read_back(monkeypatch: pytest.MonkeyPatch):
    payloads = [pickle.dumps(value, 5) for value in (b"\x94\x93" * 99, [147] * 999, "\u0093\u0094", {"a": [1.5, None]})]
    batch = encode(Batch(columns(n=[147, 148])))
    monkeypatch.setattr(pickle, "loads", None)
    for payload in payloads:
        check_reads_back(payload)
    assert isinstance(decode(batch).records, Columns)


def test_the_innermost_class_is_blamed():
    assert unreadable_class({"a": [1, (2, BAD)]}) == f"{__name__}.TwoArguments"
    assert unreadable_class({"a": [1, (2, Counted(1))]}) == ""


def failing(state: Any, number: int) -> tuple[Any, int]:
    return TwoArguments("lost", "here") if number == 3 else state, number


def test_simulate_finds_it_too():
    flow = Flow("failing")
    keyed = flow.read(Items(range(8)), name="numbers").key_by(lambda number: number % 2)
    keyed.stateful_map(failing, initial=None, name="last").write(Collect(), name="done")
    with pytest.raises(StateSerializationError, match=r"operator 'last' holds .*TwoArguments"):
        simulate(flow, seeds=range(20), crashes=0)
