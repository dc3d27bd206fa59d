"""Errors about files: input that is missing, has changed or cannot be read; output that cannot be written.

They are `TaskError`s, because running again would end the same. An `OSError` of the disk or the network is passed on
unchanged, because it may be gone the next time; the same holds for `UnfinishedOutputError`, which follows one.
"""

from __future__ import annotations

from backedge.graphs.public import public
from backedge.graphs.task_errors import TaskError


@public
class NoInputError(TaskError):
    """A source whose path leads to no readable file.

    Fix: correct the path, which must be the same on all hosts.
    """


@public
class InputChangedError(TaskError):
    """A file that has disappeared or changed since the run listed it, or `Items` that are fewer than were read of them.

    Fix: restore the file as it was, with its time (`cp -p`), give the same items, or start a new run without `resume`.
    """


@public
class MalformedInputError(TaskError):
    """Input that does not have the format of its source. The message names the file and the place in it.

    Fix: correct the file at that place, so that it keeps its size, and if it has arrived (`watch=`) its time (`touch
    -d`); then the run can be resumed. Or clean the input first with `backedge prepare`, and begin a new run.
    """


@public
class OutputError(TaskError):
    """A sink that cannot write to its path.

    Fix: make the path writable, or write to another one.
    """


@public
class UnknownTransactionError(OutputError, LookupError):
    """A transaction to be committed that is neither prepared nor published.

    Fix: put back the files that were removed from the folder of the output, or start a new run with another folder.
    """


@public
class UncommittedOutputError(OutputError):
    """Output of a complete cut that a table or service does not take. The run keeps it.

    Fix: correct the table and resume, or do what the message says to go on without those records.
    """


@public
class DamagedOutputError(OutputError):
    """Stored output that differs from what was written. None of it is decoded.

    Fix: restore the file from a backup, or start a new run.
    """


class UnfinishedOutputError(OSError):
    """Output left incomplete by an earlier failure. This attempt cannot go on; the next one can."""


@public
class UnwritableRecordError(TaskError):
    """A record that the format of its sink cannot represent.

    Fix: convert the record with `map` before it is written, or choose another format.
    """


def unpublished(sink: str, waiting: object, error: OSError) -> OutputError:
    """The error to raise at the end of a run if output cannot be published, which waits there."""
    return OutputError(
        f"sink {sink!r} could not publish all of its output ({error}): the rest waits in {waiting}; repair that, and "
        "resume the run, which publishes it"
    )
