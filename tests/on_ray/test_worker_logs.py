"""What functions print is named by operators and task, on its way to the file and back from it."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator, Mapping
from contextvars import copy_context
from pathlib import Path

import pytest

from backedge import Collect, Flow, Items
from backedge.engine.on_ray.actor.labelled_output import (
    LINE_CHARACTERS_MAX,
    MARK,
    LabelledOutput,
    label_of,
    printing_as,
)
from backedge.engine.on_ray.supervisor.crew import needs_of
from backedge.engine.on_ray.worker_logs import Piece, PrintedLine, WorkerLogs, read_logs
from backedge.flows import WrongCallError
from backedge.graphs.expansion import expand
from backedge.logs_command import print_logs

HEAD = ":job_id:0a000000\n:actor_name:shop/orders/0 + count/0\n"


@pytest.fixture
def nothing_runs() -> Iterator[None]:
    token = printing_as.set("")
    yield
    printing_as.reset(token)


pytestmark = pytest.mark.usefixtures("nothing_runs")


def test_a_mark_precedes_the_lines_of_each_task():
    file = io.StringIO()
    output = LabelledOutput(file)
    for label, text in (("shop/a/0", "one\n"), ("shop/a/0", "two\n"), ("shop/b/1", "three\n"), ("shop/a/0", "four\n")):
        printing_as.set(label)
        print(text, end="", file=output)
    marks = ":actor_name:shop/a/0\none\ntwo\n:actor_name:shop/b/1\nthree\n:actor_name:shop/a/0\nfour\n"
    assert file.getvalue() == marks


def test_a_mark_waits_for_the_end_of_a_line():
    file = io.StringIO()
    output = LabelledOutput(file)
    printing_as.set("shop/a/0")
    output.write("half")
    printing_as.set("shop/b/0")
    output.writelines([" a line\n", "another\n"])
    assert file.getvalue() == ":actor_name:shop/a/0\nhalf a line\n:actor_name:shop/b/0\nanother\n"


class Writes(io.StringIO):
    """A file that keeps what each write has written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.written.append(text)
        return len(text)


def test_a_line_that_is_printed_in_parts_is_written_as_a_whole():
    file = Writes()
    output = LabelledOutput(file)
    for number in (7, 8):
        print("visit", number, file=output)
    assert file.written == ["visit 7\n", "visit 8\n"]


def test_a_line_without_an_end_is_written_when_it_is_flushed_or_long():
    file = Writes()
    output = LabelledOutput(file)
    print("half", "done", end="", file=output)
    assert file.written == []
    print(" ...", end="", file=output, flush=True)
    print("", file=output)
    assert file.written == ["half done ...", "\n"]
    output.write("." * LINE_CHARACTERS_MAX)
    output.write(".")
    assert file.written[2:] == ["." * LINE_CHARACTERS_MAX + "."]


def test_what_a_call_prints_in_another_thread_belongs_to_its_task():
    file = io.StringIO()
    output = LabelledOutput(file)
    printing_as.set("shop/a/0")
    call = threading.Thread(target=copy_context().run, args=(lambda: output.write("called\n"),))
    printing_as.set("shop/b/0")
    call.start()
    call.join()
    assert file.getvalue() == ":actor_name:shop/a/0\ncalled\n"


def test_tasks_and_actors_are_named_by_all_that_they_host():
    flow = Flow("shop")
    flow.read(Items([1]), name="orders").map(str, name="text").rebalance().write(Collect(), name="kept")
    deployment = expand(flow.plan(), 2, "slice")
    labels = {label_of("shop", task) for task in deployment.tasks.values()}
    assert labels >= {"shop/orders > text/0", "shop/kept/0", "shop/kept/1"}
    assert needs_of(deployment)["slice-0"].tasks == ("orders/0", "kept/0")


