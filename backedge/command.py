"""The command `backedge`: run a flow, look at its cuts, draw it."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, get_args

from backedge.arguments import Parser, add_key_file, count, digits, number, place, port, seconds
from backedge.completion_command import print_completion
from backedge.flows import WrongCallError, flow_at, settings_in
from backedge.graphs.drawing import Format, draw
from backedge.graphs.graph_errors import GraphError
from backedge.graphs.wording import one_line
from backedge.printing import refuse
from backedge.recovery.protocol.protocol_errors import RescaleError
from backedge.recovery.spark.spark_errors import SparkJobError
from backedge.recovery.stores.store_errors import StoreError
from backedge.run_flags import add_repeated, add_run_flags
from backedge.version import VERSION

INTERRUPTED = 130
NOBODY_READS = 141
REFUSED = (WrongCallError, GraphError, StoreError, RescaleError, SparkJobError, OSError)
"""Why a command cannot do what it was asked for: said in one line, and it ends with 2."""

FUNCTIONS = {
    "run": "run_command.run_flow",
    "attach": "living_commands.follow_run",
    "savepoint": "living_commands.take_savepoint",
    "rescale": "living_commands.rescale_run",
    "rate": "living_commands.limit_source",
    "stop": "living_commands.stop_run",
    "cancel": "living_commands.cancel_run",
    "compare": "compare_command.compare_module",
    "prepare": "prepare_command.prepare_input",
    "audit": "audit_command.audit_job",
    "list": "snapshots_command.list_cuts",
    "show": "snapshots_command.show_cut",
    "check": "snapshots_command.check_flow",
    "diff": "snapshots_command.compare_cuts",
    "delete": "snapshots_command.delete_cut",
    "jobs": "status_command.list_jobs",
    "status": "status_command.show_status",
    "logs": "logs_command.show_logs",
    "top": "top_command.show_top",
    "doctor": "doctor_command.examine",
    "ui": "ui_command.serve_page",
    "state": "contents_command.show_state",
    "inflight": "contents_command.show_in_flight",
    "replay": "replay_command.replay_task",
    "graph": "command.draw_flow",
    "play": "play_command.write_play",
}
"""Command, or command of `snapshots` -> the module and function that obey it."""

CONTROL = "the page has buttons for savepoint, stop, cancel and rescale"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 failed, 2 a wrong call.

    >>> main(["graph", "shop"])
    2
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It was closed, as by `>&-`.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        # Names and values may hold what its encoding lacks.
        reconfigure(errors="backslashreplace")
    try:
        try:
            return _obey(_parser().parse_args(arguments))
        finally:
            sys.stdout.flush()  # of --help, too, which exits
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        if _is_read():
            raise  # another pipe or socket broke
        # Python flushes at its end: let the rest of the output go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS


def _is_read() -> bool:
    """Whether our output still has a reader: the system reports a pipe without one as an error."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return not output.poll(0)


def _obey(options: argparse.Namespace) -> int:
    if options.command == "completion":
        return print_completion(_parser(), options.shell)
    # Ray and Spark are imported by the commands that need them, so that a drawing does not wait for them.
    module, _, function = FUNCTIONS[options.command if options.command != "snapshots" else options.what].partition(".")
    try:
        return getattr(import_module(f"backedge.{module}"), function)(options)
    except BrokenPipeError:
        raise
    except REFUSED as refused:
        return refuse(options.command, refused)


