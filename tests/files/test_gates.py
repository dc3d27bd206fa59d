"""The gate of the tests: a source reads what the test allows, also when it goes on from a position, and then ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backedge import JsonLines, Range
from backedge.engine.source_reader import SourceReader
from tests.files.opened import write_json
from tests.gates import Gate, Gated


@pytest.mark.parametrize("kind", ["numbered", "of a file"])
def test_a_source_behind_a_gate_reads_as_much_as_it_lets_through_and_ends_when_it_opens(tmp_path: Path, kind: str):
    gate, values = Gate(tmp_path / "gate"), list(range(10))
    source: Any = Range(10) if kind == "numbered" else JsonLines(str(write_json(tmp_path / "values.jsonl", values)))
    gated = Gated(source, gate, 2)
    (split,) = gated.splits() or ["0-of-1"]
    reader = SourceReader("values", gated, {split: gated.first_position(split)})
    assert (reader.read(9), reader.read(9)) == ([0, 1], [])
    gate.let(5)
    assert (reader.read(2), reader.read(9), reader.read(9)) == ([2, 3], [4], [])
    again = SourceReader("values", gated, reader.positions())
    assert again.read(9) == []
    gate.let(10)
    assert (again.read(9), again.read(9), again.exhausted) == ([5, 6, 7, 8, 9], [], False)
    last = SourceReader("values", gated, again.positions())
    assert (last.read(9), last.exhausted) == ([], False)
    gate.open()
    assert (last.read(9), last.exhausted) == ([], True)
    assert SourceReader("values", gated, last.positions()).read(9) == []
