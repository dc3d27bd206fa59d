"""Where cuts stand in a chain, the first entries of which may be gone."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.chain_view import needed
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AttemptStart, Entry, Manifest
from backedge.recovery.spark.cut_tables.lineage import Place, attempts_in, check_chain, places_in
from backedge.recovery.stores.links import Link
from tests.every import every_seed


def link(number: int, entry: Entry) -> Link:
    return Link(number, entry, None, "", None)


def lived_apart(rng: random.Random) -> tuple[list[Link], set[Epoch]]:
    """A chain of two pipelines, which take turns at random."""
    lives = [lived(rng)[0], lived(rng)[0]]
    there: set[Epoch] = set()
    links: list[Link] = []
    while any(lives):
        name = rng.choice([name for name in (0, 1) if lives[name]])
        entry = lives[name].pop(0).entry
        changed: dict[str, Any] = {"pipeline": "ab"[name], "attempt": Attempt(2 * entry.attempt + name)}
        if isinstance(entry, Manifest):
            changed["epoch"] = Epoch(2 * entry.epoch + name)
            there.add(changed["epoch"])
        elif entry.restored is not None:
            changed["restored"] = Epoch(2 * entry.restored + name)
        links.append(link(len(links) + 1, replace(entry, **changed)))
    return links, {epoch for epoch in there if rng.random() < 0.7}


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


def places_but_bases(links: Sequence[Link]) -> dict[int, Place]:
    """Of a chain that was shortened, bases may be unknown."""
    return {epoch: dataclasses.replace(place, bases=None) for epoch, place in places_in(links).items()}


@every_seed(100)
def test_each_pipeline_has_a_lineage_of_its_own(seed: int):
    links, there = lived_apart(random.Random(seed))
    places = places_but_bases(links)
    for name in "ab":
        own = [one for one in links if one.entry.pipeline == name]
        assert {epoch: place for epoch, place in places.items() if place.entry.pipeline == name} == places_but_bases(
            own
        )
    if len(links) > 1:
        for end in range(1, len(links)):
            kept = [*needed(links[:end], links[end:], there), *links[end:]]
            shortened = places_but_bases(kept)
            assert {epoch: shortened[epoch] for epoch in there} == {epoch: places[epoch] for epoch in there}


def test_pipelines_are_checked_apart_and_share_no_epoch():
    def start(attempt: int, pipeline: str, restored: int | None = None) -> AttemptStart:
        return AttemptStart(Attempt(attempt), None if restored is None else Epoch(restored), pipeline=pipeline)

    def cut(epoch: int, attempt: int, pipeline: str) -> Manifest:
        return Manifest(Epoch(epoch), Attempt(attempt), Mode.ALIGNED, {}, {}, pipeline=pipeline)

    def found(*entries: Entry) -> list[str]:
        return [one.story for one in check_chain([link(number, entry) for number, entry in enumerate(entries, 1)])]

    begun = (start(1, "a"), start(2, "b"))
    assert found(*begun, cut(8, 1, "a"), cut(3, 2, "b"), start(3, "a", 8), cut(5, 2, "b"), cut(10, 3, "a")) == []
    assert found(*begun, cut(2, 1, "b")) == ["the cut belongs to attempt 1 but attempt 2 was running"]
    assert found(*begun, cut(2, 1, "a"), cut(2, 2, "b")) == ["epoch 2 is a cut of two pipelines"]
    assert found(*begun, cut(3, 2, "b"), cut(1, 2, "b")) == ["epoch 1 is recorded after epoch 3"]


def starts_wrongly(restored: int | None, run: str, *before: Entry) -> bool:
    """Whether the start of attempt 9 is a fault behind these entries and two cuts of run 1."""
    cuts = [Manifest(Epoch(epoch), Attempt(1), Mode.ALIGNED, {}, {}, claimant="1.a") for epoch in (4, 5)]
    start = AttemptStart(Attempt(9), None if restored is None else Epoch(restored), claimant=f"{run}.b")
    entries = [AttemptStart(Attempt(1), None, claimant="1.a"), *cuts, *before, start]
    return bool(list(check_chain([link(number, entry) for number, entry in enumerate(entries, 1)])))


def test_an_attempt_restores_the_last_cut_and_only_a_new_run_another():
    assert [starts_wrongly(restored, "1") for restored in (None, 4, 5)] == [True, True, False]
    assert [starts_wrongly(restored, "2") for restored in (None, 4, 5)] == [True, False, False]


def test_a_run_that_cannot_restore_the_cut_that_it_chose_names_the_last_one_again():
    chosen = AttemptStart(Attempt(2), Epoch(4), claimant="2.a")
    assert [starts_wrongly(restored, "2", chosen) for restored in (None, 4, 5)] == [True, False, False]
    taken = Manifest(Epoch(6), Attempt(2), Mode.ALIGNED, {}, {}, claimant="2.a")
    assert [starts_wrongly(restored, "2", chosen, taken) for restored in (4, 5, 6)] == [True, True, False]


def test_a_pipeline_that_was_given_up_begins_from_the_beginning():
    def cut(epoch: int, attempt: int, pipeline: str, *given_up: str) -> Manifest:
        return Manifest(Epoch(epoch), Attempt(attempt), Mode.ALIGNED, {}, {}, pipeline=pipeline, given_up=given_up)

    begun = [AttemptStart(Attempt(attempt), None, pipeline=name) for attempt, name in ((1, "a"), (2, "b"))]
    again = AttemptStart(Attempt(3), None, pipeline="b")
    for given_up, count in (((), 1), (("b",), 0)):
        entries = [*begun, cut(1, 2, "b"), cut(2, 1, "a", *given_up), again]
        assert len(list(check_chain([link(number, entry) for number, entry in enumerate(entries, 1)]))) == count


@every_seed(200)
def test_what_is_needed_of_the_past_places_every_cut_that_is_there(seed: int):
    rng = random.Random(seed)
    links, there = lived(rng)
    once, twice = sorted(rng.choices(range(1, len(links) + 1), k=2))
    then = {one.entry.epoch for one in links if isinstance(one.entry, Manifest) and rng.random() < 0.5} | there
    left = [*needed(links[:once], links[once:], then), *links[once:twice]]
    left = [*needed(left, links[twice:], there), *links[twice:]]
    assert list(check_chain(links)) == list(check_chain(left)) == []
    assert [start for start in attempts_in(links) if start in attempts_in(left)] == attempts_in(left)
    assert {place.bases for place in places_in(left).values()} <= {
        None,
        *(place.bases for place in places_in(links).values()),
    }
    whole, found = places_but_bases(links), places_but_bases(left)
    assert {epoch: found[epoch] for epoch in there} == {epoch: whole[epoch] for epoch in there}
    recorded = [one.entry.epoch for one in links[twice:] if isinstance(one.entry, Manifest)]
    assert {epoch: found[epoch] for epoch in recorded} == {epoch: whole[epoch] for epoch in recorded}


def test_of_the_past_no_more_is_needed_after_a_thousand_restarts():
    links = [link(1, AttemptStart(Attempt(1), None, claimant="first.a"))]
    kept: list[Epoch] = []
    lengths: list[int] = []
    for epoch in range(1, 3_001):
        if epoch % 3 == 0:
            # Each tenth of the first is by another supervisor, of another run.
            start = AttemptStart(Attempt(epoch), kept[-1], claimant=f"{min(epoch // 30, 5)}.a")
            links.append(link(links[-1].number + 1, start))
        attempt = links[-1].entry.attempt
        links.append(link(links[-1].number + 1, Manifest(Epoch(epoch), attempt, Mode.ALIGNED, {}, {})))
        kept = [*kept, Epoch(epoch)][-3:]
        if len(links) > 32:
            links = [*needed(links[:-8], links[-8:], set(kept)), *links[-8:]]
            lengths.append(len(links))
            assert list(check_chain(links)) == []
    assert max(lengths[len(lengths) // 2 :]) == max(lengths[: len(lengths) // 2]) <= 16
