"""Errors of the protocol: a peer broke the rules, or a driver made an illegal call."""

from __future__ import annotations

from backedge.graphs.public import public


class ProtocolError(RuntimeError):
    """An input that no legal schedule can produce. The core that raises it is unchanged."""


class BrokenInvariantError(ProtocolError):
    """The attributes of a core contradict each other: the core itself is at fault. Nothing it says can be relied on."""


class ChannelIntegrityError(ProtocolError):
    """A channel did not deliver what was sent: a batch was lost, doubled, swapped or damaged."""


@public
class FencedError(RuntimeError):
    """Another coordinator has taken over the job: it created the chain entry that this one wanted.

    A sink raises it, too, when a task of an earlier attempt still commits: that process was taken for dead.

    Fix: let the newer run finish, or end it and start this one again with `resume="latest"`; two runs at a time need
    different folders for their cuts and output.
    """


@public
class RescaleError(ValueError):
    """The cut cannot be restored at the requested parallelism; names the operator or loop, and the fix.

    Fix: keep the parallelism of the operator, or give its class `split` and `merge`. `is_for_good`: no later cut of the
    same flow could be restored either.
    """

    def __init__(self, message: str, *, is_for_good: bool = False) -> None:
        super().__init__(message)
        self.is_for_good = is_for_good