@cache
def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="backedge", description="Dataflow graphs with cycles.")
    parser.add_argument("--version", action="version", version=f"backedge {VERSION}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    _add_run(commands.add_parser("run", help="run a flow on Ray", description="Run a flow on Ray, to its end."))
    _add_living(commands)
    _add_prepare(commands.add_parser("prepare", help="make raw input ready for a flow, by Spark"))
    _add_compare(commands.add_parser("compare", help="a flow run clean, with kills, and by Spark: all three are equal"))
    _add_audit(commands.add_parser("audit", help="prove by Spark that cuts are consistent, or say what is wrong"))
    _add_looking(commands)
    _add_replay(commands.add_parser("replay", help="run what a task got after a cut again, in your debugger"))
    _add_snapshots(commands.add_parser("snapshots", help="the cuts that a run has kept"))
    completion = commands.add_parser("completion", help="a script that completes this command in your shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")
    graph = commands.add_parser("graph", help="draw a flow, its loops and back edges marked")
    _add_flow(graph)
    _add_set(graph)
    graph.add_argument("--format", choices=get_args(Format), default="text", help="default: text")
    play = commands.add_parser("play", help="a page on which a recorded run is stopped, stepped and killed")
    _add_flow(play)
    _add_set(play)
    play.add_argument("page", type=place, metavar="FILE.html", help="the page to write")
    play.add_argument("--seed", type=number, default=0, metavar="N", help="the order of events; default: 0")
    return parser


def _add_flow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("flow", metavar="MODULE:NAME", help="a module, and a Flow in it or a function that returns one")


def _add_set(parser: argparse.ArgumentParser) -> None:
    setting = "an argument of that function, as JSON or else as text; may be given again"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help=setting)


def _add_run(run: argparse.ArgumentParser) -> None:
    _add_flow(run)
    _add_set(run)
    add_run_flags(run)
    run.add_argument("--ui", action="store_true", help="serve a live page of the run while it goes on")
    run.add_argument("--control", action="store_true", help=f"with --ui: {CONTROL}")
    _add_results(run)


def _add_results(parser: argparse.ArgumentParser) -> None:
    told = parser.add_argument_group("results")
    told.add_argument("--json", action="store_true", help="the last line of the output is the summary, as JSON")
    told.add_argument("--json-out", type=place, metavar="URI", help="write the summary to a file, too")


def _add_living(commands: Any) -> None:
    for command, help, name in (
        ("attach", "follow a detached run to its end", None),
        ("savepoint", "have a detached run take a cut that is kept", "savepoint"),
        ("rescale", "give a detached run another number of tasks", None),
        ("rate", "limit how fast a source of a detached run is read", None),
        ("stop", "end a detached run with a cut", "stop"),
        ("cancel", "end a detached run at once; its last cut stays", None),
    ):
        parser = commands.add_parser(command, help=help)
        parser.add_argument("job", metavar="JOB", help="the name of its flow")
        if name is not None:
            parser.add_argument("--name", default=name, help=f"the name of the cut; default: {name}")
        if command == "rescale":
            tasks = "tasks for each operator that does not set its own number, or for one; may be given again"
            parser.add_argument("--parallelism", action="append", required=True, metavar="N|OPERATOR=N", help=tasks)
        if command == "rate":
            parser.add_argument("source", metavar="SOURCE", help="the name of its operator")
            rate = "what its tasks together read: 500/s records, 2MB/s (kB, MB, GB) bytes, or off"
            parser.add_argument("rate", metavar="RATE", help=rate)
        _add_results(parser)


def _add_prepare(prepare: argparse.ArgumentParser) -> None:
    prepare.add_argument(
        "source", type=place, metavar="SOURCE", help="a file or a folder of CSV, JSON lines or Parquet"
    )
    prepare.add_argument(
        "target", type=place, metavar="TARGET", help="a folder to make; a flow reads Parquet(TARGET/data)"
    )
    prepare.add_argument("--key", metavar="COLUMN", help="what the flow keys by: each task gets the keys it keeps")
    prepare.add_argument("--tasks", type=count, default=1, metavar="N", help="the parallelism to lay it out for")
    prepare.add_argument(
        "--schema", metavar="DDL", help="as in 'id BIGINT NOT NULL, amount DOUBLE'; else Spark finds it"
    )
    prepare.add_argument("--format", choices=("csv", "json", "parquet"), help="default: by the endings of the files")
    prepare.add_argument("--unique", default="", metavar="COLUMNS", help="separated by commas; no two rows share them")
    prepare.add_argument("--where", metavar="SQL", help="a condition that a good row fulfils")
    expression = "the value of a column, also of a new one; may be given again"
    prepare.add_argument("--set", action="append", default=[], metavar="COLUMN=SQL", dest="clean", help=expression)
    prepare.add_argument("--master", metavar="URL", help="of the Spark to run on; default: this machine")
    prepare.add_argument("--json", action="store_true", help="tell the counts as JSON")


