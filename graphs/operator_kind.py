"""The protocol of an operator: what the graph, the checks, the drivers and the interpreters ask of one.

The built-in operators (`kinds.py`) answer these questions like one from another package would, and nothing elsewhere
lists them. docs/extending.md shows how to write one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

from graphs.graph_errors import BadOptionError

Shape = Literal["box", "source", "sink", "choice"]


class OperatorKind:
    """What an operator is and how it is set up. Subclass it as a frozen dataclass whose fields are its options.

    An instance is part of the plan and travels to every process, so it must pickle. It holds no state of a run:
    `start` makes what runs in each task. The class attributes are facts about all operators of the kind:

    - drawn_as: the shape in drawings.
    - is_source, is_sink: the operator reads or writes outside of the flow.
    - in_rounds: the operator is the head of an iteration.
    - one_for_one: output "out" gets exactly one record for each that arrives. A loop of such operators never runs dry,
      which the checks refuse.
    - keeps_values: on a keyed input the operator keeps values by key, which a `CutView` reads.
    """

    drawn_as: ClassVar[Shape] = "box"
    is_source: ClassVar[bool] = False
    is_sink: ClassVar[bool] = False
    in_rounds: ClassVar[bool] = False
    one_for_one: ClassVar[bool] = False
    keeps_values: ClassVar[bool] = False

    def start(self, place: Any) -> Any:
        """The `backedge.OperatorRuntime` that runs in one task. `place` is its `backedge.Place`."""
        raise NotImplementedError(f"operator kind {self.word} has no start(place): return an OperatorRuntime")

    # -- the graph ------------------------------------------------------------------------------------------------

    @property
    def word(self) -> str:
        """The name of the kind in drawings, errors, snapshots and the plan's hash."""
        return type(self).__name__

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs; the first is the stream that `apply` returns, `side(name)` gives the others."""
        return ("out",)

    @property
    def optional_outputs(self) -> tuple[str, ...]:
        """The outputs that a user should be warned about when nothing reads them."""
        return ()

    @property
    def sets_aside(self) -> bool:
        """Whether there is one more output, "dead", for records that the operator could not process."""
        return False

    @property
    def subject(self) -> Any:
        """The user's function, class, source or sink, if there is one."""
        return None

    @property
    def named_after(self) -> Any:
        """The function or class whose name an unnamed operator takes, since its state is filed under it.

        None: it keeps no state, and gets a name such as "map-1".
        """
        return type(self)

    @property
    def label(self) -> str | None:
        """The name that an unnamed operator without state would like to have."""
        return None

    @property
    def base_name(self) -> str:
        """What automatic names begin with."""
        return self.word

    def check(self, what: str) -> None:
        """Raise a `BadOptionError` about `what`, this operator, if its options do not make sense."""

    # -- the drivers ----------------------------------------------------------------------------------------------

    @property
    def records_at_once(self) -> int | None:
        """How many records user code is called with at a time. None: as many as have arrived."""
        return 1

    @property
    def calls_max(self) -> int:
        """How many calls outside a task makes at a time; 0 for an operator that makes none."""
        return 0

    @property
    def may_wait(self) -> bool:
        """Whether what a record comes to may be sent later than the record arrived, for a call or a timer."""
        return self.calls_max > 0

    @property
    def can_move(self) -> bool:
        """Whether `moved` can share the tasks' own states out among another number of tasks."""
        return type(self).moved is not OperatorKind.moved

    def moved(self, states: Sequence[Any], parallelism: int) -> list[Any]:
        """The tasks' own states (`OperatorRuntime.capture_own`), for another number of tasks: one for each.

        Values by key move by themselves. An operator whose tasks have states of their own and that lacks this method
        keeps its parallelism.
        """
        raise NotImplementedError(f"operator kind {self.word} has no moved(states, parallelism)")

    # -- the interpreters -----------------------------------------------------------------------------------------

    def new_instance(self) -> Any:
        """The object whose hooks the plain interpreter calls; None for an operator without hooks."""
        return None

    def mean(self, at: PlainRecord) -> None:
        """What one record comes to, without batches, tasks or speed: the plain interpreter calls it for each.

        Only the interpreter that the engine is compared with needs it; runs and `simulate` do not.
        """
        raise NotImplementedError(f"operator kind {self.word} has no plain meaning: give it mean(at)")


class PlainRecord(Protocol):
    """A record at an operator of the plain interpreter, and what may be done with it.

    `instance` is what `new_instance` made, `context` the ctx of its hooks.
    """

    @property
    def record(self) -> Any: ...
    @property
    def input(self) -> str: ...
    @property
    def instance(self) -> Any: ...
    @property
    def context(self) -> Any: ...

    def emit(self, record: Any, output: str = "out") -> None:
        """Send a record to an output."""
        ...

    def value(self, default: Any) -> Any:
        """The value of the record's key; a copy of `default` while there is none."""
        ...

    def set_value(self, value: Any) -> None:
        """Give the record's key a value."""
        ...

    def keep(self) -> None:
        """The record waits, for its answer or for its round."""
        ...

    def write(self) -> None:
        """The record is output of the flow."""
        ...


def check_kind(kind: object, what: str) -> None:
    """Raise unless it is an operator that can be applied."""
    if isinstance(kind, type) and issubclass(kind, OperatorKind):
        raise BadOptionError(f"{what} is given the class {kind.__name__}: give an instance, {kind.__name__}(...)")
    if not isinstance(kind, OperatorKind):
        raise BadOptionError(
            f"{what} is given {kind!r}, which is not an operator: give an instance of a subclass of OperatorKind"
        )
