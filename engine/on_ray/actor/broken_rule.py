"""Runs tasks with one protocol rule broken, to show what the rule is for.

The broken cores are those of the simulator; a normal run never loads them.
"""

from __future__ import annotations

from backedge.graphs.graph_errors import BadOptionError
from backedge.recovery.protocol.task import TaskCore


def core_of(broken_rule: str | None) -> type[TaskCore]:
    """The core that tasks run: the normal one, or one that breaks this rule. Raises if there is no such rule.

    >>> core_of(None).__name__, core_of("no-loop-log").__name__
    ('TaskCore', 'NoLoopLog')
    """
    if broken_rule is None:
        return TaskCore
    from backedge.engine.simulation.breaks import BREAKS
    from backedge.engine.simulation.world.world_options import Parts

    parts = {name: broken.parts() for name, broken in BREAKS.items()}
    # A broken coordinator or restore would need a broken supervisor on Ray: only tasks run broken cores.
    cores = {name: broken.core for name, broken in parts.items() if broken == Parts(core=broken.core)}
    if broken_rule not in cores:
        raise BadOptionError(
            f"broken_rule={broken_rule!r} is not a rule that tasks can break; there are {', '.join(cores)}"
        )
    return cores[broken_rule]
