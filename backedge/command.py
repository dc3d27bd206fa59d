"""The command `backedge`: its version, and the drawing of a flow."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from inspect import isfunction, signature
from types import FunctionType
from typing import get_args

from backedge.version import VERSION
from graphs.drawing import Format, draw
from graphs.errors import GraphError
from graphs.flow import Flow


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0 done, 1 a graph that cannot run, 2 a wrong call.

    >>> main(["graph", "shop"])
    2
    """
    options = _parser().parse_args(arguments)
    return _graph(options.flow, options.format)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="backedge", description="Dataflow graphs with cycles.")
    parser.add_argument("--version", action="version", version=f"backedge {VERSION}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    graph = commands.add_parser("graph", help="draw a flow, its loops and back edges marked")
    graph.add_argument("flow", metavar="MODULE:NAME", help="a module, and the Flow in it or a function that gives one")
    graph.add_argument("--format", choices=get_args(Format), default="text", help="default: text")
    return parser


def _graph(where: str, form: Format) -> int:
    try:
        print(draw(_flow(where).plan(), form))
    except _WrongCallError as wrong:
        print(f"backedge graph: {wrong}", file=sys.stderr)
        return 2
    except GraphError as refused:
        print(f"backedge graph: {where} cannot run: {refused}", file=sys.stderr)
        return 1
    return 0


class _WrongCallError(Exception):
    """What the caller wrote names no flow."""


def _flow(where: str) -> Flow:
    module_name, colon, name = where.partition(":")
    if not (module_name and colon and name):
        raise _WrongCallError(f"{where!r} names no flow: write MODULE:NAME, for example shop.orders:flow")
    # A command installed into bin/ finds the modules of the current folder no sooner than it is told to.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        # The module is there and lacks one of its own: its author needs the traceback.
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise
        raise _WrongCallError(
            f"no module {missing.name!r} here or among the installed ones: "
            "run the command in the folder that holds it, and write a.b for a/b.py"
        ) from None
    found = getattr(module, name, None)
    flow = _made_by(found, where) if isfunction(found) else found
    if isinstance(flow, Flow):
        return flow
    verb = "gives something" if isfunction(found) else "is"
    fault = "is not there" if found is None else f"{verb} of type {type(flow).__name__}, not a Flow"
    flows = sorted(other for other, value in vars(module).items() if isinstance(value, Flow))
    others = f"its flows are {', '.join(flows)}" if flows else "it holds no Flow at all"
    raise _WrongCallError(f"{name!r} in {module_name} {fault}; {others}")


def _made_by(function: FunctionType, where: str) -> object:
    needed = [
        parameter.name
        for parameter in signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise _WrongCallError(
            f"{where} is a function that needs {', '.join(needed)}: name one that needs nothing, or a Flow"
        )
    return function()
