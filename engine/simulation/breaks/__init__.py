"""backedge.engine.simulation.breaks: one rule is broken at a time, to check that the checker finds it.

Each break is a subclass outside the core that overrides one decision. The core has no switch, and the checker is not
informed. A break that is not found is a hole in the checker, or the rule is not a rule. The breaks are filed by area.
"""

from backedge.engine.simulation.breaks.break_parts import Break
from backedge.engine.simulation.breaks.broken_alignment import ALIGNMENT
from backedge.engine.simulation.breaks.broken_answers import ANSWERS
from backedge.engine.simulation.breaks.broken_chain import CHAIN
from backedge.engine.simulation.breaks.broken_completion import COMPLETION
from backedge.engine.simulation.breaks.broken_credit import CREDIT
from backedge.engine.simulation.breaks.broken_logs import LOGS
from backedge.engine.simulation.breaks.broken_pipelines import PIPELINES
from backedge.engine.simulation.breaks.broken_restores import RESTORES
from backedge.engine.simulation.breaks.broken_rounds import ROUNDS
from backedge.engine.simulation.breaks.broken_splits import SPLITS
from backedge.engine.simulation.breaks.broken_state import STATE

BREAKS: dict[str, Break] = (
    LOGS | ALIGNMENT | COMPLETION | RESTORES | STATE | CREDIT | ROUNDS | CHAIN | PIPELINES | ANSWERS | SPLITS
)

__all__ = ["BREAKS", "Break"]
