"""`backedge replay` of a task that was run by hand: what is the same, what differs, what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from backedge import Collect, Flow, Items, replay_command
from backedge.command import main
from backedge.engine.batches.constant_bytes import constant_bytes
from backedge.graphs import constant
from backedge.recovery.stores.cut_store import CutStore
from tests.replay.kept import ran_by_hand

MODULE = """
import random
from backedge import Collect, Flow, Items


def count(seen, word):
    return seen + 1, {"word": word, "seen": seen + 1}


def longer(word):
    return len(word) > 1


def ask(word):
    return word.upper()


def asking():
    flow = Flow("job")
    words = flow.read(Items([]), name="words").rebalance().filter(longer, name="longer")
    words.map_async(ask, answers="again", name="ask").write(Collect(), name="done")
    return flow


def flow():
    flow = Flow("job")
    words = flow.read(Items([]), name="words").rebalance().filter(longer, name="longer")
    counted = words.key_by(lambda word: word).stateful_map(count, initial=0, name="count")
    counted.rebalance().write(Collect(), name="done")
    return flow
"""
BATCHES = [["a", "b"], ["b", "c"]]


class Module:
    """A module of a user's, in a file that is edited and imported again."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "counting_words.py"
        self.file.write_text(MODULE)

    def edit(self, before: str, after: str) -> None:
        text = self.file.read_text()
        assert before in text
        self.file.write_text(text.replace(before, after))
        sys.modules.pop("counting_words", None)

    def flow(self, name: str = "flow") -> Flow:
        sys.modules.pop("counting_words", None)
        return getattr(import_module("counting_words"), name)()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Module(tmp_path)
    sys.modules.pop("counting_words", None)


