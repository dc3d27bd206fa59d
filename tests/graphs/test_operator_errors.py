"""What is wrong with an operator is said where it is written down: the fact, its context and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from graphs import (
    CSV,
    BadNameError,
    BadOptionError,
    Call,
    Collect,
    DuplicateNameError,
    Flow,
    ForeignStreamError,
    Generate,
    GraphError,
    InputsError,
    Items,
    MissingNameError,
    NoSinkError,
    NoSourceError,
    Range,
    Stream,
    UnkeyedStreamError,
    UnknownOutputError,
    expand,
)


def count(state: int, record: Any) -> tuple[int, Any]:
    return state + 1, record


class Late:
    outputs = ("out", "late")


class Learner:
    inputs = ("samples", "weights")


def numbers(flow: Flow) -> Stream[int]:
    return flow.read(Items([1, 2, 3]), name="numbers")


def message(error: type[GraphError], action: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("a/b", "holds '/'"),
        ("a\\b", "holds '\\\\'"),
        ("/etc", "holds '/'"),
        ("C:", "holds ':'"),
        ("a\0b", "holds the invisible character '\\x00'"),
        ("a\nb", "holds the invisible character '\\n'"),
        ("a\u202eb", "holds the invisible character '\\u202e'"),
        ("a..b", "holds '..'"),
        ("..", "holds '..'"),
        (".hidden", "starts or ends with a dot or a space"),
        ("dot.", "starts or ends with a dot or a space"),
        (" a", "starts or ends with a dot or a space"),
        ("day=1", "holds '='"),
        ("", "is empty"),
        ("x" * 151, "is longer than 150 bytes"),
        (7, "is of type int"),
    ],
)
def test_name_that_is_no_folder_name_is_refused_everywhere(name: Any, fault: str):
    flow = Flow("flow")
    stream = numbers(flow)
    for action in (
        lambda: Flow(name),
        lambda: flow.read(Range(3), name=name),
        lambda: stream.map(abs, name=name),
        lambda: flow.loop(name),
        lambda: flow.iterate(stream, lambda s: s, name=name),
    ):
        assert fault in message(BadNameError, action)
    assert issubclass(BadNameError, ValueError)
    assert list(flow.draft.operators) == ["numbers"]
    assert not flow.draft.loops


def test_names_of_people_and_other_scripts_are_allowed():
    flow = Flow("größe 2.0")
    numbers(flow).map(abs, name="名前_x-1").write(Collect())
    assert "名前_x-1" in flow.plan().operators


def test_two_operators_of_one_name_are_refused_and_the_first_stays():
    flow = Flow("flow")
    stream = numbers(flow)
    stream.map(abs, name="double")
    text = message(DuplicateNameError, lambda: stream.filter(bool, name="double"))
    assert text == (
        "operator 'double': flow 'flow' already has an operator of that name (map), and state is filed under names: "
        "give one of them another name="
    )
    assert [operator.kind.value for operator in flow.draft.operators.values()] == ["source", "map"]


def test_loop_and_operator_of_one_name_are_refused():
    flow = Flow("flow")
    flow.loop("again")
    assert "already has a loop of that name" in message(DuplicateNameError, lambda: flow.read(Range(3), name="again"))
    numbers(flow)
    assert "already has an operator of that name (source)" in message(DuplicateNameError, lambda: flow.loop("numbers"))


def test_operator_with_the_name_of_a_dead_letter_sink_is_refused():
    flow = Flow("flow")
    numbers(flow).map(abs, name="m", on_error="dead_letter").write(Collect(), name="m.dead_letters")
    assert "the sink for the dead letters of 'm': rename it" in message(DuplicateNameError, flow.plan)


def test_stateful_operator_of_a_lambda_needs_a_name():
    keyed = numbers(Flow("flow")).key_by(abs)
    text = message(MissingNameError, lambda: keyed.stateful_map(lambda state, n: (state, n), initial=0))
    assert text == (
        "a stateful_map of an unnamed function has no name to file its state under: "
        "give it name=, or a function with a name"
    )
    assert "map_async of an unnamed function" in message(MissingNameError, lambda: keyed.map_async(lambda n: n))


def test_stateful_operator_of_a_named_function_has_its_name():
    stream = numbers(Flow("flow")).key_by(abs).stateful_map(count, initial=0)
    assert stream.tails[0].operator == "count"


def test_stateful_map_on_a_stream_without_a_key_is_refused():
    flow = Flow("flow")
    unkeyed: Any = numbers(flow).key_by(abs).filter(bool)
    text = message(UnkeyedStreamError, lambda: unkeyed.stateful_map(count, initial=0, name="counts"))
    assert text == (
        "stateful_map 'counts' keeps state by key, and its stream has none: "
        "call key_by(...) right before it, behind merge"
    )


def test_merged_stream_has_no_key_until_it_is_given_one():
    flow = Flow("flow")
    merged: Any = numbers(flow).key_by(abs).merge(flow.read(Range(3)).key_by(abs))
    assert merged.key is None
    message(UnkeyedStreamError, lambda: merged.stateful_map(count, initial=0))
    assert merged.key_by(abs).stateful_map(count, initial=0).tails[0].operator == "count"


def test_stream_of_another_flow_is_refused():
    here, there = Flow("here"), Flow("there")
    ours, theirs = numbers(here), numbers(there)
    text = message(ForeignStreamError, lambda: ours.merge(theirs))
    assert text == (
        "merge of flow 'here' is given a stream of flow 'there': "
        "read the data again in this flow, or build both in one Flow"
    )
    message(ForeignStreamError, lambda: here.loop("again").feed(theirs))
    message(ForeignStreamError, lambda: here.iterate(theirs, lambda s: s.map(abs)))
    message(ForeignStreamError, lambda: here.process(Late, a=ours, b=theirs))
    message(ForeignStreamError, lambda: here.iterate(ours, lambda s: theirs.map(abs), name="other"))


def test_something_else_than_a_stream_is_refused():
    stream: Any = numbers(Flow("flow"))
    text = message(BadOptionError, lambda: stream.merge([1, 2]))
    assert text == "merge is given [1, 2], which is no stream: give what an operator returned"


def test_flow_without_source_or_sink_is_refused():
    flow = Flow("flow")
    assert message(NoSourceError, flow.plan) == "flow 'flow' reads nothing: start it with flow.read(source)"
    numbers(flow).map(abs, on_error="dead_letter")
    assert message(NoSinkError, flow.plan) == (
        "flow 'flow' writes nothing, so nobody would see what it does: end it with stream.write(sink)"
    )


def test_source_and_sink_are_not_mixed_up():
    flow: Any = Flow("flow")
    assert "Collect() is no source: read Items" in message(BadOptionError, lambda: flow.read(Collect()))
    assert "Range(stop=3" in message(BadOptionError, lambda: numbers(flow).write(Range(3)))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_parallelism_is_an_integer_of_at_least_one(wrong: Any):
    flow = Flow("flow")
    stream = numbers(flow)
    text = message(BadOptionError, lambda: stream.map(abs, name="m", parallelism=wrong))
    assert text == f"map 'm' has parallelism={wrong!r}: give an integer of at least 1"
    stream.write(Collect())
    assert f"flow 'flow' has parallelism={wrong!r}" in message(BadOptionError, lambda: expand(flow.plan(), wrong))


def test_option_out_of_range_is_refused():
    stream: Any = numbers(Flow("flow"))
    for action, text in {
        lambda: stream.map(
            abs, name="m", on_error="ignore"
        ): "map 'm' has on_error='ignore': give one of 'fail', 'dead_letter'",
        lambda: stream.map(abs, name="m", num_gpus=-1): "map 'm' has num_gpus=-1: give amounts of 0 or more",
        lambda: stream.map(abs, name="m", resources={"tpu": "x"}): "give amounts of 0 or more",
        lambda: stream.map(
            abs, name="m", paralelism=2
        ): "map 'm' has no option 'paralelism': it takes name, parallelism",
        lambda: stream.write(Collect(), on_error="fail"): "has no option 'on_error'",
        lambda: stream.map(5): "map 'map-1' is given 5, which cannot be called: give a function",
        lambda: stream.map_batches(list, batch_size=0): "map_batches has batch_size=0: give an integer of at least 1",
        lambda: stream.map_batches(
            list, batch_format="csv"
        ): "map_batches has batch_format='csv': give one of 'records'",
        lambda: stream.map_async(abs, concurrency=0): "map_async has concurrency=0: give an integer of at least 1",
        lambda: stream.map_async(abs, timeout=0): "map_async has timeout=0: give seconds above 0",
        lambda: Items([], rate=0): "rate=0 reads nothing: give records a second above 0",
        lambda: Generate(abs, count=-1): "Generate has count=-1: give an integer of 0 or more",
        lambda: CSV(""): "path '' names no file: give a file, a folder or a URI",
    }.items():
        assert text in message(BadOptionError, action)
    assert list(stream.draft.operators) == ["numbers"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Items(3), "Items is given something of type int, whose records have no positions: give a list"),
        (lambda: Items(None), "of type NoneType"),
        (lambda: Items(n for n in "ab"), "of type generator"),
        (lambda: Items({1, 2}), "of type set"),
        (lambda: Items({"a": 1}), "of type dict"),
        (lambda: Items([1], rate="fast"), "rate='fast' reads nothing"),
        (lambda: Range("x"), "Range is given start=0 and stop='x': give integers"),
        (lambda: Generate(3), "Generate is given 3, which cannot be called: give a function"),
        (lambda: Generate(abs, count="x"), "Generate has count='x': give an integer of 0 or more"),
        (lambda: Call(3), "Call is given 3, which cannot be called: give a function"),
        (lambda: Flow("f", stop_when=3), "stop_when of flow 'f' is given 3, which cannot be called"),
        (lambda: numbers(Flow()).key_by(3), "key_by is given 3, which cannot be called"),
        (lambda: numbers(Flow()).route(3), "route is given 3, which cannot be called"),
    ],
)
def test_what_is_no_list_number_or_function_is_refused_where_it_is_written(make: Any, text: str):
    assert text in message(BadOptionError, make)


@pytest.mark.parametrize("option", ["body", "until", "reduce", "measure"])
def test_what_an_iteration_is_given_in_place_of_a_function_is_refused(option: str):
    flow = Flow()
    functions: dict[str, Any] = {"body": abs, "until": bool, "measure": int, option: 3}
    text = message(BadOptionError, lambda: flow.iterate(numbers(flow), name="rounds", **functions))
    assert f"{option}" in text and "of iteration 'rounds' is given 3, which cannot be called" in text


def test_output_that_an_operator_does_not_have_is_refused():
    flow = Flow("flow")
    stream = numbers(flow)
    late = stream.process(Late)
    assert late.side("late").tails[0].output == "late"
    assert message(UnknownOutputError, lambda: late.side("early")) == (
        "process 'Late' has no output 'early': it has 'out', 'late'; a process class declares more with outputs = (...)"
    )
    low, _ = stream.split(lambda n: "low", into=("low", "high"))
    assert low.side("high").tails[0].output == "high"
    assert "split 'split-1' has no output 'middle': it has 'low', 'high'" in message(
        UnknownOutputError, lambda: low.side("middle")
    )
    assert "comes from no single operator" in message(UnknownOutputError, lambda: late.merge(low).side("late"))
    assert "comes from no single operator" in message(UnknownOutputError, lambda: flow.loop("again").side("late"))


def test_dead_letters_of_an_operator_that_sets_none_aside_are_refused():
    stream = numbers(Flow("flow")).map(abs, name="m")
    assert message(UnknownOutputError, lambda: stream.dead_letters) == (
        "operator 'm' sets no dead letters aside: give it on_error=\"dead_letter\""
    )


@pytest.mark.parametrize("into", [(), ("one",), ("a", "a"), ("a", "b/c"), ("a", "dead"), ("a", 1)])
def test_split_needs_different_names_of_outputs(into: Any):
    stream = numbers(Flow("flow"))
    assert "give at least two different names" in message(BadOptionError, lambda: stream.split(str, into=into))


@pytest.mark.parametrize("outputs", [(), ("a", "a"), ("dead",), ("dead:again",), (1,)])
def test_process_class_needs_different_names_of_outputs(outputs: Any):
    stream = numbers(Flow("flow"))
    wrong = type("Wrong", (), {"outputs": outputs})
    assert "process class Wrong has outputs = " in message(BadOptionError, lambda: stream.process(wrong))


def test_process_needs_a_class():
    stream: Any = numbers(Flow("flow"))
    assert "which is no class: give a class with on_record" in message(BadOptionError, lambda: stream.process(abs))


def test_missing_and_unknown_inputs_are_refused():
    flow = Flow("flow")
    stream = numbers(flow)
    text = "process class Learner has the inputs 'samples', 'weights' and is given 'samples'"
    assert text in message(InputsError, lambda: flow.process(Learner, samples=stream))
    assert "and is given 'samples', 'wheights'" in message(
        InputsError, lambda: flow.process(Learner, samples=stream, wheights=stream)
    )
    assert "process class Late is given no input" in message(InputsError, lambda: flow.process(Late))