def _add_compare(compare: argparse.ArgumentParser) -> None:
    declared = "a module with flow() and reference(), such as examples.cyclic.transfers; MODULE:flow is the same"
    compare.add_argument("module", metavar="MODULE", help=declared)
    compare.add_argument("--kills", type=number, default=3, metavar="N", help="how many processes die; default: 3")
    compare.add_argument("--seed", type=int, default=0, metavar="N", help="who dies, and when; default: 0")
    compare.add_argument(
        "--size", type=count, metavar="N", help="how much there is to do; default: what the module says"
    )
    compare.add_argument("--parallelism", type=count, default=1, metavar="N", help="tasks an operator; default: 1")
    compare.add_argument("--rounds", type=count, metavar="N", help="stop after N rounds, if the flow has rounds")
    every = "between cuts; default: so that all kills have room in the time of the clean run"
    compare.add_argument("--every", type=seconds, metavar="SECONDS", help=every)
    planted = "change a row of the result, to see that it is found: ends with 1"
    add_key_file(compare.add_argument)
    compare.add_argument("--plant-error", action="store_true", help=planted)
    compare.add_argument("--json", action="store_true", help="the last line of the output is what was found, as JSON")


def _add_audit(audit: argparse.ArgumentParser) -> None:
    audit.add_argument(
        "job", type=place, metavar="SNAPSHOTS/JOB", help="where a run keeps the cuts of its job: a folder or a URI"
    )
    audit.add_argument("--epoch", type=_epochs, default="latest", metavar="K|all|latest", help="default: latest")
    invariant = "the rows that this query returns, over the tables of a cut, are what is wrong; may be given again"
    audit.add_argument(
        "--invariant", action="append", default=[], metavar="NAME=SQL", dest="invariants", help=invariant
    )
    audit.add_argument("--json", action="store_true", help="print the verdict as one line of JSON")
    audit.add_argument("--page", type=place, metavar="FILE.html", help="write a page with a picture of each cut")
    audit.add_argument("--parquet", type=place, metavar="DIR", help="write what was found as tables")
    audit.add_argument("--master", metavar="URL", help="the Spark to use; default: one on this machine")
    add_key_file(audit.add_argument)


