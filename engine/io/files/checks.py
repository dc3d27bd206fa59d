"""Checks before anything runs: whether there is input, and whether output can be written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from copy import copy
from typing import Any

from backedge.engine.io.files.file_errors import NoInputError, OutputError
from backedge.graphs.discovery import source_name
from backedge.graphs.io import Sink, SinkPlace, Source
from backedge.graphs.plan import Operator
from backedge.graphs.task_errors import MisuseError, TaskError, describe, show
from backedge.recovery.stores.shapes import ShapeError, text


def check_source(operator: Operator) -> tuple[str, ...] | None:
    """The names of a source's splits, or None if every task names its own; `NoInputError` if there is no input.

    The result is the input of the run: when it is passed to `FileServices`, all tasks share the same splits, even if
    files come or go meanwhile.

    >>> from backedge.engine.io.files.file_formats import JsonLines
    >>> from backedge.graphs.kinds import Read
    >>> check_source(Operator("orders", Read(JsonLines("no/folder"))))
    Traceback (most recent call last):
    backedge.NoInputError: no/folder does not exist: give the path of a file or a folder that exists
    """
    source: Source[Any] = copy(operator.function)
    try:
        source.validate_input()
        splits = source.splits() if source.look_s is None else None
    except TaskError:
        raise
    except Exception as error:
        raise NoInputError(
            f"source {source_name(operator)!r} cannot read {operator.function!r}: {describe(error)}; make it "
            "readable, or read another source"
        ) from error
    if splits is None:
        return None
    check_names(source_name(operator), splits)
    return tuple(splits)


def check_names(source: str, splits: Sequence[str], known: Collection[str] = ()) -> None:
    """Raise a `NoInputError` if a source has splits whose names no cut can hold, or that others have."""
    for split in splits:
        try:
            text(split)
        except ShapeError as error:
            raise NoInputError(
                f"source {source!r} has a split {show(split)}, whose name {error.fault}: name splits by text, "
                "such as str(partition), and rename files whose names are not UTF-8"
            ) from error
    if len(set(splits)) < len(splits):
        raise NoInputError(f"source {source!r} has equal names among its splits {list(splits)}: make them unique")
    if again := [split for split in splits if split in known]:
        raise NoInputError(
            f"source {source!r} has found splits again that it knows, such as {again[0]!r}: return only those from "
            "find_splits that are not known yet"
        )


def check_members(what: str, opened: Any, members: Iterable[str]) -> None:
    """Raise if what a source or a sink has opened lacks some of these."""
    lacking = [member for member in members if not hasattr(opened, member)]
    if lacking:
        raise MisuseError(
            f"{what} of type {type(opened).__name__}, which has no {' and no '.join(lacking)}: add that as "
            "docs/extending.md shows"
        )


def check_sink(operator: Operator, place: SinkPlace, fresh: bool = False) -> None:
    """Raise `OutputError` if a sink cannot be written to. Folders are created.

    A `fresh` run, which resumes no other, is refused a folder that already contains output: readers could not tell the
    two outputs apart.
    """
    sink: Sink[Any] = operator.function
    try:
        sink.validate_output(place, fresh)
    except TaskError:
        raise
    except Exception as error:
        raise OutputError(
            f"sink {operator.name!r} cannot write to {sink!r}: {describe(error)}; make it writable, or write to "
            "another place"
        ) from error


def claim_output(sinks: Iterable[tuple[Operator, SinkPlace]]) -> None:
    """Claim the output of all sinks for this run, or of none; `OutputError` names another owner."""
    claimed: list[tuple[Sink[Any], SinkPlace]] = []
    for operator, place in sinks:
        sink: Sink[Any] = operator.function
        try:
            if sink.claim(place):
                claimed.append((sink, place))
        except Exception as error:
            for done, its_place in claimed:
                done.release(its_place)
            if isinstance(error, TaskError):
                raise
            raise OutputError(
                f"sink {operator.name!r} cannot claim {sink!r} for this run: {describe(error)}"
            ) from error
