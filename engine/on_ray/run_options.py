"""The options of a run, in one list: keywords of `run` and `start`, flags of the command line and the examples.

A field has its unit and its check in its type, its default, and a docstring. Everything else is derived: the keywords
of `run` and `start` (`with_keywords_of`), the text of `help(run)` (`option_docs`), the flags (`backedge/run_flags.py`).
To add an option, add a field and read it where it takes effect.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache, wraps
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

from backedge.graphs.expansion import Actors
from backedge.graphs.flow import Flow, checked_flow
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.options import is_whole
from backedge.graphs.public import public

P = ParamSpec("P")
R = TypeVar("R")
Options = TypeVar("Options")

SECONDS_MIN = 0.001
"""Inside, times are whole milliseconds."""

ABOUT_CUTS = ("every", "keep", "cut_pause", "cuts_in_progress", "log_bytes")
"""Options that change nothing where no cuts are kept. The others about cuts also concern probes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The values that an option accepts: a check, and its description."""

    accepts: Callable[[Any], bool]
    expected: str


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and value is not True and SECONDS_MIN <= value < float("inf")


def _is_seconds_or_zero(value: object) -> bool:
    return _is_seconds(value) or (value == 0 and not isinstance(value, bool))


def _is_location(value: object) -> bool:
    path = cast(object, os.fspath(cast(str, value))) if isinstance(value, str | os.PathLike) else None
    return isinstance(path, str) and path != "" and "\0" not in path


def _are_names(value: object) -> bool:
    if not isinstance(value, list | tuple | set | frozenset):
        return False
    return all(isinstance(name, str) for name in cast(Sequence[object], value))


def _are_new_names(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    pairs = cast(Mapping[object, object], value).items()
    return all(isinstance(old, str) and isinstance(new, str) for old, new in pairs)


def _is_resume(value: object) -> bool:
    return value in ("latest", "never") or (is_whole(value) and value >= 1)


Location = Annotated[
    str | os.PathLike[str], Rule(_is_location, "the path of a folder, '.' for the current one, or the URI of a store")
]
Seconds = Annotated[float, Rule(_is_seconds, f"seconds, at least {SECONDS_MIN:g}")]
SecondsOrZero = Annotated[float, Rule(_is_seconds_or_zero, f"seconds: 0, or at least {SECONDS_MIN:g}")]
Count = Annotated[int, Rule(lambda value: is_whole(value) and value >= 1, "an integer of at least 1")]
CountOrZero = Annotated[int, Rule(lambda value: is_whole(value) and value >= 0, "an integer of at least 0")]
Seed = Annotated[int, Rule(is_whole, "an integer")]
Switch = Annotated[bool, Rule(lambda value: isinstance(value, bool), "True or False")]
Resume = Annotated[Literal["latest", "never"] | int, Rule(_is_resume, "'latest', 'never' or the number of a cut")]
Policy = Literal["aligned", "unaligned"]
Audit = Literal["never", "final", "every-cut"]
Names = Annotated[Sequence[str], Rule(_are_names, "a list of operators' names")]
NewNames = Annotated[Mapping[str, str], Rule(_are_new_names, "a dict: former name of an operator -> its new name")]
OnSilence = Literal["report", "restart"]
Metrics = Literal["on", "off"]
Scope = Literal["auto", "pipeline", "job"]
RestartStrategy = Literal["exponential", "fixed"]
Placement = Literal["DEFAULT", "SPREAD"]


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of one run. Raises `BadOptionError` for a value that an option does not take.

    >>> RunOptions(snapshots="cuts", every=0.2).keep
    3
    >>> RunOptions(keep=0)
    Traceback (most recent call last):
    backedge.BadOptionError: run option keep=0: give an integer of at least 1
    """

    snapshots: Location | None = None
    """Where cuts are kept: a folder, or the URI of a store. Without it, the death of a process fails the run."""
    every: Seconds | None = 0.5
    """Seconds between two periodic cuts. None: cuts are taken only when `Job.cut` or `Job.savepoint` asks for one."""
    keep: Count = 3
    """How many cuts are kept; older ones are removed."""
    policy: Policy = "aligned"
    """How a cut is taken: "aligned" waits for the barriers of regular inputs and logs the loops; "unaligned" waits for
    nothing and logs every channel."""
    cut_timeout: Seconds = 60.0
    """Seconds without progress after which a cut is given up. The run continues and reports what the cut waited for."""
    cut_patience: Seconds | None = 1.0
    """Seconds that a task waits for the barriers of an aligned cut. Then it captures its state at once and logs what is
    queued, so that slow records do not delay the cut. None: it waits as long as it takes."""
    cut_failures: CountOrZero = 10
    """How many cuts in a row may fail before the attempt is restarted. A cut that a slow function or `log_bytes` delays
    or ends does not count."""
    cut_pause: SecondsOrZero = 0.0
    """Least seconds between the end of one periodic cut and the beginning of the next."""
    cuts_in_progress: Count = 1
    """How many periodic cuts may be in progress at a time."""
    log_bytes: Count | None = None
    """Bytes of records in flight that one task may log for a cut. A cut that would need more is given up and reported.
    None: no limit."""
    resume: Resume = "never"
    """Where to begin: "never" starts from nothing and refuses a folder that holds a run; "latest" continues from the
    latest cut, if there is one; a number continues from that cut and publishes again what was published after it. A run
    of the job that is still alive loses the job to this one, and ends with `FencedError`."""
    replace_output: Switch = False
    """With the number of a cut in `resume`: removes what this job has published after that cut, before anything runs.
    Later cuts are given up, savepoints included. Refused if a sink cannot remove what it has published."""
    drop: Names = ()
    """Operators of the cut that the flow no longer has, or that are to start again without their state."""
    rename: NewNames | None = None
    """New names of operators that the flow has renamed since the cut, by their former names."""
    key: bytes | None = field(default=None, repr=False)
    """Key that signs cuts and collected output; files that it did not sign are not restored. None: the environment
    variable BACKEDGE_KEY, if it is set. Without a key, a folder that other users can write to is refused."""
    audit: Audit = "never"
    """Have Spark audit the "final" cut, or cuts as they appear ("every-cut"). A failed audit fails the run."""
    parallelism: Count = 1
    """Tasks for each operator that does not set its own number."""
    actors: Actors = "auto"
    """Which tasks share a process: "task" gives each its own, "slice" one to task i of every operator, "auto" chooses
    by the number of CPUs."""
    placement: Placement = "DEFAULT"
    """How Ray places the processes: "SPREAD" as far apart as possible, "DEFAULT" as Ray does by itself."""
    spares: CountOrZero = 0
    """Started processes that wait to replace those that die."""
    scope: Scope = "auto"
    """What is restored after a failure: "pipeline" is the connected component of the flow in which it happened, and the
    others go on, each in processes of its own; "job" is the whole flow. "auto" is what the cuts of the job were taken
    with, at first "pipeline"; but "job" for a flow with `stop_when`, which is about all of it, and without cuts."""
    max_restarts: CountOrZero = 10
    """How many attempts may fail within `restart_window` before the run fails."""
    restart_window: Seconds | None = 3600.0
    """Seconds after which a failed attempt no longer counts. None: all attempts count."""
    restart_strategy: RestartStrategy = "exponential"
    """How long a restart waits: "exponential" starts the first one at once and then doubles the pause, less up to half
    of it at random, until a cut is complete; "fixed" always waits `restart_pause`."""
    restart_pause: Seconds = 0.1
    """Seconds that a restart waits; under "exponential" the pause before the second one in a row."""
    restart_pause_max: Seconds = 30.0
    """Most seconds that a restart waits under "exponential"."""
    silence_timeout: Seconds = 30.0
    """Seconds after which a process that reports nothing counts as silent. A restart waits this long, too, for a
    process that is inside a function of yours. A supervisor whose process is stopped is replaced after this time."""
    on_silence: OnSilence = "report"
    """What to do about a silent process: "report" names it and the function that it is in, "restart" restarts the
    attempt as well. That holds from the beginning of an attempt: an `on_start` that takes longer needs a longer
    `silence_timeout`. A process that reads a large state is only named."""
    credit_bytes: Count = 4_000_000
    """Bytes that may be on their way in one channel; fewer where the receiving task is slow."""
    loop_bytes: CountOrZero = 64_000_000
    """Bytes that a channel of a loop keeps in memory; the rest waits on disk."""
    loop_disk_bytes: CountOrZero = 10_000_000_000
    """Bytes that the loops of one process keep on disk. Beyond that the run fails with `LoopOverflowError`."""
    keep_inputs: Names = ()
    """Operators whose tasks keep what they get beside the cuts, so that `backedge replay` can run it again."""
    seed: Seed = 0
    """Seed for the random choices of the run."""
    metrics: Metrics = "on"
    """Whether Ray serves metrics of the run to Prometheus: a dozen figures of each task, and more of the job."""
    detached: Switch = False
    """Whether the run survives the process that starts it, on a Ray cluster that does so, too. `attach` finds it."""
    progress: Switch = True
    """Whether to show a line with the progress of the run on standard error."""

    def __post_init__(self) -> None:
        for name in option_rules():
            value = getattr(self, name)
            if (expected := expected_instead(name, value)) is not None:
                raise BadOptionError(f"run option {name}={value!r}: give {expected}")

    def check_snapshots(self, what: str) -> None:
        """Raise if an option needs cuts but none are kept. `what` names the flow in the error."""
        if self.snapshots is not None:
            return
        changed = {option.name for option in fields(self) if getattr(self, option.name) != option.default}
        needing = {
            f"resume={self.resume!r}, which continues from a cut": self.resume != "never",
            f"audit={self.audit!r}, which looks at cuts": self.audit != "never",
            "key=, which signs cuts": self.key is not None,
            "drop=, which gives up state of a cut": bool(self.drop),
            "rename=, which finds state in a cut": bool(self.rename),
            "keep_inputs=, which keeps inputs beside cuts": bool(self.keep_inputs),
            **{f"{name}={getattr(self, name)!r}, which is about cuts": name in changed for name in ABOUT_CUTS},
            "scope='pipeline', which restores each pipeline from its cuts": self.scope == "pipeline",
        }
        for option, is_given in needing.items():
            if is_given:
                raise BadOptionError(f"{what} has {option}: give it snapshots=, the folder or URI for them")


