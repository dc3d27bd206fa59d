"""The command line that all examples have: Spark prepares, Ray runs, Spark compares, and a person sees what came of it.

An example ends with

    if __name__ == "__main__":
        from examples.cyclic.command_line import main

        main(__name__)

and is then called as, for instance,

    python -m examples.cyclic.transfers --size 500 --kill head@epoch=2 --kill body@epoch=4 --audit final

What it needs to have for that is told by `backedge.cases`, and examples/cyclic/transfers.py shows it. Exit codes: 0
when all is as it should be, 1 when the run failed or something differs, 2 when the call was wrong, 130 or 143 when it
was interrupted, by Ctrl-C or by SIGTERM: with `--snapshots`, the same call with `--resume latest` goes on from there.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any, NoReturn

from backedge import (
    GraphError,
    KillSpecError,
    NoInputError,
    RunExistsError,
    RunFailedError,
    SparkJobError,
    StoreError,
    TaskError,
    WrongCallError,
    run_checked,
)
from backedge.arguments import Parser, count
from backedge.faults import Faults
from backedge.run_flags import add_run_flags, options_from

FAILED = (RunFailedError, TaskError)
REFUSED = (
    WrongCallError,
    GraphError,
    KillSpecError,
    NoInputError,
    RunExistsError,
    SparkJobError,
    StoreError,
    OSError,
)
"""Raised before anything runs. A `NoInputError` is a `TaskError`, too."""


def main(name: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the example that is the module of this name, and exit."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(call(sys.modules[name], arguments))


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    # As Ctrl-C does: `ray job stop` sends it.
    raise KeyboardInterrupt(number)


def call(module: ModuleType, arguments: Sequence[str] | None = None) -> int:
    """Run an example as the command line says; the exit code."""
    given = _parser(module).parse_args(arguments)
    program = f"examples.cyclic.{_short(module)}"
    try:
        options, faults = options_from(given), Faults(given.kills)
        checked = run_checked(module, options, faults=faults, size=given.size, rounds=given.rounds)
    except REFUSED as refusal:
        return _say(program, refusal, 2)
    except FAILED as failure:
        return _say(program, failure, 1)
    except KeyboardInterrupt as interrupted:
        number = interrupted.args[0] if interrupted.args else signal.SIGINT
        return _say(program, _interrupted(given.snapshots), 128 + number)
    _show(module, checked, given.rounds)
    if given.json:
        print(json.dumps(checked.summary()), flush=True)
    return 1 if checked.failures else 0


def _show(module: ModuleType, checked: Any, rounds: int | None) -> None:
    result = checked.result
    if checked.rows and hasattr(module, "show"):
        module.show(checked.rows)
        print()
    for kill in result.kills:
        print(f"process {kill['pid']} of {kill['actor']} got {kill['signal']}, as planned by {kill['fault']}")
    # Not every restore follows a kill: a run that is resumed begins with one.
    for restore in result.restores:
        cut = "the beginning" if restore["epoch"] is None else f"cut {restore['epoch']}"
        print(
            f"attempt {restore['attempt']} went on from {cut}, where {_records(restore['in_loop_records'])} in a loop"
        )
    for failure in checked.failures:
        print(f"WRONG: {failure}")
    if not checked.failures:
        if checked.audit is not None:
            print(f"the audit: {checked.audit}")
        wanted = "what Spark computes" + ("" if rounds is None else f" in {rounds} rounds at most")
        print(f"{len(checked.rows):,} rows in {result.seconds:.1f} s: 0 differ from {wanted}")


def _records(count: int) -> str:
    return "1 record was" if count == 1 else f"{count:,} records were"


def take_no_options(name: str, arguments: Sequence[str] | None = None) -> None:
    """Tell what the module of this name does when asked by --help, and exit; refuse whatever else it is given."""
    _bare_parser(sys.modules[name]).parse_args(arguments)


def _bare_parser(module: ModuleType) -> Parser:
    description = (module.__doc__ or "").strip().split("\n\n")[0]
    return Parser(prog=f"python -m examples.cyclic.{_short(module)}", description=description)


def _parser(module: ModuleType) -> Parser:
    parser = _bare_parser(module)
    parser.add_argument("--size", type=count, metavar="N", help=f"how much there is to do; default: {module.SIZE}")
    parser.add_argument("--rounds", type=count, metavar="N", help="at most so many rounds, where there are rounds")
    parser.add_argument("--json", action="store_true", help="the last line of the output is the summary, as JSON")
    add_run_flags(parser)
    return parser


def _short(module: ModuleType) -> str:
    name = module.__spec__.name if module.__spec__ is not None else module.__name__
    return name.rsplit(".", 1)[-1]


def _interrupted(snapshots: str | None) -> str:
    if snapshots is None:
        return "interrupted; without --snapshots there is nothing to go on from"
    return f"interrupted; what there is of it is in {snapshots}: the same call with --resume latest goes on from there"


def _say(program: str, error: object, code: int) -> int:
    print(f"{program}: {' '.join(str(error).split(chr(10)))}", file=sys.stderr, flush=True)
    return code
