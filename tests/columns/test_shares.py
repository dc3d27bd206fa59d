"""Shares of a piece of work that spreads by messages: all of them are back when, and only when, it is over."""

from __future__ import annotations

import random

from backedge.engine.vertices.incremental.weight_throwing import Outstanding, Returned, divided
from tests.every import every, every_seed


@every_seed(50)
def test_all_shares_are_back_when_no_message_and_no_note_is_on_its_way(seed: int):
    rng = random.Random(seed)
    outstanding, notes = Outstanding(), list[Returned]()
    first, count = divided([0], rng.randint(1, 9))[0], rng.randint(1, 9)
    outstanding.give(first, count)
    messages, sent = [first] * count, count
    while messages or notes:
        assert not outstanding.are_back
        if messages and (not notes or rng.random() < 0.6):
            rng.shuffle(messages)
            taken = [messages.pop() for _ in range(rng.randint(1, len(messages)))]
            parts = rng.choice((0, 0, 1, 2, 3, 7)) if sent < 500 else 0
            share, note = divided(taken, parts)
            messages += [share] * parts
            notes.append(note)
            sent += parts
        else:
            outstanding.take_back(notes.pop(rng.randrange(len(notes))))
    assert outstanding.are_back
    assert outstanding.exponent == 0


def test_a_share_can_be_divided_thousands_of_times():
    outstanding, share = Outstanding(), 0
    outstanding.give(share, 1)
    for _ in range(5_000):
        share, note = divided([share], 3)
        outstanding.take_back(note)
        outstanding.take_back([(share, 2)])
        assert not outstanding.are_back
    outstanding.take_back([(share, 1)])
    assert outstanding.are_back


@every("parts", [0, 1, 2, 3, 4, 128])
def test_a_note_never_comes_away_empty(parts: int):
    _, note = divided([3], parts)
    assert sum(count for _, count in note) > 0
