"""The demonstration: payments go round a loop that is killed twice, and nothing is lost; then the same without its log.

    make demo

Spark prepares the payments, Ray runs the loop and has the process of its head killed while refused payments are on
their way round, and Spark audits the last cut and compares. Then the loop is killed once more, and this time cuts leave
out what is in the loop: Spark names what is lost.
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
    """Prints a run that is killed twice and loses nothing; exits with 1 if that is not what comes of it."""
    print(f"{payments.SIZE} payments, prepared by Spark, on Ray.")
    print("The process of the head, which tries them, is going to be killed twice.\n", flush=True)
    checked = run_checked(payments, OPTIONS, faults=Faults(KILLS))
    _print_restores(checked)
    if checked.failures:
        sys.exit("\n".join(checked.failures))
    print(f"  the last cut is {checked.audit}, says Spark, from what lies on disk")
    print(f"  recovered: 0 of {len(checked.rows)} rows differ from what Spark computes; nothing lost, nothing doubled")


def show_without_log() -> None:
    """Prints the same kill in a run whose cuts leave out what is in the loop; exits with 1 if nothing is lost."""
    print("\nThe same kill, and the log of the loop is switched off.\n", flush=True)
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
    print("  They were in the loop, and so in no state and in no file.")


def _print_restores(checked: Checked) -> None:
    print()
    for kill, restore in zip(checked.result.kills, checked.result.restores, strict=True):
        cut = "the beginning" if restore["epoch"] is None else f"cut {restore['epoch']}"
        print(f"  process {kill['pid']} got {kill['signal']}; all went back to {cut}, ", end="")
        print(f"which holds {restore['in_loop_records']} payments that were in the loop")


def main() -> None:
    """Prints the graph, and what happens in it with and without the log."""
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
    main()
