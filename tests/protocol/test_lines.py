"""Orders and reports arrive once each and in order, whatever is lost, late or repeated on the way."""

from __future__ import annotations

import random

import pytest

from backedge.recovery.protocol.reliable_line import REPEAT_MS, REPEATED_MAX, LineEnd, Said
from tests.protocol.bench_of_cores import Bench, graph


def test_a_message_that_is_not_confirmed_in_time_is_sent_again_with_all_behind_it_until_it_is():
    end = LineEnd()
    first, second = end.say("first", 0), end.say("second", 100)
    assert end.due(REPEAT_MS - 1) == []
    assert end.due(REPEAT_MS) == [first, second]
    assert end.due(REPEAT_MS + 1) == [], "not with every look"
    assert end.due(2 * REPEAT_MS) == [first, second]
    end.on_confirmed(1, 2 * REPEAT_MS + 10)
    assert end.due(3 * REPEAT_MS + 10) == [second]
    end.on_confirmed(2, 3 * REPEAT_MS + 20)
    assert end.due(10 * REPEAT_MS) == []


def test_only_the_next_message_is_accepted_and_the_others_are_counted():
    end = LineEnd()
    assert not end.accepts(Said(2, "second"))
    assert end.accepts(Said(1, "first"))
    assert not end.accepts(Said(1, "first"))
    assert end.accepts(Said(2, "second"))
    assert (end.heard, end.repeated, end.early) == (2, 1, 1)


def test_a_long_backlog_is_sent_again_in_parts():
    end = LineEnd()
    for number in range(3 * REPEATED_MAX):
        end.say(number, 0)
    assert [said.what for said in end.due(REPEAT_MS)] == list(range(REPEATED_MAX))


@pytest.mark.slow
def test_everything_arrives_once_and_in_order_over_a_bad_network():
    for seed in range(50):
        rng = random.Random(seed)
        ends = LineEnd(), LineEnd()
        wires: tuple[list[tuple[Said, int]], list[tuple[Said, int]]] = [], []
        heard: tuple[list[int], list[int]] = [], []
        now_ms, said = 0, [0, 0]
        while min(len(of_side) for of_side in heard) < 40:
            now_ms += rng.randrange(50)
            for side in (0, 1):
                messages = ends[side].due(now_ms)
                if said[side] < 40 and rng.random() < 0.5:
                    messages.append(ends[side].say(said[side], now_ms))
                    said[side] += 1
                if not messages and ends[side].owes_confirmation():
                    messages = [Said(0, None)]
                for message in messages:
                    wires[side].extend([(message, ends[side].confirm())] * rng.choice((0, 1, 1, 2)))
                rng.shuffle(wires[side])
                while wires[side] and rng.random() < 0.7:
                    message, confirmed = wires[side].pop()
                    ends[1 - side].on_confirmed(confirmed, now_ms)
                    if ends[1 - side].accepts(message):
                        heard[1 - side].append(message.what)
        assert heard == (list(range(40)), list(range(40))), f"seed {seed}"


# -- orders that come twice for another reason -----------------------------------------------------------------------


def test_a_head_that_is_told_to_end_twice_ends_once():
    bench = Bench(graph("items -> head", "head -> body", "body => head"))
    bench.tell_to_end("head")
    core = bench.core("head")
    assert core.ended
    assert list(core.on_told_to_end()) == []