class Files:
    """The files of a cluster, which grow."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts

    def __call__(self, job: str, offsets: Mapping[str, int]) -> list[Piece]:
        pieces = [
            Piece(name, offset, text.encode()[offset:], float(place))
            for place, (name, text) in enumerate(self.texts.items())
            for offset in [offsets.get(name, 0)]
        ]
        return [piece for piece in pieces if piece.data]


def test_lines_are_told_once_and_by_the_task_that_printed_them():
    files = Files(out=HEAD + ":actor_name:shop/orders > text/0\nhello\n:task_name:arrive\n:actor_name:shop/count/0\nwo")
    logs = WorkerLogs("shop", files)
    assert logs.new_lines() == [PrintedLine("orders > text/0", "hello")]
    files.texts["out"] += "rld\nloading\n"
    assert logs.new_lines() == [PrintedLine("count/0", "world"), PrintedLine("count/0", "loading")]
    assert logs.new_lines() == []


def test_the_last_program_that_has_run_the_job_counts():
    old = HEAD.replace("0a000000", "ff000000") + "before\n"
    new = HEAD.replace("0a000000", "00010000") + "after\n"
    lines = WorkerLogs("shop", Files(new=new, old=old)).new_lines()
    assert [line.text for line in lines] == ["after"], "256 comes after 255, though its name sorts before"


def test_a_line_that_looks_like_a_mark_of_ray_is_no_program(tmp_path: Path):
    """A function may print anything."""
    printed = b":job_id:01000000\n%sshop/count/0\nhello\n:job_id:zz\n:job_id:\nagain\n" % MARK.encode()
    (tmp_path / "worker-abc-01000000-12.out").write_bytes(printed)
    logs = WorkerLogs("shop", lambda job, offsets: read_logs(tmp_path, job, offsets))
    assert [line.text for line in logs.new_lines()] == ["hello", "again"]


def test_files_of_other_jobs_are_left_alone(tmp_path: Path):
    (tmp_path / "worker-1-0a000000-7.out").write_text(HEAD + "mine\n")
    (tmp_path / "worker-2-0a000000-8.err").write_text(HEAD.replace("shop/", "shopping/") + "theirs\n")
    (tmp_path / "python-core-worker-1.log").write_text(HEAD)
    (piece,) = read_logs(tmp_path, "shop", {})
    assert piece.data.decode() == HEAD + "mine\n"
    assert read_logs(tmp_path, "shop", {piece.file: len(piece.data)}) == []


def test_the_command_filters_by_operator_and_names_those_that_have_printed(capsys: pytest.CaptureFixture[str]):
    text = HEAD + ":actor_name:shop/orders > text/0\nhello\tyou\n:actor_name:shop/count/0\nworld\n"
    print_logs(WorkerLogs("shop", Files(out=text)), "shop", "text", None)
    assert capsys.readouterr().out == "[orders > text/0] hello   you\n"
    with pytest.raises(WrongCallError, match=r"'texts'.*count, orders, text"):
        print_logs(WorkerLogs("shop", Files(out=text)), "shop", "texts", None)
    with pytest.raises(WrongCallError, match=r"'shop'.*RAY_ADDRESS"):
        print_logs(WorkerLogs("shop", Files()), "shop", None, None)


@pytest.mark.slow
def test_following_prints_what_comes_before_the_end(capsys: pytest.CaptureFixture[str]):
    files = Files(out=HEAD + ":actor_name:shop/count/0\none\n")

    def last_words() -> bool:
        files.texts["out"] += "two\n"
        return True

    print_logs(WorkerLogs("shop", files), "shop", None, last_words)
    assert capsys.readouterr().out == "[count/0] one\n[count/0] two\n"


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_output_is_found_by_operator_after_the_run_also_that_of_a_spare(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    import logging

    from backedge.command import main
    from tests.on_ray.flows import begin

    def shout(number: int) -> int:
        print(f"{number} in {os.getpid()}")
        return number

    def warn(number: int) -> int:
        logging.getLogger("shop").warning("seen %d", number)
        return number

    flow = Flow("talking")
    again = flow.loop("again", max_rounds=50)
    numbers = flow.read(Items([1]), name="numbers").merge(again).map(shout, name="shout")
    done, more = numbers.rebalance().map(warn, name="warn").split(lambda number: False, name="end")
    again.feed(more)
    done.write(Collect(), name="kept")
    job = begin(flow, snapshots=tmp_path, actors="slice", spares=1, every=0.1, kills=["shout@records=20"])
    job.wait()
    capsys.readouterr()
    assert main(["logs", "talking", "--operator", "shout"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 50 and {line.partition("]")[0] for line in lines} == {"[shout/0"}
    assert len({line.rpartition(" ")[2] for line in lines}) == 2, "the process that died, and the spare"
    assert main(["logs", "talking", "--operator", "warn", "--follow"]) == 0
    assert "[warn > end > kept > again.dead_letters/0] seen 1\n" in capsys.readouterr().out
