"""The protocols of sources and sinks. docs/extending.md shows how to write one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import CancelledError
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

from backedge.graphs.public import public

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_in = TypeVar("T_in", contravariant=True)


RAISED_BY_USERS = (Exception, SystemExit, GeneratorExit, CancelledError)
"""Exceptions that count as raised by a user's function. An escaping SystemExit would end the task's process without a
cause, and a cancelled call would leave its record without an answer. KeyboardInterrupt comes from the keyboard."""


class FunctionRaisedError(Exception):
    """Raised by a source or sink `from` the exception of a user's function. `call` says which call raised.

    The run fails with the user's own exception, because reading again would raise it again.
    """

    def __init__(self, call: str) -> None:
        super().__init__(call)
        self.call = call


@public
class ArrowRows(Protocol):
    """Rows that stay columns: a pyarrow `RecordBatch`."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        ...


@public
class SplitReader(Protocol[T_co]):
    """One split of a source, open for reading."""

    @property
    def position(self) -> Any:
        """The position after the last record that was read. A plain value, because it becomes part of the cut."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to read in this split, now or later."""
        ...

    def read(self, records_max: int) -> Sequence[T_co] | ArrowRows:
        """Read up to `records_max` records, as a list or as columns. An empty list means that none is available now."""
        ...


class OtherInputError(Exception):
    """The input of a source is not the one that the run began with. The task reports it as an `InputChangedError`."""


@public
class FoundSplits(NamedTuple):
    """What a look for splits has found: those that are new, whether no more will come, and those that may be forgotten.

    A split that is forgotten is new again if it is found again.
    """

    new: Sequence[str]
    is_last: bool
    gone: Collection[str] = ()


@public
class Source(ABC, Generic[T]):
    """The input of a flow. A subclass names its splits and opens a split at a position.

    A split is a part of the input that one task reads at a time. It has a name and a position: a plain value that says
    how far it has been read. Names and positions are all that a cut contains of a source. A restored run opens each
    split at its position in the cut, in another process and perhaps in another task, and must read the same records
    from there.

    An instance is a description that is pickled and sent to the tasks of a run. Each task opens its splits through its
    own copy, so a source may store a connection in an attribute once it opens a split.
    """

    shares_records: ClassVar[bool] = False
    """Whether others hold references to the records that are read. Then they are copied: operators may change them."""

    settles: ClassVar[bool] = False
    """Whether it keeps records until no cut needs them. Then `begin_run` and `settle` are called."""

    @property
    def bounded(self) -> bool:
        """Whether it ends. An unbounded source is read until the run is stopped."""
        return True

    @property
    def label(self) -> str | None:
        """The default name of an operator that reads this source."""
        return None

    @property
    def relative_path(self) -> str | None:
        """The path that it reads, if it is relative. The processes of a run have other working folders."""
        return None

    def absolute(self) -> Source[T]:
        """The same source with an absolute path."""
        return self

    @property
    def idle_s(self) -> float:
        """Seconds to wait after a read that returned nothing."""
        return 0.02

    def validate_input(self) -> None:
        """Raise an exception if it cannot be read. Called once, before anything runs; its text becomes the error."""

    def splits(self) -> Sequence[str] | None:
        """The names of all splits. Called once, before anything runs; the tasks get the splits in turn, in this order.

        None means one split per task, named "0-of-3" to "2-of-3" if the source has three tasks.
        """
        return None

    @property
    def look_s(self) -> float | None:
        """Seconds between two looks for new splits. None: the splits of a run are those that it begins with."""
        return None

    def find_splits(self, known: Collection[str]) -> FoundSplits:
        """The splits that are not known yet, for a source that looks for them while it is read.

        It is called in one task, on one instance, until it says that these are the last. A cut holds all that are
        known.
        """
        return FoundSplits([split for split in self.splits() or () if split not in known], is_last=True)

    def would_find(self, sink: Sink[Any]) -> bool:
        """Whether a look would find what this sink of the same flow writes: it would be read again and again."""
        return False

    @property
    def splits_end(self) -> bool:
        """Whether a split that was found comes to its end. If not, each is handed out when it is found."""
        return True

    def size_of(self, split: str) -> int:
        """How much there is to read in a split that was found, in any unit. The largest ones are read first."""
        return 0

    def first_position(self, split: str) -> Any:
        """The position of a split before anything was read."""
        return 0

    def is_read(self, split: str, position: Any) -> bool:
        """Whether the position is known to be the end of its split. Such a split is not opened."""
        return False

    def check_unchanged(self, positions: Mapping[str, Any]) -> None:
        """Raise if the unread part of these splits is no longer what it was when the run began.

        Called when a task starts, with all of its splits.
        """

    def begin_run(self, reader: str) -> Source[T]:
        """The source as a run reads it. Called when a run starts or resumes, by the name of the flow and the source.

        From now on it keeps what this reader has not settled.
        """
        return self

    def settle(self, reader: str, kept: Sequence[Mapping[str, Any]]) -> None:
        """Note that no restore of this reader will read what lies before its positions in the cuts that are `kept`.

        These are the latest cuts, as many as retention keeps; savepoints before them do not count.
        One without positions was taken before the reader had any. Called beside the run, more than once, and late.
        """

    @abstractmethod
    def open_split(self, split: str, position: Any) -> SplitReader[T]:
        """Open a split, to go on behind `position`. `OtherInputError` if the split has no such position."""