@cache
def option_rules() -> dict[str, Rule | None]:
    """The rule of each option, in the order of the fields; None if another part of the program checks the value."""
    hints = get_type_hints(RunOptions, globals(), include_extras=True)
    return {option.name: _rule_of(hints[option.name]) for option in fields(RunOptions)}


def _rule_of(hint: Any) -> Rule | None:
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return Rule(lambda value: value in choices, f"one of {', '.join(map(repr, choices))}")
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    rule = _rule_of(kinds[0]) if len(kinds) == 1 else None
    return rule and Rule(lambda value: value is None or rule.accepts(value), rule.expected)


def expected_instead(name: str, value: object) -> str | None:
    """A description of the values that an option accepts, if this is not one; else None.

    >>> expected_instead("every", 0), expected_instead("every", 0.5)
    ('seconds, at least 0.001', None)
    """
    rule = option_rules()[name]
    return None if rule is None or rule.accepts(value) else rule.expected


@cache
def option_docs() -> dict[str, str]:
    """The docstring of each option as one line, read from the source of `RunOptions`.

    >>> option_docs()["every"]
    'Seconds between two periodic cuts. None: cuts are taken only when `Job.cut` or `Job.savepoint` asks for one.'
    """
    # `inspect.getsource` would take 10 ms to find the class, in each process that imports `run`.
    module = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    found = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == RunOptions.__name__)
    docs: dict[str, str] = {}
    for option, told in pairwise(found.body):
        if isinstance(option, ast.AnnAssign) and isinstance(option.target, ast.Name) and isinstance(told, ast.Expr):
            docs[option.target.id] = " ".join(cast(str, ast.literal_eval(told.value)).split())
    return docs


