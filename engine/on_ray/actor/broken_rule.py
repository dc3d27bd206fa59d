"""A run with a rule of the protocol broken, to show what the rule is for.

The broken cores are those of the simulator, which a normal run never loads.
"""

from __future__ import annotations

from engine.task import TaskCore
from graphs.graph_errors import BadOptionError


def core_of(broken_rule: str | None) -> type[TaskCore]:
    """The core that tasks run: ours, or one that breaks this rule. Raises if there is no such rule.

    >>> core_of(None).__name__, core_of("no-loop-log").__name__
    ('TaskCore', 'NoLoopLog')
    """
    if broken_rule is None:
        return TaskCore
    from engine.simulation.breaks import BREAKS
    from engine.simulation.world_options import Parts

    parts = {name: broken.parts() for name, broken in BREAKS.items()}
    # What a broken coordinator or restore would be is not for a supervisor on Ray: only tasks run broken cores.
    cores = {name: broken.core for name, broken in parts.items() if broken == Parts(core=broken.core)}
    if broken_rule not in cores:
        raise BadOptionError(
            f"broken_rule={broken_rule!r} is no rule that tasks can break; there are {', '.join(cores)}"
        )
    return cores[broken_rule]
