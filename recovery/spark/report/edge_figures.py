"""Sums up the channels of each edge at a cut, for the picture and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backedge.graphs.wording import counted


@dataclass(frozen=True)
class EdgeFigures:
    """Batches sent (n), received (m) and logged (L) in the channels of one edge, and the records in those logs.

    `restored_batches` come from a restored log and are not yet processed. They are in flight like the logged ones, but
    this attempt did not send them, so they do not count in n = m + L.
    """

    channels: int = 0
    within_actor: int = 0
    sent: int = 0
    consumed: int = 0
    logged: int = 0
    restored_batches: int = 0
    records: int = 0
    is_violated: bool = False

    @property
    def batches_in_flight(self) -> int:
        return self.logged + self.restored_batches

    @property
    def missing(self) -> int:
        """Batches sent but neither received nor logged; negative if there are more than were sent."""
        return self.sent - self.consumed - self.logged


def figures_of_edges(cut: Mapping[str, Any]) -> dict[str, EdgeFigures]:
    """Edge -> its figures. Edges within a task have no channel and are left out.

    >>> cut = {"channels": [{"edge": "again", "sent": 9, "consumed": 7, "logged": 2, "records": 40}]}
    >>> figures_of_edges(cut)["again"].batches_in_flight
    2
    """
    channels: dict[str, list[Mapping[str, Any]]] = {}
    for channel in cut.get("channels", ()):
        channels.setdefault(channel["edge"], []).append(channel)
    violated = violated_channels(cut)
    return {edge: _sum(of_edge, violated) for edge, of_edge in channels.items()}


def in_flight(batches: int, records: int) -> str:
    """Batches and records in flight, in words.

    >>> in_flight(2, 40), in_flight(0, 0)
    ('40 records in 2 batches', 'nothing in flight')
    """
    if not batches:
        return "nothing in flight"
    return f"{counted(records, 'record')} in {counted(batches, 'batch', 'es')}"


def describe_in_flight(figures: EdgeFigures | None) -> str:
    """The records in flight on an edge, in words; if n = m + L is violated, the number of missing batches.

    >>> describe_in_flight(EdgeFigures(sent=9, consumed=7, logged=1, is_violated=True))
    '1 batch missing'
    """
    if figures is None:
        return "within one task"
    return _describe_missing(figures) or in_flight(figures.batches_in_flight, figures.records)


def label_of(figures: EdgeFigures | None) -> str:
    """The label of an edge: the number of batches if all have arrived; else n, m and L, or how many are missing.

    >>> label_of(EdgeFigures(sent=1200, consumed=1200)), label_of(EdgeFigures(sent=6, consumed=4, logged=2))
    ('1,200', 'n 6 · m 4 · L 2')
    """
    if figures is None:
        return ""
    if figures.sent == figures.consumed and not figures.batches_in_flight:
        return f"{figures.sent:,}"
    equation = f"n {figures.sent:,} · m {figures.consumed:,} · L {figures.batches_in_flight:,}"
    return _describe_missing(figures) or equation


def in_flight_of(cut: Mapping[str, Any]) -> str:
    """The records in flight in all channels of a cut, in words."""
    channels: Sequence[Mapping[str, Any]] = cut.get("channels", ())
    return in_flight(_total(channels, "logged"), _total(channels, "records"))


def violated_channels(cut: Mapping[str, Any]) -> set[str]:
    """Names of the channels in the findings of this cut."""
    return {finding["channel"] for finding in cut.get("findings", ()) if finding.get("channel")}


def name_of_channel(channel: Mapping[str, Any]) -> str:
    """The name of a channel as findings write it.

    >>> ends = {"sender": "try", "sender_index": 0, "receiver": "try", "receiver_index": 1}
    >>> name_of_channel({"edge": "again", **ends, "restored": True})
    'again try/0->try/1 (restored)'
    """
    ends = f"{channel['sender']}/{channel['sender_index']}->{channel['receiver']}/{channel['receiver_index']}"
    return f"{channel['edge']} {ends}{' (restored)' if channel.get('restored') else ''}"


def _describe_missing(figures: EdgeFigures) -> str:
    batches = abs(figures.missing)
    if not figures.is_violated or not batches:
        return ""
    return f"{counted(batches, 'batch', 'es')} {'missing' if figures.missing > 0 else 'too many'}"


def _sum(channels: Sequence[Mapping[str, Any]], violated: set[str]) -> EdgeFigures:
    live = [channel for channel in channels if not channel.get("restored")]
    restored = [channel for channel in channels if channel.get("restored")]
    return EdgeFigures(
        channels=len(live),
        within_actor=sum(bool(channel.get("within_actor")) for channel in live),
        sent=_total(live, "sent"),
        consumed=_total(live, "consumed"),
        logged=_total(live, "logged"),
        restored_batches=_total(restored, "logged"),
        records=_total(channels, "records"),
        is_violated=any("sender" in channel and name_of_channel(channel) in violated for channel in channels),
    )


def _total(channels: Sequence[Mapping[str, Any]], figure: str) -> int:
    return sum(channel.get(figure) or 0 for channel in channels)
