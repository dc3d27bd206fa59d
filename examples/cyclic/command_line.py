"""The command line shared by all examples: Spark prepares the input, Ray runs the flow, Spark compares the result.

An example ends with

    if __name__ == "__main__":
        from examples.cyclic.command_line import main

        main(__name__)

and is then called as, for instance,

    python -m examples.cyclic.transfers --size 500 --kill head@epoch=2 --kill body@epoch=4 --audit final

`backedge.cases` describes what a module must define for this; examples/cyclic/transfers.py shows it. Exit codes: 0 if
everything is as expected, 1 if the run failed or a row differs, 2 for wrong usage, 130 or 143 if interrupted by Ctrl-C
or SIGTERM. After an interruption with `--snapshots`, the same call with `--resume latest` continues the run.
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
"""Raised before anything runs. `NoInputError` is a subclass of `TaskError`, so check this first."""


def main(name: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the example in the module of this name, and exit."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(call(sys.modules[name], arguments))


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    # `ray job stop` sends SIGTERM; treat it like Ctrl-C.
    raise KeyboardInterrupt(number)


def call(module: ModuleType, arguments: Sequence[str] | None = None) -> int:
    """Run an example with these command-line arguments; return the exit code."""
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
    # Restores can outnumber kills: a resumed run begins with one.
    for restore in result.restores:
        cut = "the beginning" if restore["epoch"] is None else f"cut {restore['epoch']}"
        print(f"attempt {restore['attempt']} resumed from {cut}, with {_records(restore['in_loop_records'])} in a loop")
    for failure in checked.failures:
        print(f"WRONG: {failure}")
    if not checked.failures:
        if checked.audit is not None:
            print(f"audit: {checked.audit}")
        wanted = "Spark's result" + ("" if rounds is None else f" after at most {rounds} rounds")
        print(f"{len(checked.rows):,} rows in {result.seconds:.1f} s: 0 differ from {wanted}")


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def take_no_options(name: str, arguments: Sequence[str] | None = None) -> None:
    """Handle the arguments of a module without options: --help describes it, anything else is refused."""
    _bare_parser(sys.modules[name]).parse_args(arguments)


def _bare_parser(module: ModuleType) -> Parser:
    description = (module.__doc__ or "").strip().split("\n\n")[0]
    return Parser(prog=f"python -m examples.cyclic.{_short(module)}", description=description)


def _parser(module: ModuleType) -> Parser:
    parser = _bare_parser(module)
    parser.add_argument("--size", type=count, metavar="N", help=f"size of the input; default: {module.SIZE}")
    parser.add_argument("--rounds", type=count, metavar="N", help="maximum number of rounds, for loops in rounds")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON on the last line")
    add_run_flags(parser)
    return parser


def _short(module: ModuleType) -> str:
    name = module.__spec__.name if module.__spec__ is not None else module.__name__
    return name.rsplit(".", 1)[-1]


def _interrupted(snapshots: str | None) -> str:
    if snapshots is None:
        return "interrupted; without --snapshots the run cannot be resumed"
    return f"interrupted; the cuts are in {snapshots}: the same call with --resume latest continues the run"


def _say(program: str, error: object, code: int) -> int:
    print(f"{program}: {' '.join(str(error).split(chr(10)))}", file=sys.stderr, flush=True)
    return code
