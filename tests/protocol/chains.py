"""Entries of a chain, written by hand, and supervisors that claim attempts in it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.chain_view import claimant_of
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AttemptStart, Entry, Manifest, Numbered, Order
from backedge.recovery.protocol.supervisor import Beginning, Supervisor

OURS, SUCCESSOR, THEIRS = claimant_of("ours", "1"), claimant_of("ours", "2"), claimant_of("theirs", "1")


def start(attempt: int, restored: int | None = None, claimant: str = THEIRS, **more: Any) -> AttemptStart:
    return AttemptStart(Attempt(attempt), None if restored is None else Epoch(restored), claimant, **more)


def manifest(epoch: int, attempt: int = 1, claimant: str = THEIRS, **more: Any) -> Manifest:
    cut = Manifest(Epoch(epoch), Attempt(attempt), Mode.ALIGNED, {}, {}, claimant=claimant)
    return replace(cut, **more)


def numbered(*entries: Entry) -> list[Numbered]:
    return [Numbered(number, entry) for number, entry in enumerate(entries, 1)]


def claimed(
    chain: list[Entry], epoch: int | None = None, *, supervisor: Supervisor | None = None, **wishes: Any
) -> tuple[Supervisor, list[Order]]:
    """A supervisor that has just won its attempt, from the cut that was asked for, and what it orders then."""
    supervisor = supervisor or Supervisor(OURS)
    append: Any
    asked = Beginning(None if epoch is None else Epoch(epoch), **wishes)
    (append,) = supervisor.begin(numbered(*chain), asked)
    chain.append(append.entry)
    return supervisor, supervisor.on_appended(append.entry)