def _epochs(text: str) -> str:
    if text not in ("all", "latest") and digits(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give the number of an epoch, all or latest")
    return text


def _add_looking(commands: Any) -> None:
    _add_place(commands.add_parser("jobs", help="the jobs of a folder, and those that run on the cluster"))
    status = commands.add_parser("status", help="what a job is doing: its tasks, loops, epochs and failures")
    status.add_argument("job", metavar="JOB", help="the name of its flow")
    _add_place(status)
    top = commands.add_parser(
        "top", help="the operators of the runs that are alive, in a table that is kept up to date"
    )
    top.add_argument("job", metavar="JOB", nargs="?", help="the name of its flow; default: all runs that are alive")
    top.add_argument("--json", action="store_true", help="once, as JSON")
    logs = commands.add_parser("logs", help="what the functions of a job print and log, by operator and task")
    logs.add_argument("job", metavar="JOB", help="the name of its flow")
    logs.add_argument("--operator", metavar="NAME", help="only the lines of this operator")
    logs.add_argument("--follow", action="store_true", help="go on until the run has ended, or until Ctrl-C")
    doctor = commands.add_parser("doctor", help="what is missing on this machine or cluster, and how to repair it")
    doctor.add_argument("--snapshots", type=place, metavar="DIR", help="the folder or URI that cuts are to be kept in")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    ui = commands.add_parser("ui", help="a live page of the jobs of a folder and of the cluster")
    ui.add_argument("snapshots", nargs="?", type=place, metavar="SNAPSHOTS", help="the folder or URI of the cuts")
    ui.add_argument("--port", type=port, default=0, metavar="N", help="default: one that is free")
    ui.add_argument("--control", action="store_true", help=CONTROL)
    add_key_file(ui.add_argument)
    state = commands.add_parser("state", help="the state of an operator in a cut, by key")
    inflight = commands.add_parser("inflight", help="the records that were in a loop when a cut was taken")
    for parser in (state, inflight):
        parser.add_argument("job", metavar="JOB", help="the name of its flow")
    state.add_argument("operator", metavar="OPERATOR", help="the name of the operator")
    state.add_argument("key", metavar="KEY", nargs="?", help="one key, as text or JSON; default: all")
    inflight.add_argument("loop", metavar="LOOP", help="the name of the loop")
    for parser in (state, inflight):
        parser.add_argument("--epoch", type=count, metavar="K", help="the number of the cut; default: the latest")
        _add_place(parser)


def _add_replay(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("job", metavar="JOB", help="the name of its flow")
    replay.add_argument(
        "--epoch", type=number, required=True, metavar="K", help="the cut to begin with; 0: the beginning"
    )
    replay.add_argument("--operator", required=True, metavar="OPERATOR", help="one that the run had in keep_inputs=")
    replay.add_argument("--task", type=number, default=0, metavar="I", help="the number of its task; default: 0")
    replay.add_argument("--attempt", type=count, metavar="N", help="default: the last one that went on from the cut")
    now = "run the functions of this flow; default: those of the run, from their modules as they are now"
    replay.add_argument("--flow", metavar="MODULE:NAME", help=now)
    _add_set(replay)
    replay.add_argument("--pdb", action="store_true", help="open the debugger where a function raises")
    _add_place(replay)


def _add_place(parser: argparse.ArgumentParser) -> None:
    """Where to look for jobs, and in which form to print them."""
    where = "the folder or URI of the cuts; default: where the run that is alive on the cluster keeps them"
    parser.add_argument("--snapshots", type=place, metavar="DIR", help=where)
    add_key_file(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="as JSON")


def _add_snapshots(snapshots: argparse.ArgumentParser) -> None:
    whats = snapshots.add_subparsers(title="commands", dest="what", required=True, metavar="COMMAND")
    for what, help in (
        ("list", "all cuts, the oldest first"),
        ("show", "what is in one, every file verified"),
        ("check", "what has changed in a flow since a cut, and whether the cut can be resumed with it"),
    ):
        parser = whats.add_parser(what, help=help)
        if what == "show":
            parser.add_argument("epoch", type=count, metavar="EPOCH", help="the number of the cut")
        if what == "check":
            _add_flow(parser)
            _add_set(parser)
            parser.add_argument("--epoch", type=count, help="the number of the cut; default: the latest")
            tasks = "the tasks of each operator that the run is to have, as for `backedge run`"
            parser.add_argument("--parallelism", type=count, metavar="N", help=tasks)
            add_repeated(parser.add_argument, "drop")
            add_repeated(parser.add_argument, "rename")
        parser.add_argument(
            "--snapshots", type=place, required=True, metavar="DIR", help="what `backedge run` was given"
        )
        if what != "check":
            parser.add_argument("--job", metavar="NAME", help="the name of the flow, where the folder holds several")
        add_key_file(parser.add_argument)
        parser.add_argument("--json", action="store_true", help="as JSON")
    diff = whats.add_parser("diff", help="what has changed from one cut to another")
    delete = whats.add_parser("delete", help="remove a cut, and no file that another cut needs")
    for parser in (diff, delete):
        parser.add_argument("job", metavar="JOB", help="the name of its flow")
    diff.add_argument("before", type=count, metavar="A", help="the number of a cut")
    diff.add_argument("after", type=count, metavar="B", help="the number of another")
    delete.add_argument("epoch", type=count, metavar="K", help="the number of the cut")
    delete.add_argument("--force", action="store_true", help="delete it even if it is the latest")
    for parser in (diff, delete):
        _add_place(parser)


def draw_flow(options: argparse.Namespace) -> int:
    """`backedge graph`: 1 if the flow cannot run."""
    try:
        print(draw(flow_at(options.flow, settings_in(options.settings)).plan(), options.format))
    except GraphError as refused:
        print(f"backedge graph: {one_line(options.flow)} cannot run: {one_line(refused)}", file=sys.stderr)
        return 1
    return 0