def with_keywords_of(
    options: Callable[P, Options],
) -> Callable[[Callable[[Flow, Options], R]], Callable[Concatenate[Flow, P], R]]:
    """Let a function of a flow and `RunOptions` accept the options as keywords, for type checkers, editors and `help`.

    >>> @with_keywords_of(RunOptions)
    ... def seconds(flow, options):
    ...     return options.every
    >>> seconds(Flow("shop"), every=2)
    2
    >>> seconds(Flow("shop"), evry=2)
    Traceback (most recent call last):
    TypeError: seconds() got an unexpected keyword argument 'evry': did you mean 'every'?
    """
    parameters = inspect.signature(options).parameters

    def decorate(function: Callable[[Flow, Options], R]) -> Callable[Concatenate[Flow, P], R]:
        first, _ = inspect.signature(function).parameters.values()
        signature = inspect.signature(function).replace(parameters=[first, *parameters.values()])

        @wraps(function)
        def call(flow: Flow, *positional: P.args, **keywords: P.kwargs) -> R:
            checked_flow(flow, function.__name__)
            try:
                signature.bind(flow, *positional, **keywords)
            except TypeError as error:
                unknown = next((name for name in keywords if name not in parameters), "")
                near = get_close_matches(unknown, parameters, 1)
                hint = f": did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"{function.__name__}() {error}{hint}") from None
            return function(flow, options(*positional, **keywords))

        told = "\n".join(f"- {name}: {text}" for name, text in option_docs().items())
        call.__doc__ = f"{inspect.getdoc(function)}\n\nThe options:\n\n{told}\n"
        cast(Any, call).__signature__ = signature
        return call

    return decorate
