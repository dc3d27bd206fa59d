"""A break: a rule of the protocol that is switched off by replacing parts of the simulated world."""

from __future__ import annotations

from typing import Any

from backedge.engine.simulation.world.world_options import Parts


class Break:
    """A rule: what breaking it means, and the parts that break it, by their names in `Parts`.

    `topology`: where it shows; None: in many. `rescales`, `go_backs`: how often a run may be rescaled, or go back to an
    older cut, if that is what shows it. `of_pipelines`: it shows in a job with several pipelines.
    """

    def __init__(
        self,
        meaning: str,
        *,
        topology: str | None = None,
        rescales: int = 0,
        go_backs: int = 1,
        of_pipelines: bool = False,
        **broken: Any,
    ) -> None:
        self.meaning = meaning
        self.topology = topology
        self.rescales = rescales
        self.go_backs = go_backs
        self.of_pipelines = of_pipelines
        self._broken = broken

    def parts(self) -> Parts:
        """The parts of a world in which the rule is broken."""
        return Parts(**self._broken)
