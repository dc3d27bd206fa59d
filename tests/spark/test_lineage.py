"""Where cuts stand in a chain, the first entries of which may be gone."""

from __future__ import annotations

import random

import pytest

from graphs.ids import Attempt, Epoch
from recovery.messages import Mode
from recovery.orders import AttemptStart, Entry, Manifest
from recovery.spark.cut_tables.lineage import attempts_in, check_chain, places_in
from recovery.stores.links import Link, needed


def link(number: int, entry: Entry) -> Link:
    return Link(number, entry, None, "", None)


def lived(rng: random.Random) -> tuple[list[Link], set[Epoch]]:
    """A chain of several attempts, each from a cut that was there then; and the cuts that are there in the end."""
    links: list[Link] = []
    there: set[Epoch] = set()
    epoch = 0
    for attempt in range(1, rng.randrange(2, 6)):
        restored = rng.choice(sorted(there)) if there else None
        links.append(link(len(links) + 1, AttemptStart(Attempt(attempt), restored)))
        for _ in range(rng.randrange(8)):
            epoch += rng.randrange(1, 3)
            entry = Manifest(Epoch(epoch), Attempt(attempt), Mode.ALIGNED, {}, {})
            links.append(link(len(links) + 1, entry))
            there.add(entry.epoch)
            if len(there) > 2:
                there.discard(rng.choice(sorted(there)[:-1]))
    return links, there


@pytest.mark.parametrize("seed", range(200))
def test_what_is_needed_of_the_past_places_every_cut_that_is_there(seed: int):
    rng = random.Random(seed)
    links, there = lived(rng)
    once, twice = sorted(rng.choices(range(1, len(links) + 1), k=2))
    then = {one.entry.epoch for one in links if isinstance(one.entry, Manifest) and rng.random() < 0.5} | there
    left = [*needed(links[:once], links[once:], lambda entry: entry.epoch in then), *links[once:twice]]
    left = [*needed(left, links[twice:], lambda entry: entry.epoch in there), *links[twice:]]
    assert list(check_chain(links)) == list(check_chain(left)) == []
    assert attempts_in(left) == attempts_in(links)
    whole, found = places_in(links), places_in(left)
    assert {epoch: found[epoch] for epoch in there} == {epoch: whole[epoch] for epoch in there}
    recorded = [one.entry.epoch for one in links[twice:] if isinstance(one.entry, Manifest)]
    assert {epoch: found[epoch] for epoch in recorded} == {epoch: whole[epoch] for epoch in recorded}