Guarantee = Literal["transactional", "idempotent", "at least once"]
"""A sink's promise for a record that a complete cut counts as written, whatever process dies.

transactional: it is published once. idempotent: it may be published again, without effect. at least once: it may be
published again, and then occurs twice.
"""


@public
class SinkWriter(Protocol):
    """The writer of one task. It publishes in two steps: prepare when a cut is taken, commit when it is complete.

    One that holds a connection may also have a method `close()`: it is called when the task is over, unless its process
    dies, and gives up what was not prepared.

    One that publishes the transactions of several cuts together may also have `commit_together(transactions)`, which is
    called instead of `commit`, in the order of preparation. It returns those that wait for later ones: cuts list them
    until it returns them no more, and it gets them again with each complete cut. A restore may give them to another
    task.
    """

    def write(self, records: Any, /) -> None:
        """Add a list of records to the open transaction. The writer owns the list and the records from now on."""

    def prepare(self, transaction: str, /) -> bool:
        """Make the open transaction durable under this name, but not visible, and open the next one.

        The name is unique: no other task and no other attempt of the run uses it. Return False if nothing was written.
        """
        ...

    def commit(self, transaction: str, /) -> None:
        """Make a prepared transaction visible. It may have been prepared by another task, in an attempt that died.

        This may be called again for the same transaction, by other tasks and concurrently, and must then change
        nothing. Raise if the transaction is neither prepared nor published: it is lost, and that must not go unnoticed.
        """


