"""The protocol of an operator: what the graph, the checks and the drivers ask of it.

The built-in operators (`kinds.py`) implement it like those of another package; no other file lists them.
docs/extending.md shows how to write one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.public import public

Shape = Literal["box", "source", "sink", "choice"]


@public
class OperatorKind:
    """The definition of an operator. Subclass it as a frozen dataclass whose fields are the operator's options.

    An instance is part of the plan and is sent to every process, so it must pickle. It holds no state of a run:
    `start` creates what runs in each task. The class attributes are facts about all operators of the kind:

    - drawn_as: the shape in drawings.
    - is_source, is_sink: the operator reads from or writes to the outside.
    - in_rounds: the operator is the head of an iteration.
    - one_for_one: output "out" gets exactly one record for each record that arrives. The checks refuse a loop of such
      operators, because it never runs dry.
    - keeps_values: on a keyed input the operator keeps values by key, which a `CutView` reads.
    """

    drawn_as: ClassVar[Shape] = "box"
    is_source: ClassVar[bool] = False
    is_sink: ClassVar[bool] = False
    in_rounds: ClassVar[bool] = False
    one_for_one: ClassVar[bool] = False
    keeps_values: ClassVar[bool] = False

    def start(self, place: Any) -> Any:
        """Return the `backedge.OperatorRuntime` that runs in one task. `place` is its `backedge.Place`."""
        raise NotImplementedError(f"operator kind {self.word} has no start(place): return an OperatorRuntime")

    @property
    def keeps_answers(self) -> bool:
        """Whether a journal keeps what its calls return."""
        return False

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
        """The outputs that trigger a warning if nothing reads them."""
        return ()

    @property
    def sets_aside(self) -> bool:
        """Whether there is an additional output "dead" for records that the operator could not process."""
        return False

    @property
    def subject(self) -> Any:
        """The user's function, class, source or sink, if there is one."""
        return None

    @property
    def named_after(self) -> Any:
        """The function or class that names an unnamed operator, because its state is filed under the name.

        None: the operator keeps no state and gets a name such as "map-1".
        """
        return type(self)

    @property
    def label(self) -> str | None:
        """The preferred name of an unnamed operator without state."""
        return None

    @property
    def base_name(self) -> str:
        """The beginning of automatic names."""
        return self.word

    def check(self, what: str) -> None:
        """Raise a `BadOptionError` about `what`, this operator, if its options do not make sense."""

    # -- the drivers ----------------------------------------------------------------------------------------------

    @property
    def records_at_once(self) -> int | None:
        """The number of records per call of user code. None: as many as have arrived."""
        return 1

    @property
    def calls_max(self) -> int:
        """How many external calls a task makes at a time; 0 for an operator that makes none."""
        return 0

    @property
    def may_wait(self) -> bool:
        """Whether the result of a record may be sent later than the record arrived, because of a call or a timer."""
        return self.calls_max > 0

    @property
    def needs_order(self) -> bool:
        """Whether it must be one task that gets its input in order."""
        return False

    @property
    def acts_at_end(self) -> bool:
        """Whether the operator does anything when its input has ended, which a task must not do twice."""
        return True

    @property
    def can_move(self) -> bool:
        """Whether `moved` can distribute the tasks' own states over another number of tasks."""
        return type(self).moved is not OperatorKind.moved

    def moved(self, states: Sequence[Any], parallelism: int) -> list[Any]:
        """Redistribute the tasks' own states (`OperatorRuntime.capture_own`) over another number of tasks.

        Returns one state per task. Values by key are moved without this method. An operator whose tasks have states of
        their own and that lacks this method keeps its parallelism.
        """
        raise NotImplementedError(f"operator kind {self.word} has no moved(states, parallelism)")

    @property
    def state_version(self) -> int:
        """The version of the state. A cut with an older one is restored through `upgraded` and `upgraded_own`."""
        return 1

    @property
    def can_upgrade(self) -> bool:
        return type(self).upgraded is not OperatorKind.upgraded

    def upgraded(self, value: Any, version: int) -> Any:
        """A key's value as of `state_version`, from its value as of an older version."""
        raise NotImplementedError(f"operator kind {self.word} has no upgraded(value, version)")

    def upgraded_own(self, state: Any, version: int) -> Any:
        """A task's own state (`OperatorRuntime.capture_own`) as of `state_version`, from that of an older version."""
        raise NotImplementedError(f"operator kind {self.word} has no upgraded_own(state, version)")


def check_kind(kind: object, what: str) -> None:
    """Raise unless it is an operator kind that can be applied."""
    if isinstance(kind, type) and issubclass(kind, OperatorKind):
        raise BadOptionError(f"{what} got the class {kind.__name__}: give an instance, {kind.__name__}(...)")
    if not isinstance(kind, OperatorKind):
        raise BadOptionError(
            f"{what} got {kind!r}, which is not an operator: give an instance of a subclass of OperatorKind"
        )
