"""The directories of the versions of a run, one for each pipeline, which the processes of its tasks ask (rule 17)."""

from __future__ import annotations

from threading import Lock
from typing import Any, Literal

from backedge.engine.run.ports import Placed
from backedge.graphs.ids import Attempt
from backedge.recovery.protocol.versions import Name, VersionDirectory
from backedge.recovery.restore.plan import kept_states
from backedge.recovery.stores.manifests import CutDescription
from backedge.recovery.stores.task_files import VersionFile

Question = Literal["find", "loaded", "publishes"]


class VersionDirectories:
    """Those of the attempts that run. A version of a cut is in its file, or where a list of one reference leads.

    Pipelines begin attempts in threads of their own, and processes ask in others.
    """

    def __init__(self) -> None:
        self._of: dict[int, VersionDirectory[Any, Any]] = {}
        self._lock = Lock()

    def begin(self, pipeline: int, attempt: Attempt, placed: Placed, cut: CutDescription | None) -> None:
        """An attempt of a pipeline begins in place of the former one, with the versions of the cut that it restores."""
        restored: dict[Name, VersionFile] = {}
        if cut is not None:
            for task, operator in kept_states(placed.restores.values()):
                for version in cut.tasks[task].versions_of(operator):
                    restored[version.of, version.number] = version
        with self._lock:
            self._of.setdefault(pipeline, VersionDirectory()).begin(attempt, restored)

    def ask(self, question: Question, attempt: Attempt, name: Name, *arguments: Any) -> Any:
        """Ask the directory of an attempt. None or False if the attempt is over."""
        with self._lock:
            directory = next((each for each in self._of.values() if each.attempt == attempt), None)
            return None if directory is None else getattr(directory, question)(attempt, name, *arguments)