@public
class Rollback(Protocol):
    """The leftovers of a sink that the chain of the job has made dead for good.

    A rollback may be carried out late, after another supervisor has taken over. So a sink removes what this names,
    never "everything that is not listed": transactions that a later attempt has prepared are not listed here.
    """

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, so that containers that are now empty may be removed."""
        ...

    @property
    def committed(self) -> Collection[str]:
        """At the end of the run, the transactions that its last cut lists, of all sinks.

        For a sink that publishes several together: all tasks have ended, so what waits for later ones is published now.
        """
        ...

    def removes(self, transaction: str) -> bool:
        """Whether a prepared transaction will never be published."""
        ...

    def forgets(self, transaction: str) -> bool:
        """Whether no restore will need to know any more that this transaction was published."""
        ...

    def removes_open(self, attempt: int) -> bool:
        """Whether an attempt is over that may have left unprepared output behind."""
        ...

    @property
    def settles(self) -> bool:
        """Whether something may be settled that was not before. If not, there is no need to look."""
        ...

    def is_settled(self, transaction: str) -> bool:
        """Whether no run can go back to before this transaction, so that it will not be withdrawn."""
        ...


class Withdrawal(Protocol):
    """The output of a sink that earlier attempts have prepared or published after a cut.

    The chain of the job has made it dead for good: a run goes back to that cut and replaces its output. This may be
    carried out again, and late; what later attempts publish is not part of it.
    """

    @property
    def attempt(self) -> int:
        """The attempt that carries it out."""
        ...

    @property
    def listed(self) -> Collection[str]:
        """The transactions of all sinks that the cut lists. A sink may publish them before it removes later ones."""
        ...

    def removes(self, transaction: str) -> bool:
        """Whether a transaction is part of it."""
        ...

    def removes_open(self, attempt: int) -> bool:
        """Whether an attempt is over that may have left output behind."""
        ...


class KeptOutput(Protocol):
    """The storage that a run provides for the output of a sink without transactions of its own."""

    def validate(self, fresh: bool) -> None:
        """Raise if it is not writable, or if it contains output although the run is to be `fresh`."""

    def open(self, sink: DeliverySink[Any]) -> SinkWriter:
        """Open a writer. The sink delivers what is committed."""
        ...

    def note_place(self, place: str) -> None:
        """Note durably that the sink may write to a place from now on."""

    def noted_places(self) -> Sequence[str]:
        """The places that were noted, also by earlier runs that this one resumes."""
        ...

    def roll_back(self, rollback: Rollback, sink: DeliverySink[Any]) -> None:
        """Remove leftovers."""

    @property
    def can_withdraw(self) -> bool:
        """Whether it can remove committed records."""
        ...

    def withdraw(self, later: Withdrawal) -> None:
        """Remove records that were committed after a cut."""


@public
@dataclass(frozen=True)
class SinkPlace:
    """The place of a sink in a run: the argument that it is opened with.

    - operator: the name of the operator that writes to it. task: the index of the task, from 0.
    - job: the name of the flow. run: identifies this run and runs that resume it, and is part of the name of all
      output.
    - attempt: part of the name of all unpublished output. kept: storage for output that the run itself provides.
    """

    operator: str
    job: str
    run: str
    attempt: int
    task: int
    kept: KeptOutput


@public
class Sink(ABC, Generic[T_in]):
    """The output of a flow. A subclass says how it is written in transactions and what a rollback removes.

    An instance is a description that is pickled and sent to the tasks of a run.
    """

    guarantee: ClassVar[Guarantee] = "transactional"
    """What the sink promises. `backedge graph` shows it."""

    keeps: ClassVar[bool] = False
    """Whether its records are part of the run's result."""

    takes_columns: ClassVar[bool] = False
    """Whether its writers accept columns. Other writers get lists of records."""

    one_task: ClassVar[bool] = False
    """Whether one task writes all of it, whatever the parallelism of the flow."""

    @property
    def label(self) -> str | None:
        """The default name of an operator that writes to this sink."""
        return None

    @property
    def relative_path(self) -> str | None:
        """The path that it writes to, if it is relative. The processes of a run have other working folders."""
        return None

    def absolute(self) -> Sink[T_in]:
        """The same sink with an absolute path."""
        return self

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        """Raise an exception if the sink cannot be written to. Called before anything runs; its text becomes the error.

        A `fresh` run resumes no other run: refuse it if its output would be mixed with that of another run.
        """

    def claim(self, place: SinkPlace) -> bool:
        """Claim the output for this run; raise if another run has claimed it. False: this run had claimed it before."""
        return False

    def release(self, place: SinkPlace) -> None:
        """Release the claim if this run holds it: no run will resume it."""

    @abstractmethod
    def open_writer(self, place: SinkPlace) -> SinkWriter:
        """Open the writer of one task."""

    @abstractmethod
    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        """Remove leftovers of attempts. If something cannot be removed, go on, and raise an `OSError`."""

    def can_withdraw(self, place: SinkPlace) -> bool:
        """Whether the sink can remove what it has published, as `run(..., replace_output=True)` asks for."""
        return False

    def withdraw(self, place: SinkPlace, later: Withdrawal) -> None:
        """Remove what was prepared and published after a cut. Called before any task of the attempt runs.

        Remove what is prepared first: a process that was presumed dead may be publishing it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no withdraw(place, later): remove that output")

    def rehearse(self, folder: str) -> Sink[T_in] | None:
        """The same sink, restricted to writing below this folder, which is created after the call.

        With it, `simulate` really writes, commits and rolls back. None: the simulator keeps the output itself, in
        transactions like those of `Collect`.
        """
        return None

    def published(self) -> list[Any]:
        """The published records. Called on a rehearsed sink, to check that each record occurs once."""
        raise NotImplementedError(f"{type(self).__name__} can be rehearsed but has no published(): return its records")


@public
@dataclass(frozen=True)
class Delivery(Generic[T]):
    """The argument of `DeliverySink.deliver`: the records that one task wrote between two cuts, once a cut lists them.

    It may be delivered again after a failure, with the same records and the same `transaction`.
    """

    records: list[T]
    transaction: str
    epoch: int
    to_driver: Callable[[list[Any]], None]
    """Sends lines to the process that started the run, which prints them; for a sink that `keeps`, its records."""


@public
class DeliverySink(Sink[T_in]):
    """A sink that passes records on and has no transactions. The run keeps them until a complete cut lists them.

    At least once: a process that dies between a delivery and its note delivers again. A subclass whose deliveries can
    be repeated without effect sets `guarantee = "idempotent"`.
    """

    guarantee = "at least once"
    takes_columns = True

    @abstractmethod
    def deliver(self, delivery: Delivery[Any]) -> object:
        """Pass the records on."""

    def validate_output(self, place: SinkPlace, fresh: bool) -> None:
        """Raise if the run cannot keep records for this sink."""
        place.kept.validate(fresh)

    def open_writer(self, place: SinkPlace) -> SinkWriter:
        """A writer that keeps records until they are delivered."""
        return place.kept.open(self)

    def roll_back(self, place: SinkPlace, rollback: Rollback) -> None:
        """Remove records that will not be delivered."""
        place.kept.roll_back(rollback, self)

    def can_withdraw(self, place: SinkPlace) -> bool:
        """Whether the run keeps the records in a folder. Records that were delivered cannot be taken back."""
        return self.keeps and place.kept.can_withdraw

    def withdraw(self, place: SinkPlace, later: Withdrawal) -> None:
        """Remove kept records."""
        place.kept.withdraw(later)
