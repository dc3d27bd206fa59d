"""The engine's verdict and the user's are two, each with its scope; no invariant passes that met what was not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backedge.command import main
from backedge.recovery.spark.audit.invariants import check_invariants
from backedge.recovery.spark.report.verdict import STATEMENTS, InvariantResult, StatementResult, Verdict, finding
from backedge.recovery.spark.report.verdict_page import page_of
from proof.runner import run_seed
from tests.every import every
from tests.spark.described import cut
from tests.spark.forging import Forged
from tests.spark.simulated import write_run

SIZES = {
    "channels": 12,
    "digested": 8,
    "counted": 4,
    "log_batches": 0,
    "log_records": 0,
    "state_rows": 5,
    "bytes": 100,
    "files": 3,
}
HOLDS, BROKEN = InvariantResult("money", 0), InvariantResult("debts", 2, ('{"n":1}',))
UNREAD = InvariantResult("sums", 0, unread=3)
WRONG = finding(2, "a batch was changed", 7, channel="a")
# An extension that is registered nowhere.
UNREADABLE = b"\x82\x01."


def verdict(*invariants: InvariantResult, findings: Any = ()) -> Verdict:
    return Verdict("job", "id", "/job", [cut(sizes=SIZES, invariants=invariants, findings=findings)])


@every(
    ("found", "consistent", "hold", "outcome"),
    [
        (verdict(), True, None, "consistent"),
        (verdict(HOLDS), True, True, "consistent"),
        (verdict(HOLDS, BROKEN), True, False, "consistent, but an invariant does not hold"),
        (verdict(UNREAD), True, False, "consistent, but an invariant does not hold"),
        (verdict(HOLDS, findings=[WRONG]), False, True, "not consistent"),
        (verdict(BROKEN, findings=[WRONG]), False, False, "not consistent"),
    ],
)
def test_a_broken_invariant_is_no_fault_of_the_engine(
    found: Verdict, consistent: bool, hold: bool | None, outcome: str
):
    told = found.to_json()
    assert (found.consistent, found.invariants_hold, found.outcome) == (consistent, hold, outcome)
    assert (told["consistent"], told["invariants_hold"], bool(told["findings"])) == (consistent, hold, not consistent)
    assert found.lines()[0].startswith("consistent: 1 cut of job" if consistent else "not consistent: 1 cut of job")
    assert any(line.startswith("invariants ") for line in found.lines()) == (hold is not None)
    assert found.passed == (not found.failures)


def test_each_verdict_tells_its_scope():
    told = verdict(HOLDS, BROKEN, UNREAD)
    first, *lines = told.lines()
    assert first == "consistent: 1 cut of job; 8 channels compared by digest, 4 within actors only counted"
    assert lines[-3:] == [
        "invariants do not hold: 2 of 3",
        '  epoch 7, invariant debts: violated by 2 rows; first: {"n":1}',
        "  epoch 7, invariant sums: not decided, as 3 values could not be read",
    ]
    assert told.to_json()["scope"] in first
    page = page_of(told.to_json())
    assert told.scope in page
    assert "do not hold: debts, sums" in page and "3 values could not be read" in page


def test_a_cut_may_break_a_statement_and_an_invariant():
    results = [StatementResult(number, name, 3, "2 rows") for number, name in STATEMENTS.items() if number in (2, 7)]
    found = cut(sizes=SIZES, invariants=[BROKEN], findings=[WRONG], statements=results)
    assert Verdict("job", "id", "/job", [found]).lines() == [
        "not consistent: 1 cut of job, statement 2 violated",
        f"  {WRONG}",
        "  epoch 7, statement 2: 2 more",
        "invariants do not hold: 1 of 1",
        '  epoch 7, invariant debts: violated by 2 rows; first: {"n":1}',
    ]


def test_names_are_printed_with_what_a_terminal_obeys_escaped():
    named = InvariantResult("x\nconsistent: 9 cuts\x1b[2J", 1, ("\x1b[1m",))
    wrong = finding(5, "operator 'a\nconsistent: 1 cut' is in no task", 7, task="\x1b[31mrank/0")
    found = Verdict("job\nconsistent", "id", "/job", [cut(sizes=SIZES, invariants=[named], findings=[wrong])])
    assert all(line.isprintable() for line in (*found.lines(), *found.failures))


@pytest.mark.slow
def test_an_invariant_that_meets_what_cannot_be_read_does_not_pass(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    _, world, _ = run_seed(3, 10)
    forged = Forged(write_run(world, tmp_path), tmp_path / "copy")
    epoch = max(forged.manifests)
    names = [file["name"] for task in forged.manifests[epoch]["tasks"] for file in task["files"]]
    name = next(name for name in names if "/table=state/" in name)
    rows = forged.rows(name)
    number = next(number for number, row in enumerate(rows) if row["key_int"] is not None or row["key_str"] is not None)
    nothing = {column: None for column in rows[number] if column.startswith(("key_i", "key_s", "value_"))}
    rows[number] |= {**nothing, "data": UNREADABLE}
    operator = name.split("/")[3].removeprefix("operator=")
    forged.change(name, lambda _: rows)
    asked = {
        "values": "SELECT key FROM state WHERE get_json_object(value, '$.x') < 0",
        "layers": "SELECT key FROM state_layers WHERE get_json_object(value, '$.x') < 0",
        "elsewhere": f"SELECT value FROM state WHERE operator != '{operator}' AND value < '!'",
        "keys": "SELECT key FROM state WHERE key IS NULL AND kind = 'value'",
        "a table whose name is an expression": "SELECT * FROM IDENTIFIER('task' || 's') WHERE task IS NULL",
    }
    options = [word for one in asked.items() for word in ("--invariant", "=".join(one))]
    assert main(["audit", str(forged.seal()), "--epoch", str(epoch), "--json", *options]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["consistent"] and told["invariants_hold"] is False
    found = {one["name"]: (one["holds"], one["rows"], one["unread"]) for one in told["invariants"]}
    sound = dict.fromkeys(["elsewhere", "a table whose name is an expression"], (True, 0, 0))
    unread = {"values": (False, 0, 1), "keys": (False, 1, 1), "layers": (False, 0, 1)}
    assert found == {**unread, **sound}, "the key cannot be read either"


@pytest.mark.slow
def test_rounds_that_cannot_be_read_are_not_taken_for_few(spark: Any):
    row = "1L AS epoch, 'again' AS loop, CAST(NULL AS STRING) AS record, CAST(NULL AS BIGINT) AS hops"
    tables = {"in_flight": spark.sql(f"SELECT {row}")}
    (found,) = check_invariants(spark, tables, 1, {"rounds": "SELECT loop FROM in_flight WHERE hops > 9"})
    assert (found.holds, found.rows, found.unread) == (False, 0, 1)
