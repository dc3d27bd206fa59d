"""A sink that cannot be written to, or would mix its output with another run's, is refused before anything runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backedge import Call, Collect, Print, Sink, SinkPlace, Source
from backedge.engine.io.files.checks import check_sink, check_source
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import NoInputError, OutputError
from backedge.engine.io.files.file_formats import JsonLines
from backedge.engine.io.files.names import Turn, name_of, path_name, turn_of
from backedge.graphs.io import SplitReader
from tests.every import every
from tests.files.disks import CrashingDisk
from tests.files.opened import (
    KINDS,
    everything,
    place,
    publish,
    reader,
    rest,
    services,
    sink,
    source,
    stage,
    transaction,
    writer,
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_of_a_sink_is_made_with_those_above_it_and_stays_empty(tmp_path: Path, kind: Any):
    check_sink(sink(kind(str(tmp_path / "a" / "b"))), place(), fresh=True)
    assert everything(tmp_path) == ["a", "a/b"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sink_whose_folder_is_a_file_is_refused(tmp_path: Path, kind: Any):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputError, match=r"sink 'out'.*/out\b.* file"):
        check_sink(sink(kind(str(tmp_path / "out"))), place())
    with pytest.raises(OutputError, match=r"sink 'out'.*/out/below"):
        check_sink(sink(kind(str(tmp_path / "out" / "below"))), place())
    assert (tmp_path / "out").read_text() == "mine"


class Unreachable(JsonLines):
    """A sink whose system is down."""

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        raise ConnectionError("no route to the store")


@pytest.mark.parametrize(
    ("description", "named"),
    [
        (JsonLines("/proc/out"), r" /proc/out\b.*writable"),
        (JsonLines("hdfs://host/out"), r"hdfs://host/out\b.*one step.*\blocal folder"),
        (Unreachable("out"), r"cannot write to .*no route to the store"),
    ],
    ids=["not writable", "no way to publish in one step", "the sink says so"],
)
def test_a_sink_that_cannot_be_written_to_is_refused_in_one_line(description: Any, named: str):
    with pytest.raises(OutputError, match=rf"^sink 'out'.*{named}"):
        check_sink(sink(description), place())


def test_a_uri_of_a_local_folder_is_the_folder(tmp_path: Path):
    description = JsonLines((tmp_path / "of May").as_uri(), roll_bytes=1)
    check_sink(sink(description), place())
    assert everything(tmp_path) == ["of May"]
    publish(writer(description), [{"n": 1}], transaction(1))
    assert rest(reader(description)) == [{"n": 1}]


def test_a_fresh_run_is_refused_a_folder_that_holds_output_and_a_resumed_one_is_not(tmp_path: Path):
    operator = sink(JsonLines(str(tmp_path), roll_bytes=1))
    opened = writer(operator.function)
    stage(opened, [1], transaction(1))
    check_sink(operator, place(), fresh=True)
    opened.commit(transaction(1))
    check_sink(operator, place())
    with pytest.raises(OutputError, match=r"sink 'out'.*'part-5f3a\.out\.0"):
        check_sink(operator, place(), fresh=True)


def test_what_is_collected_by_two_runs_is_not_mixed_either(tmp_path: Path):
    operator = sink(Collect())
    check_sink(operator, place(staging=tmp_path), fresh=True)
    opened = writer(Collect(), opened=services(tmp_path))
    publish(opened, [1], transaction(1))
    check_sink(operator, place(staging=tmp_path))
    with pytest.raises(OutputError, match=r"sink 'out'.*'out\.0\.attempt-1\.epoch-1'"):
        check_sink(operator, place(staging=tmp_path), fresh=True)


def test_sinks_in_memory_need_nothing():
    for description in (Collect(), Print(), Call[Any](print)):
        check_sink(sink(description), place(), fresh=True)


def test_a_sink_that_does_not_say_how_it_is_written_cannot_be_made():
    with pytest.raises(TypeError, match="open_writer"):
        Sink[Any]()  # type: ignore[abstract]


@every("name", ["a", "_a", ".", "..", "%", "a%2Fb", "a/b", "ü" * 70, "日本", "a\0", "a\nb", "x" * 200])
def test_each_name_has_a_path_name_of_its_own_and_is_found_again(name: str):
    encoded = path_name(name)
    assert name_of(encoded) == name
    assert encoded[0] not in "._"
    assert Path("/root", encoded).parts == ("/", "root", encoded)


def test_what_the_name_of_a_transaction_says_is_read_from_its_end():
    assert turn_of("a.1.attempt-2.epoch-3.0.attempt-4.epoch-5") == Turn(epoch=5, attempt=4, index=0)


def test_a_folder_that_is_made_is_durable_and_so_are_those_above_it(tmp_path: Path):
    (tmp_path / "file").touch()
    disk = CrashingDisk()
    disk.make_folder(tmp_path / "a" / "b")
    assert disk.steps == [("sync_folder", tmp_path), ("sync_folder", tmp_path / "a")]
    disk.make_folder(tmp_path / "a" / "b")
    assert len(disk.steps) == 2
    other = CrashingDisk()
    other.make_folder(tmp_path / "a" / "b")
    assert other.steps == [("sync_folder", tmp_path / "a")], "the process that made it may have died"
    other.make_folder(tmp_path / "a")
    assert len(other.steps) == 1, "what has something in it is durable"


def test_removing_what_is_not_there_and_looking_where_nothing_is_do_no_harm(tmp_path: Path):
    disk = Disk()
    disk.remove(tmp_path / "a")
    disk.remove_empty(tmp_path / "b")
    (tmp_path / "c" / "d").mkdir(parents=True)
    disk.remove_empty(tmp_path / "c")
    assert (disk.names(tmp_path / "a"), disk.names(tmp_path)) == ([], ["c"])


class Partitions(Source[int]):
    """A source whose splits have these names."""

    def __init__(self, *names: Any) -> None:
        self._names = names

    def splits(self) -> Sequence[str]:
        return self._names

    def open_split(self, split: str, position: Any) -> SplitReader[int]:
        raise LookupError(split)


@every("name", [0, b"0", None, ("topic", 0), "\udce9", "x" * 70_000])
def test_a_split_whose_name_no_cut_can_hold_is_refused(name: object):
    with pytest.raises(NoInputError, match=r"source 'in' has a split .* name"):
        check_source(source(Partitions("fine", name)))


def test_a_file_whose_name_is_not_utf8_is_refused(tmp_path: Path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl")).write_text("1\n")
    with pytest.raises(NoInputError, match="rename files") as refused:
        check_source(source(JsonLines(str(tmp_path))))
    assert str(refused.value).isascii()
