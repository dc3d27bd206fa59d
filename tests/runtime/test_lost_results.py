"""Results that would be lost, or become something else, without a word: the run fails, and says what to write."""

from __future__ import annotations

from typing import Any

import pytest

from backedge.graphs.task_errors import MisuseError
from tests.runtime.tasks import Tasks, flow_of, records_of

careful_or_not = pytest.mark.parametrize("options", [{}, {"on_error": "dead_letter"}], ids=["plain", "careful"])


def returns(*arguments: Any) -> Any:
    return [("record", 1)]


def sets_timer(self: Any, ctx: Any, record: Any) -> None:
    ctx.set_timer(5)


def takes_only(self: Any, ctx: Any, record: Any) -> None: ...


@careful_or_not
@pytest.mark.parametrize("hook", ["on_start", "on_record", "on_batch", "on_timer", "on_round_end", "on_end"])
def test_a_hook_that_returns_something_is_told_to_emit_it(hook: str, options: Any):
    takes = sets_timer if hook == "on_timer" else takes_only
    operator = type("Returns", (), {"on_record": takes, hook: returns} if hook != "on_batch" else {hook: returns})

    def run() -> None:
        tasks = Tasks(flow_of(lambda source: source.key_by(abs).process(operator, name="op", **options)))
        tasks.feed("op", [1])
        home = tasks.home("op")
        home.fire_timers(now_ms=5)
        home.on_round_end((0,), now_ms=5)
        home.end(now_ms=5)

    with pytest.raises(MisuseError) as caught:
        run()
    assert str(caught.value) == (
        f"operator 'op': {hook} returned [('record', 1)], but the result of a hook is not used: send records with "
        "ctx.emit(record), and return nothing"
    )


def flat_mapping(function: Any, **options: Any) -> Tasks:
    return Tasks(flow_of(lambda source: source.flat_map(function, name="op", **options)))


@careful_or_not
@pytest.mark.parametrize("text", ["abc", "", b"abc", bytearray(b"abc")], ids=repr)
def test_a_flat_map_that_returns_a_text_is_not_taken_for_its_letters(text: Any, options: Any):
    for hops in (0, [0, 1]):
        with pytest.raises(MisuseError) as caught:
            flat_mapping(lambda n: text if n == 2 else [n], **options).feed("op", [1, 2], hops)
        assert f"operator 'op': the function of a flat_map returned {text!r} for record 2" in str(caught.value)
        assert "return a list with it, or list(text) for its letters" in str(caught.value)


@careful_or_not
def test_a_flat_map_that_returns_a_dict_is_not_taken_for_its_keys(options: Any):
    with pytest.raises(MisuseError, match=r"returned \{'id': 2\} for record 2, each key .* return a list with it"):
        flat_mapping(lambda n: {"id": n}, **options).feed("op", [2])


def test_who_wants_letters_or_texts_gets_them():
    assert records_of(flat_mapping(list).feed("op", ["ab"])) == ["a", "b"]
    assert records_of(flat_mapping(str.split).feed("op", ["ab c"])) == ["ab", "c"]
    assert records_of(flat_mapping(lambda n: iter(("ab",))).feed("op", [1])) == ["ab"]
