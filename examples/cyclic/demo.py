"""Demo: a loop of payments is killed twice and loses nothing; then the same without the loop log.

    make demo

Spark prepares the payments. Ray runs the loop, and the process of its head is killed while refused payments are in the
loop. Spark audits the last cut and compares the result. Then the loop is killed once more, with cuts that leave out the
records in the loop, and Spark names the payments that are lost.
"""

from __future__ import annotations

import sys

from backedge import Checked, RunOptions, SparkJobError, close_session, draw, open_session, run_checked
from backedge.faults import Faults
from examples.cyclic import payments

KILLS = ("head@epoch=2", "head@epoch=4")
WITHOUT_LOG = "no-loop-log"
OPTIONS = RunOptions(every=0.4, actors="task", audit="final")


def show_with_log() -> None:
    """Print a run that is killed twice and loses nothing; exit with 1 if it loses something."""
    print(f"{payments.SIZE} payments, prepared by Spark, run on Ray.")
    print("The process of the loop head, which tries the payments, will be killed twice.\n", flush=True)
    checked = run_checked(payments, OPTIONS, faults=Faults(KILLS))
    _print_restores(checked)
    if checked.failures:
        sys.exit("\n".join(checked.failures))
    print(f"  Spark's audit of the last cut on disk: {checked.audit}")
    print(f"  recovered: 0 of {len(checked.rows)} rows differ from Spark's result; nothing lost, nothing doubled")


def show_without_log() -> None:
    """Print the same kill in a run whose cuts leave out the records in the loop; exit with 1 if nothing is lost."""
    print("\nThe same kill, with the loop log switched off.\n", flush=True)
    checked = run_checked(payments, OPTIONS, faults=Faults(KILLS[:1], broken_rule=WITHOUT_LOG))
    _print_restores(checked)
    lost = sorted(example["wanted"]["id"] for example in checked.judged.first if example["what"] == "lost")
    if not lost:
        sys.exit("nothing was in the loop when the cut was taken: run it again")
    for failure in checked.failures[-1:]:
        print(f"  {failure}")
    others = checked.judged.differing - len(lost)
    print(f"  {checked.judged.differing} of {payments.SIZE} rows are lost: {', '.join(lost)}", end="")
    print(f" and {others} others" if others else "")
    print("  They were in the loop, so they were in no task's state and in no file.")


def _print_restores(checked: Checked) -> None:
    print()
    for kill, restore in zip(checked.result.kills, checked.result.restores, strict=True):
        cut = "the beginning" if restore["epoch"] is None else f"cut {restore['epoch']}"
        print(f"  process {kill['pid']} got {kill['signal']}; all tasks restored {cut}, ", end="")
        print(f"including {restore['in_loop_records']} payments that were in the loop")


def main() -> None:
    """Print the graph, then a run with the loop log and one without."""
    try:
        spark = open_session("demo")
    except SparkJobError as error:
        sys.exit(f"demo: {error}")
    try:
        print(draw(payments.flow().plan()), end="\n\n")
        show_with_log()
        show_without_log()
    finally:
        close_session(spark)


if __name__ == "__main__":
    from examples.cyclic.command_line import take_no_options

    take_no_options(__name__)
    try:
        main()
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        sys.exit(130)
