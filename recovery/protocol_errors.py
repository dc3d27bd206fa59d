"""Errors of the protocol. Two kinds: a peer broke the rules, or our own driver called a method it may not call."""

from __future__ import annotations


class ProtocolError(RuntimeError):
    """An input that no schedule may produce. The core that raises it has not changed."""


class ChannelIntegrityError(ProtocolError):
    """A channel delivered something else than was sent: a batch lost, doubled, swapped or damaged."""


class FencedError(RuntimeError):
    """Another coordinator holds the job: it took the place in the chain that this one wanted."""


class RescaleError(ValueError):
    """A cut that cannot be restored under the parallelism asked for; names the operator or loop, and the way out."""
