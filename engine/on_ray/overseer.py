"""The supervisor's Ray actor: it runs one run, and answers the driver meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.on_ray.options import RunSpec
from engine.on_ray.story import Story
from engine.on_ray.supervising import Supervising


class SupervisorActor:
    """One run. Its actors are its own: when it dies they die."""

    def __init__(self, spec: RunSpec) -> None:
        self._supervising = Supervising(spec)

    def run(self) -> Story:
        """Run to the end."""
        return self._supervising.run()

    def look(self, lines_from: int, printed_from: int) -> Story:
        """How far the run is: its story without its output, and the lines that the driver does not have."""
        story, printed = self._supervising.story, self._supervising.output.printed
        return replace(
            story, lines=story.lines[lines_from:], printed=printed[printed_from:], outputs={}, counts=dict(story.counts)
        )

    def ask(self, request: str, value: Any = None) -> None:
        """Ask for something: "savepoint" with a name, or "cancel"."""
        self._supervising.requests.append((request, value))
