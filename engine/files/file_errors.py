"""What goes wrong with files: input that is not there, has changed or cannot be read; output that cannot be written.

They are `TaskError`s: running the same again would end the same. An `OSError` of the disk or the network passes as it
is, since it may be gone the next time; so does `UnfinishedOutputError`, which follows one.
"""

from __future__ import annotations

from engine.task_errors import TaskError


class NoInputError(TaskError):
    """A source whose path leads to no file that it could read."""


class InputChangedError(TaskError):
    """A file that has gone, or has changed, since the run listed it."""


class MalformedInputError(TaskError):
    """Input that is not of the format that its source reads. Names the file and the place in it."""


class OutputError(TaskError):
    """A sink that cannot write where it is told to."""


class UnknownTransactionError(OutputError, LookupError):
    """A transaction that is to be committed, and that is neither prepared nor published."""


class DamagedOutputError(OutputError):
    """Output that was put aside for later and is not what was written. Nothing of it is decoded."""


class UnfinishedOutputError(OSError):
    """Output that an earlier failure has left in the middle. This attempt cannot go on; the next one can."""


class UnwritableRecordError(TaskError):
    """A record that the format of its sink cannot hold."""
