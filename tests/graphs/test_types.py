"""What an editor knows of a stream: types follow the records from the source on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """\
from pathlib import Path
from typing import Any, assert_type
from backedge import Job, RunOptions, RunResult, run, start
from backedge.engine.io.files.file_formats import JsonLines, TextLines
from backedge import Flow, Items, KeyedStream, Loop, Stream

flow = Flow("types")
words = flow.read(TextLines("words.txt"))
assert_type(words, Stream[str])
assert_type(flow.read(JsonLines("orders/")), Stream[dict[str, Any]])
assert_type(flow.read(Items([1, 2])), Stream[int])
lengths = words.map(len)
assert_type(lengths, Stream[int])
assert_type(words.flat_map(str.split), Stream[str])
assert_type(lengths.filter(lambda n: n > 3), Stream[int])
assert_type(words.merge(lengths), Stream[str | int])
assert_type(lengths.split(lambda n: n > 3), tuple[Stream[int], Stream[int]])
assert_type(words.key_by(len), KeyedStream[int, str])

def count(state: int, word: str) -> tuple[int, float]:
    return state + 1, state / 2

assert_type(words.key_by(len).stateful_map(count, initial=0), Stream[float])

async def ask(word: str) -> bytes:
    return word.encode()

assert_type(words.map_async(ask), Stream[bytes])
assert_type(words.map_async(len), Stream[int])
class Client:
    async def __call__(self, word: str) -> bytes:
        return word.encode()
class Blocking:
    def __call__(self, word: str) -> bytes:
        return word.encode()

assert_type(words.map_async(Client), Stream[bytes])
assert_type(words.map_async(Blocking), Stream[bytes])
assert_type(flow.loop("again", of=int), Loop[int])
assert_type(flow.loop("other"), Loop[Any])
assert_type(flow.iterate(lengths, lambda s: s.map(abs), rounds=3, measure=lambda n: n + 1), Stream[int])
loose: Stream[object] = words
flow.loop("wide", of=object).feed(words)
assert_type(run(flow, snapshots="cuts", every=0.5, resume="latest", cut_patience=None), RunResult)
assert_type(start(flow, on_silence="restart", key=b"key"), Job)
RunOptions(snapshots=Path("cuts"), resume=3)
words.stateful_map(count, initial=0)
words.map(len, paralelism=2)
flow.loop("third", of=int).feed(words)
run(flow, snapshot="cuts")
run(flow, every="often")
start(flow, policy="lazy")
RunOptions(kills=["head@epoch=3"])
"""


@pytest.mark.slow
def test_types_follow_the_records(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    errors = [found for found in json.loads(done.stdout)["generalDiagnostics"] if found["severity"] == "error"]
    lines = {PROGRAM.splitlines()[error["range"]["start"]["line"]]: error["message"] for error in errors}
    # The last seven lines are wrong on purpose.
    assert list(lines) == PROGRAM.splitlines()[-7:], lines
