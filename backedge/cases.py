"""A module that can be compared: it has a flow, and computes in Spark what the flow must produce.

    SIZE = 1_000                      # the size, unless another is asked for
    SINK = "booked"                   # the sink whose records are the result
    KEYS = ("id",)                    # the columns of the reference that tell its rows apart
    def flow(inputs, output, size): ...              # returns the Flow
    def reference(spark, inputs): ...                # returns the rows that the flow must produce

and optionally

    TOLERANCES = {"rank": 1e-9}       # how far a column may be off, as a share of the value
    INVARIANTS = {"money": "SELECT ..."}             # what holds in every cut, as SQL that finds what does not
    IN_LOOP = False                   # its cuts need not hold records in a loop
    def prepare(spark, inputs, size, seed): ...      # writes the input, below the folder `inputs`
    def promised(spark, inputs, result): ...         # returns the rows that break other promises
    def show(rows): ...                              # shows the result to a person

`flow` and `reference` may name any of the parameters inputs, output, size, rounds and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from types import ModuleType
from typing import Any

from backedge.engine.io.files.file_formats import FileSink
from backedge.flows import WrongCallError, module_at, told_in_a_line
from backedge.graphs.flow import Flow
from backedge.graphs.io import Sink
from backedge.graphs.plan import Plan
from backedge.graphs.public import public


@public
@dataclass(frozen=True, slots=True)
class Case:
    """What a module declares, checked."""

    name: str
    size: int
    sink: str
    keys: tuple[str, ...]
    tolerances: Mapping[str, float]
    invariants: Mapping[str, str]
    in_loop: bool
    make_flow: Callable[..., Any]
    reference: Callable[..., Any]
    prepare: Callable[..., Any] | None
    promised: Callable[..., Any] | None

    def flow(self, **given: Any) -> Flow:
        """The flow; its function is called with the parameters that it names."""
        with told_in_a_line(f"flow() of {self.name} raises"):
            flow = self.make_flow(**taken(self.make_flow, given))
        if not isinstance(flow, Flow):
            raise WrongCallError(f"flow() of {self.name} returns something of type {type(flow).__name__}, not a Flow")
        return flow

    def check_sink(self, plan: Plan) -> None:
        """Raise unless the records of the sink can be read."""
        operator = plan.operators.get(self.sink)
        sink = None if operator is None else operator.function
        if not (isinstance(sink, FileSink) or (isinstance(sink, Sink) and sink.keeps)):
            raise WrongCallError(
                f"SINK of {self.name} is {self.sink!r}, which is not a sink of its flow whose records can be read: "
                "name one that is a Collect, JsonLines, Parquet or CSV"
            )


@public
def case_of(module: ModuleType | str) -> Case:
    """The case in a module, or in the module of that name or path, which may be written as MODULE:flow.

    >>> case_of("json")
    Traceback (most recent call last):
    backedge.WrongCallError: json has no reference(): a module that can be compared has SIZE, SINK, KEYS, ...
    """
    if isinstance(module, str):
        place, colon, function = module.partition(":")
        if colon and function != "flow":
            raise WrongCallError(
                f"{module!r}: a module is compared as a whole, flow() with reference(): write {place or 'MODULE'}"
            )
        module = module_at(place)
    name = module.__spec__.name if module.__spec__ is not None else module.__name__
    _check(module, name)
    return Case(
        name=name,
        size=module.SIZE,
        sink=module.SINK,
        keys=tuple(module.KEYS),
        tolerances=getattr(module, "TOLERANCES", {}),
        invariants=getattr(module, "INVARIANTS", {}),
        in_loop=getattr(module, "IN_LOOP", True),
        make_flow=module.flow,
        reference=module.reference,
        prepare=getattr(module, "prepare", None),
        promised=getattr(module, "promised", None),
    )


def _check(module: ModuleType, name: str) -> None:
    for function in ("reference", "flow"):
        if not callable(getattr(module, function, None)):
            raise WrongCallError(
                f"{name} has no {function}(): a module that can be compared has SIZE, SINK, KEYS, flow() and "
                "reference(), as examples/cyclic/transfers.py has them"
            )
    optional: dict[str, Any] = {"TOLERANCES": {}, "INVARIANTS": {}}
    for constant, kind, example in (
        ("SIZE", int, "1_000"),
        ("SINK", str, '"done"'),
        ("KEYS", Sequence, '("id",)'),
        ("TOLERANCES", Mapping, '{"rank": 1e-9}'),
        ("INVARIANTS", Mapping, '{"money": "SELECT ..."}'),
    ):
        value = getattr(module, constant, optional.get(constant))
        if not isinstance(value, kind) or (constant == "KEYS" and isinstance(value, str)):
            fault = "is missing" if value is None else f"is {value!r}"
            raise WrongCallError(f"{constant} of {name} {fault}: give one such as {constant} = {example}")


def taken(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments among `given` that a function takes, by name.

    >>> taken(lambda inputs, size=3: None, {"inputs": "in", "output": "out", "size": 5})
    {'inputs': 'in', 'size': 5}
    """
    parameters = signature(function).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}


def takes(function: Callable[..., Any], name: str) -> bool:
    return name in taken(function, {name: None})
