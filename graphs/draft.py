"""A flow under construction: operators, connections, and loops that may still be open.

`building.py` turns a draft into a plan. Streams consist of tails: the outputs that a consumer would be connected to.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from backedge.graphs.constant import Constant
from backedge.graphs.graph_errors import DuplicateNameError, MissingNameError
from backedge.graphs.naming import automatic_name, check_name, function_name, name_fault
from backedge.graphs.operator_kind import OperatorKind
from backedge.graphs.plan import Key, Operator, Routing
from backedge.graphs.versions import Versions


class Tail(Struct, frozen=True):
    """An output that a stream comes from, and the routing of its records to the consumer's tasks.

    With `loop`, the open end of a loop: output "out" are the records that come round, "dead" its dead letters.
    """

    operator: str
    output: str = "out"
    routing: Routing = Routing.FORWARD
    by: Key | None = None
    loop: str | None = None

    def routed(self, routing: Routing, by: Key | None = None) -> Tail:
        return replace(self, routing=routing, by=by)


class Connection(Struct, frozen=True):
    """A tail and the input it is connected to. `iteration` names the iteration that it closes, if any."""

    tail: Tail
    receiver: str
    input: str
    iteration: str | None = None


class OpenLoop(Struct):
    """A loop that the user has named; `fed` is None until it is closed."""

    name: str
    max_rounds: int | None
    on_limit: str
    endless: bool
    fed: tuple[Tail, ...] | None = None


class Draft(Struct):
    """A flow under construction.

    - enclosing: the iterations whose bodies are being written right now, outermost first.
    - warned: the outputs that the user has been warned about.
    - numbers: base of automatic names -> the last number that one has.
    """

    name: str
    stop_when: Callable[..., bool] | None = None
    operators: dict[str, Operator] = {}
    connections: list[Connection] = []
    loops: dict[str, OpenLoop] = {}
    constants: dict[str, Constant[Any]] = {}
    versions: dict[str, Versions] = {}
    resources: set[str] = set()
    enclosing: list[str] = []
    warned: set[tuple[str, str]] = set()
    numbers: dict[str, int] = {}

    def add(self, operator: Operator, inputs: Mapping[str, tuple[Tail, ...]]) -> None:
        """Add an operator and connect its inputs. Raises and changes nothing if its name is taken."""
        self.check_free(operator.name, f"operator {operator.name!r}")
        self.operators[operator.name] = operator
        for name, tails in inputs.items():
            self.connections += [Connection(tail, operator.name, name) for tail in tails]

    def check_free(self, name: str, what: str) -> None:
        if name in self.operators:
            other = f"an operator of that name ({self.operators[name].kind.word})"
        elif name in self.loops:
            other = "a loop of that name"
        elif name in self.constants:
            other = "a constant of that name"
        elif name in self.versions:
            other = "versions of that name"
        elif name in self.resources:
            other = "a resource of that name"
        else:
            return
        raise DuplicateNameError(
            f"{what}: flow {self.name!r} already has {other}, but state is filed under names, which must be unique: "
            "give one of them another name="
        )

    def name_for(self, kind: OperatorKind, given: str | None) -> str:
        """The given name; else the function's name if state is filed under it; else an automatic one."""
        if given is not None:
            return check_name(given, "operator")
        if kind.named_after is not None:
            name = function_name(kind.named_after)
            if name is None:
                raise MissingNameError(
                    f"a {kind.word} of an unnamed function has no name to file its state under: "
                    "give it name=, or use a named function"
                )
            return check_name(name, "operator")
        taken = ChainMap[str, Any](
            self.operators, self.loops, self.constants, self.versions, dict.fromkeys(self.resources)
        )
        label = kind.label
        if label is None or name_fault(label) is not None:
            return automatic_name(kind.base_name, taken, self.numbers)
        return label if label not in taken else automatic_name(label, taken, self.numbers)