@pytest.fixture
def replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Call the command; its exit code, and what it says."""

    def call(operator: str, *words: str, epoch: int = 0) -> tuple[int, str]:
        code = main(
            ["replay", "job", "--epoch", str(epoch), "--operator", operator, "--snapshots", str(tmp_path), *words]
        )
        out, err = capsys.readouterr()
        return code, out + err

    return call


Replay = Callable[..., tuple[int, str]]


def map_flow(function: Callable[[Any], Any]) -> Flow:
    flow = Flow("job")
    flow.read(Items([]), name="in").rebalance().map(function, name="step").write(Collect(), name="done")
    return flow


def pieces_of(store: CutStore) -> Sequence[Path]:
    return sorted(Path(store.path).rglob("*.piece"))


def test_a_task_sends_the_same_again(tmp_path: Path, module: Module, replay: Replay):
    ran_by_hand(tmp_path, module.flow(), "count", BATCHES)
    code, said = replay("count", "--json")
    found = json.loads(said)
    assert (code, found["same"], found["complete"], found["records"], found["sent"]) == (0, True, True, 4, 4)
    code, said = replay("count")
    assert code == 0 and "4 records" in said


def test_what_a_chained_sink_writes_is_compared_and_not_published(tmp_path: Path, replay: Replay):
    ran_by_hand(tmp_path, map_flow(str.upper), "step", BATCHES)
    code, said = replay("step", "--json")
    found = json.loads(said)
    assert (code, found["operators"], found["sent"]) == (0, ["step", "done"], 4)
    assert not (tmp_path / "job" / "output").exists()


def test_a_changed_function_shows_the_first_record_that_differs(tmp_path: Path, module: Module, replay: Replay):
    ran_by_hand(tmp_path, module.flow(), "count", BATCHES)
    module.edit('"seen": seen + 1}', '"seen": min(seen + 1, 1)}')
    for more in ((), ("--flow", "counting_words:flow")):
        code, said = replay("count", "--json", *more)
        found = json.loads(said)
        assert (code, found["same"], found["differing"], found["difference"]["call"]) == (1, False, 1, 2)
        assert found["difference"]["run"] == "{'word': 'b', 'seen': 2}"
        assert found["difference"]["replay"] == "{'word': 'b', 'seen': 1}"
    code, said = replay("count")
    assert code == 1
    assert "{'word': 'b', 'seen': 2}" in said and "{'word': 'b', 'seen': 1}" in said


SEEN, RANDOM = '"seen": seen + 1}', '"seen": random.random()}'
SOUND, RAISING = "return seen + 1,", "return 1 // (1 - seen),"
LONG, LONGER, ANY, NONE = (f"len(word) > {least}" for least in (1, 2, 0, 9))


@pytest.mark.parametrize(
    ("operator", "line", "ran", "replayed", "told"),
    [
        ("count", SEEN, RANDOM, RANDOM, ["call 1 ", "random numbers", "ctx.random"]),
        ("count", SOUND, SOUND, RAISING, ["only the replay raises", "ZeroDivisionError"]),
        ("count", SOUND, RAISING, SOUND, ["only the run raises", "ZeroDivisionError"]),
        ("longer", LONG, LONG, LONGER, ["call 2", "'ef'", "nothing"]),
        ("ask", LONG, LONG, ANY, ["the run did not make"]),
        ("ask", LONG, LONG, NONE, ["fewer calls"]),
    ],
)
def test_a_difference_is_told_with_what_may_be_its_cause(
    tmp_path: Path, module: Module, replay: Replay, operator: str, line: str, ran: str, replayed: str, told: list[str]
):
    module.edit(line, ran)
    flow = module.flow("asking" if operator == "ask" else "flow")
    ran_by_hand(tmp_path, flow, operator, BATCHES if operator == "count" else [["a", "bcd"], ["ef"]])
    module.edit(ran, replayed)
    code, said = replay(operator)
    assert code == 1
    assert all(words in said for words in told), said


def test_the_functions_of_one_of_several_pipelines_are_found(tmp_path: Path, module: Module, replay: Replay):
    module.edit(
        "    return flow\n", '    flow.read(Items([]), name="apart").write(Collect(), name="kept")\n    return flow\n'
    )
    ran_by_hand(tmp_path, module.flow(), "count", BATCHES)
    assert replay("count", "--flow", "counting_words:flow")[0] == 0


def test_the_functions_of_another_graph_are_refused(tmp_path: Path, module: Module, replay: Replay):
    ran_by_hand(tmp_path, module.flow(), "count", BATCHES)
    module.edit('name="count")', 'name="counts")')
    code, said = replay("count", "--flow", "counting_words:flow")
    assert code == 2 and "other operators" in said


def test_an_error_of_the_run_is_raised_again_and_is_no_difference(tmp_path: Path, replay: Replay):
    ran_by_hand(tmp_path, map_flow(lambda number: 6 // number), "step", [[1, 2], [3, 0]])
    code, said = replay("step")
    assert code == 1
    assert "as it did there" in said and "ZeroDivisionError" in said and "record: 0" in said


def test_the_debugger_opens_where_a_function_raises(tmp_path: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch):
    stopped: list[Any] = []
    monkeypatch.setattr("pdb.post_mortem", stopped.append)
    ran_by_hand(tmp_path, map_flow(lambda number: 6 // number), "step", [[0]])
    replay("step")
    assert stopped == []
    replay("step", "--pdb")
    [trace] = stopped
    while trace.tb_next is not None:
        trace = trace.tb_next
    assert trace.tb_frame.f_locals == {"number": 0}


def test_a_breakpoint_in_a_function_stops_in_this_process(
    tmp_path: Path, module: Module, replay: Replay, monkeypatch: pytest.MonkeyPatch
):
    ran_by_hand(tmp_path, module.flow(), "count", BATCHES)
    module.edit("    return seen", "    breakpoint()\n    return seen")
    stopped: list[int] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stopped.append(1))
    code, _ = replay("count")
    assert (code, len(stopped)) == (0, 4)


def calling_flow(asked: list[str], known: set[str]) -> Flow:
    def ask(word: str) -> list[str]:
        asked.append(word)
        return [word, word.upper()]

    flow = Flow("job")
    words = flow.read(Items([]), name="in").rebalance().filter(lambda word: word in known, name="known")
    words.map_async(ask, name="ask").map(shortened, name="shortened").write(Collect(), name="done")
    return flow


def shortened(answer: list[str]) -> list[str]:
    answer.pop()  # what is kept must be what the function was given
    return answer


def test_calls_get_the_answers_of_the_run(tmp_path: Path, replay: Replay):
    asked: list[str] = []
    ran_by_hand(tmp_path, calling_flow(asked, {"a", "b", "c"}), "ask", [["a", "b"], ["c"]])
    assert asked == ["b", "a", "c"]
    code, said = replay("ask", "--json")
    assert (code, json.loads(said)["sent"]) == (0, 3)
    assert len(asked) == 3


class Connecting:
    """A client of which the run has started one."""

    started: ClassVar[int] = 0

    async def on_start(self) -> None:
        type(self).started += 1

    async def __call__(self, word: str) -> str:
        return word.upper()


def test_a_replay_starts_no_client(tmp_path: Path, replay: Replay):
    flow = Flow("job")
    words = flow.read(Items([]), name="in").rebalance()
    words.map_async(Connecting, name="ask").write(Collect(), name="done")
    ran_by_hand(tmp_path, flow, "ask", [["a", "b"], ["c"]])
    code, said = replay("ask", "--json")
    assert (code, json.loads(said)["sent"], Connecting.started) == (0, 3, 1)


def test_an_error_at_the_start_is_a_difference(tmp_path: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch):
    flow = Flow("job")
    flow.read(Items([]), name="in").rebalance().process(Starts, name="starts").write(Collect(), name="done")
    ran_by_hand(tmp_path, flow, "starts", BATCHES)
    monkeypatch.setattr(Starts, "fails", True)
    code, said = replay("starts")
    assert code == 1
    assert "call 0 (its start)" in said and "no database" in said


class Starts:
    fails = False

    def on_start(self, ctx: Any) -> None:
        if self.fails:
            raise OSError("no database")

    def on_record(self, ctx: Any, record: str) -> None:
        ctx.emit(record)


# -- refusals ------------------------------------------------------------------------------------------------------


def test_a_changed_piece_or_flow_is_refused_before_it_is_decoded(tmp_path: Path, module: Module, replay: Replay):
    store = ran_by_hand(tmp_path, module.flow(), "count", BATCHES)
    [piece], [flow] = pieces_of(store), Path(store.path, "inputs").glob("flow-*")
    right = piece.read_bytes()
    line, _, data = right.partition(b"\n")
    changed = line + b"\n" + data.replace(b"cut", b"cot").replace(b"process", b"PROCESS")
    for path, wrong in ((piece, changed), (flow, b"cos\nsystem\n(S'true'\ntR.")):
        path.write_bytes(wrong)
        code, said = replay("count")
        assert code == 2 and str(path) in said and "SHA-256" in said
        piece.write_bytes(right)


def test_a_piece_in_the_place_of_another_one_is_refused(tmp_path: Path, module: Module, replay: Replay):
    [piece] = pieces_of(ran_by_hand(tmp_path, module.flow(), "count", BATCHES))
    piece.with_name(piece.name.replace("-1.piece", "-2.piece")).write_bytes(piece.read_bytes())
    code, said = replay("count")
    assert code == 2 and "another piece" in said


def test_signed_pieces_are_read_with_their_key_alone(
    tmp_path: Path, module: Module, replay: Replay, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BACKEDGE_KEY", "k" * 32)
    ran_by_hand(tmp_path, module.flow(), "count", BATCHES, key=b"k" * 32)
    assert replay("count")[0] == 0
    monkeypatch.delenv("BACKEDGE_KEY")
    code, said = replay("count")
    assert code == 2 and "signed" in said


def test_what_was_not_kept_is_said_with_what_there_is(tmp_path: Path, module: Module, replay: Replay):
    ran_by_hand(tmp_path, module.flow(), "count", BATCHES)
    code, said = replay("done")
    assert code == 2 and "'done'" in said and "count, task 0, attempt 1" in said
    code, said = replay("count", "--attempt", "2")
    assert code == 2 and "attempt 2" in said and "attempt 1" in said
    code, said = replay("count", epoch=7)
    assert code == 2 and "epoch 7 is not a cut" in said


def test_a_module_that_is_not_here_or_has_lost_a_function_is_named(tmp_path: Path, module: Module, replay: Replay):
    ran_by_hand(tmp_path, module.flow(), "count", BATCHES)
    module.edit("longer", "longer_than_one")
    code, said = replay("count")
    assert code == 2 and "'longer'" in said and "former name" in said
    sys.modules.pop("counting_words", None)
    module.file.rename(tmp_path / "elsewhere.py")
    code, said = replay("count")
    assert code == 2 and "the module 'counting_words'" in said and "in the folder that holds it" in said


def test_a_run_that_kept_nothing_is_told_the_option(tmp_path: Path, replay: Replay):
    CutStore(str(tmp_path), "job")
    code, said = replay("count")
    assert code == 2 and "--keep-inputs count" in said


def test_the_command_of_the_page_is_there(tmp_path: Path, module: Module, capsys: pytest.CaptureFixture[str]):
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    [command] = re.findall(r"^    backedge (replay .*)$", page, flags=re.MULTILINE)
    names = {"orders": "job", "attempts": "count", "cuts": str(tmp_path), "7": "0", "1": "0"}
    ran_by_hand(tmp_path, module.flow(), "count", BATCHES)
    assert main([names.get(word, word) for word in command.split()]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(r"count, task 0, attempt 1, from the beginning: 3 calls with 4 records\n.*\n", out)


# -- constants ---------------------------------------------------------------------------------------------------


class Prices:
    """Runs a task that uses a constant, and replays it in a process that has not seen the run."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.forget()
        self.flow = Flow("job")
        self.prices = self.flow.constant("prices", load=self.loaded)
        prices = self.prices
        priced = self.flow.read(Items([]), name="in").rebalance().map(lambda n: int(prices.value[n]), name="step")
        priced.write(Collect(), name="done")
        cuts = CutStore(str(root), "job")
        self.calls = 0
        data = constant_bytes(np.array([3, 5]))
        (self.file,) = cuts.constants.keep([data], "77aa")
        self.path = Path(cuts.path) / self.file.name
        ran_by_hand(root, self.flow, "step", [[0, 1], [1]], constants={"prices": self.file})
        assert self.calls == 1
        self.forget()

    def loaded(self) -> Any:
        self.calls += 1
        return np.array([3, 5])

    def forget(self) -> None:
        for known in ("_loads", "_shared"):
            self._monkeypatch.setattr(constant, known, {})


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prices:
    return Prices(tmp_path, monkeypatch)


def test_a_replay_has_the_constants_of_the_run(prices: Prices, replay: Replay):
    code, said = replay("step", "--json")
    assert (code, json.loads(said)["same"], json.loads(said)["sent"]) == (0, True, 3)
    assert prices.calls == 1


def test_constants_of_a_replay_are_verified_before_they_are_decoded(
    prices: Prices, replay: Replay, monkeypatch: pytest.MonkeyPatch
):
    decoded: list[object] = []
    monkeypatch.setattr(replay_command, "constant_in", decoded.append)
    prices.path.write_bytes(prices.path.read_bytes()[:-1] + b"\x01")
    changed, why = replay("step")
    prices.path.unlink()
    missing, said = replay("step")
    assert (changed, missing, decoded) == (2, 2, [])
    assert "was changed" in why and "is missing" in said and "constant 'prices'" in why and "constant 'prices'" in said
