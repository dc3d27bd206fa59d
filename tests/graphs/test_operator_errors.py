"""What is wrong with an operator is said where it is written down: the fact, its context and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backedge import (
    BadNameError,
    BadOptionError,
    Call,
    Collect,
    DuplicateNameError,
    Flow,
    ForeignStreamError,
    Generate,
    InputsError,
    Items,
    JsonLines,
    MissingNameError,
    NoSinkError,
    NoSourceError,
    Range,
    Stream,
    UnkeyedStreamError,
    UnknownOutputError,
)
from backedge.engine.io.files.file_formats import CSV
from backedge.graphs.expansion import expand
from tests.every import every
from tests.faults.evidence import Evidence
from tests.graphs.refusals import refuses


def count(state: int, record: Any) -> tuple[int, Any]:
    return state + 1, record


class Late:
    outputs = ("out", "late")

    def on_record(self, ctx: Any, value: int) -> None: ...


class Learner:
    inputs = ("samples", "weights")

    def on_record(self, ctx: Any, input: str, value: int) -> None: ...


def numbers(flow: Flow) -> Stream[int]:
    return flow.read(Items([1, 2, 3]), name="numbers")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("a/b", "'/'"),
        ("a\\b", "'\\\\'"),
        ("/etc", "'/'"),
        ("C:", "':'"),
        ("a\0b", "character '\\x00'"),
        ("a\nb", "character '\\n'"),
        ("a\u202eb", "character '\\u202e'"),
        ("a..b", " '..'"),
        ("..", " '..'"),
        (".hidden", "dot or a space"),
        ("dot.", "dot or a space"),
        (" a", "dot or a space"),
        ("day=1", "'='"),
        ("", "empty"),
        ("x" * 151, "150 bytes"),
        (7, "type int"),
    ],
)
def test_name_that_is_no_folder_name_is_refused_everywhere(name: Any, fault: str, evidence: Evidence):
    flow = Flow("flow")
    stream = numbers(flow)
    for action in (
        lambda: Flow(name),
        lambda: flow.read(Range(3), name=name),
        lambda: stream.map(abs, name=name),
        lambda: flow.loop(name),
        lambda: flow.iterate(stream, lambda s: s, name=name),
    ):
        refuses(BadNameError, action, fault)
        evidence.happened("bad names of flows, operators and loops", 1)
    assert issubclass(BadNameError, ValueError)
    assert list(flow.draft.operators) == ["numbers"]
    evidence.survived("flows without an operator of a bad name", 1)
    assert not flow.draft.loops


def test_names_of_people_and_other_scripts_are_allowed():
    flow = Flow("größe 2.0")
    numbers(flow).map(abs, name="名前_x-1").write(Collect())
    assert "名前_x-1" in flow.plan().operators


def test_two_operators_of_one_name_are_refused_and_the_first_stays():
    flow = Flow("flow")
    stream = numbers(flow)
    stream.map(abs, name="double")
    refuses(DuplicateNameError, lambda: stream.filter(bool, name="double"), "'double'", "'flow'", "(map)", "name=")
    assert [operator.kind.word for operator in flow.draft.operators.values()] == ["source", "map"]


def test_loop_and_operator_of_one_name_are_refused():
    flow = Flow("flow")
    flow.loop("again")
    refuses(DuplicateNameError, lambda: flow.read(Range(3), name="again"), "'again'", "a loop")
    numbers(flow)
    refuses(DuplicateNameError, lambda: flow.loop("numbers"), "'numbers'", "(source)")


def test_operator_with_the_name_of_a_dead_letter_sink_is_refused():
    flow = Flow("flow")
    numbers(flow).map(abs, name="m", on_error="dead_letter").write(Collect(), name="m.dead_letters")
    refuses(DuplicateNameError, flow.plan, "'m.dead_letters'", "dead letters of 'm'")


def test_stateful_operator_of_a_named_function_has_its_name():
    stream = numbers(Flow("flow")).key_by(abs).stateful_map(count, initial=0)
    assert stream.tails[0].operator == "count"


def test_merged_stream_has_no_key_until_it_is_given_one():
    flow = Flow("flow")
    merged: Any = numbers(flow).key_by(abs).merge(flow.read(Range(3)).key_by(abs))
    assert merged.key is None
    assert merged.key_by(abs).stateful_map(count, initial=0).tails[0].operator == "count"


def test_stream_of_another_flow_is_refused():
    here, there = Flow("here"), Flow("there")
    ours, theirs = numbers(here), numbers(there)
    refuses(ForeignStreamError, lambda: ours.merge(theirs), "merge", "'here'", "'there'")
    refuses(ForeignStreamError, lambda: here.loop("again").feed(theirs), "'here'", "'there'")
    refuses(ForeignStreamError, lambda: here.iterate(theirs, lambda s: s.map(abs)), "'here'", "'there'")
    refuses(ForeignStreamError, lambda: here.process(Late, a=ours, b=theirs), "'here'", "'there'")
    refuses(
        ForeignStreamError, lambda: here.iterate(ours, lambda s: theirs.map(abs), name="other"), "'here'", "'there'"
    )


def test_flow_without_source_or_sink_is_refused():
    flow = Flow("flow")
    refuses(NoSourceError, flow.plan, "'flow'", "flow.read(")
    numbers(flow).map(abs, on_error="dead_letter")
    refuses(NoSinkError, flow.plan, "'flow'", ".write(")


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_parallelism_is_an_integer_of_at_least_one(wrong: Any):
    flow = Flow("flow")
    stream = numbers(flow)
    refuses(BadOptionError, lambda: stream.map(abs, name="m", parallelism=wrong), "map 'm'", f"parallelism={wrong!r}")
    stream.write(Collect())
    refuses(BadOptionError, lambda: expand(flow.plan(), wrong), "'flow'", f"parallelism={wrong!r}", "at least 1")


@pytest.mark.parametrize("option", ["body", "until", "reduce", "measure"])
def test_what_an_iteration_is_given_in_place_of_a_function_is_refused(option: str):
    flow = Flow()
    functions: dict[str, Any] = {"body": abs, "until": bool, "measure": int, option: 3}
    given = lambda: flow.iterate(numbers(flow), name="rounds", **functions)  # noqa: E731
    refuses(BadOptionError, given, option, "iteration 'rounds'", " 3", "function")


REFUSED: list[tuple[type[Exception], Callable[[Flow, Any], object], tuple[str, ...]]] = [
    (MissingNameError, lambda f, s: s.key_by(abs).stateful_map(lambda n, r: (n, r), initial=0), ("stateful_", "name=")),
    (MissingNameError, lambda f, s: s.map_async(lambda n: n), ("map_async", "name=")),
    (UnkeyedStreamError, lambda f, s: s.key_by(abs).filter(bool).stateful_map(count, initial=0, name="counts"), (
        "stateful_map 'counts'", "key_by(", "merge")),
    (UnkeyedStreamError, lambda f, s: s.key_by(abs).merge(s.key_by(abs)).stateful_map(count, initial=0), ("key_by(",)),
    (UnkeyedStreamError, lambda f, s: s.key_by(abs).merge(s.key_by(abs)).process(Late), ("'Late'", "after the merge")),
    (UnkeyedStreamError, lambda f, s: f.process(Learner, samples=s.key_by(abs).merge(s.key_by(abs)), weights=s), (
        "'Learner'", "after the merge")),
    (InputsError, lambda f, s: f.process(type("Wrong", (), {"inputs": "samples"}), samples=s), (
        "class Wrong", "inputs = 'samples'", "tuple")),
    (BadOptionError, lambda f, s: s.merge([1, 2]), ("merge", "[1, 2]", "stream")),
    (BadOptionError, lambda f, s: f.read(Collect()), ("Collect()", "source")),
    (BadOptionError, lambda f, s: s.write(Range(3)), ("Range(stop=3", "sink")),
    (BadOptionError, lambda f, s: s.process(abs), ("abs", "class with on_record")),
    (UnknownOutputError, lambda f, s: s.map(abs, name="m").dead_letters, ("'m'", 'on_error="dead_letter"')),
    # Options.
    (BadOptionError, lambda f, s: s.map(abs, name="m", on_error="ignore"), (
        "map 'm'", "on_error='ignore'", "'fail', 'dead_letter'")),
    (BadOptionError, lambda f, s: s.map(abs, name="m", num_gpus=-1), ("map 'm'", "num_gpus=-1", " 0 ")),
    (BadOptionError, lambda f, s: s.map(abs, name="m", resources={"tpu": "x"}), (
        "map 'm'", "resources={'tpu': 'x'}", " 0 ")),
    (BadOptionError, lambda f, s: s.map(abs, name="m", resources=["tpu"]), ("map 'm'", "resources=['tpu']", "dict")),
    (BadOptionError, lambda f, s: s.map(abs, name="m", paralelism=2), (
        "map 'm'", "'paralelism'", "name, parallelism")),
    (BadOptionError, lambda f, s: s.write(Collect(), on_error="fail"), (
        "'write-1'", "'on_error'", "name, parallelism")),
    (BadOptionError, lambda f, s: s.map(5), ("map 'map-1'", " 5", "function")),
    (BadOptionError, lambda f, s: s.map_batches(list, batch_size=0), ("map_batches", "batch_size=0", "at least 1")),
    (BadOptionError, lambda f, s: s.map_batches(list, batch_format="csv"), (
        "map_batches", "batch_format='csv'", "'records'")),
    (BadOptionError, lambda f, s: s.map_async(abs, concurrency=0), ("map_async", "concurrency=0", "at least 1")),
    (BadOptionError, lambda f, s: s.map_async(abs, timeout=0), ("map_async", "timeout=0", "above 0")),
    (BadOptionError, lambda f, s: s.map_async(abs, timeout=10**400), ("map_async", "timeout=1000", "above 0")),
    (BadOptionError, lambda f, s: s.map_async(abs, cost=3), ("cost=", "map_async", "function")),
    (BadOptionError, lambda f, s: s.map_async(abs, cost=abs, answers="again"), ("cost=", "'again'", "kept")),
    (BadOptionError, lambda f, s: s.map_async(abs, name="ask", call_key=5), ("call_key= of map_async 'ask'", " 5")),
    (BadOptionError, lambda f, s: s.key_by(abs).map_async(abs, cost=abs, budget=0), ("budget=0", "above 0")),
    (BadOptionError, lambda f, s: s.key_by(abs).map_async(abs, budget=1), ("budget", "cost=")),
    (BadOptionError, lambda f, s: s.key_by(abs).map_async(abs, cost=abs, budget=1), (
        "budget", "on_error='dead_letter'")),
    (BadOptionError, lambda f, s: s.map_async(abs, cost=abs, budget=1, on_error="dead_letter"), (
        "map_async", "no key", "key_by")),
    (BadOptionError, lambda f, s: f.read(Items([]), rate=0), ("rate=0", "above 0")),
    (BadOptionError, lambda f, s: Generate(abs, count=-1), ("Generate", "count=-1", "0 or more")),
    (BadOptionError, lambda f, s: Generate(abs, count=2**63), ("Generate", f"count={2**63}", "without end")),
    (BadOptionError, lambda f, s: Range(2**63), ("Range", f"stop={2**63}", "Generate(int)")),
    (BadOptionError, lambda f, s: CSV(""), ("path ''",)),
    # What is no list, number or function.
    (BadOptionError, lambda f, s: Items(3), ("Items", "type int", "list")),
    (BadOptionError, lambda f, s: Items(None), ("Items", "type NoneType")),
    (BadOptionError, lambda f, s: Items(n for n in "ab"), ("Items", "type generator")),
    (BadOptionError, lambda f, s: Items({1, 2}), ("Items", "type set")),
    (BadOptionError, lambda f, s: Items({"a": 1}), ("Items", "type dict")),
    (BadOptionError, lambda f, s: f.read(Items([1]), rate="5 MB an hour"), ("rate='5 MB an hour'", "2MB/s")),
    (BadOptionError, lambda f, s: Range("x"), ("Range", "start=0", "stop='x'", "integers")),
    (BadOptionError, lambda f, s: Generate(3), ("Generate", " 3", "function")),
    (BadOptionError, lambda f, s: Generate(abs, count="x"), ("Generate", "count='x'")),
    (BadOptionError, lambda f, s: Call(3), ("Call", " 3", "function")),
    (BadOptionError, lambda f, s: Flow("f", stop_when=3), ("stop_when", "'f'", " 3", "function")),
    (BadOptionError, lambda f, s: s.key_by(3), ("key_by", " 3", "function")),
    (BadOptionError, lambda f, s: s.route(3), ("route", " 3", "function")),
]  # fmt: skip


@every(("error", "use", "named"), REFUSED)
def test_what_is_wrong_is_refused_where_it_is_written(
    error: type[Exception], use: Callable[[Flow, Any], object], named: tuple[str, ...]
):
    flow = Flow("flow")
    stream = numbers(flow)
    refuses(error, lambda: use(flow, stream), *named)
    assert not [name for name in flow.draft.operators if name not in ("numbers", "filter-1", "m")]


def test_output_that_an_operator_does_not_have_is_refused():
    flow = Flow("flow")
    stream = numbers(flow)
    late = stream.process(Late)
    assert late.side("late").tails[0].output == "late"
    refuses(UnknownOutputError, lambda: late.side("early"), "'Late'", "'early'", "'out', 'late'", "outputs =")
    low, _ = stream.split(lambda n: "low", into=("low", "high"))
    assert low.side("high").tails[0].output == "high"
    refuses(UnknownOutputError, lambda: low.side("middle"), "split 'split-1'", "'middle'", "'low', 'high'")
    refuses(UnknownOutputError, lambda: late.merge(low).side("late"), "'late'", "operator")
    refuses(UnknownOutputError, lambda: flow.loop("again").side("late"), "'late'", "operator")


@every("wrong", [{"parallelism": 0}, {"num_cpus": -1}, {"name": "numbers"}])
def test_a_source_that_finds_splits_is_added_as_a_whole_or_not_at_all(wrong: dict[str, Any]):
    flow = Flow("flow")
    numbers(flow).write(Collect(), name="out")
    before = list(flow.plan().operators)
    with pytest.raises((BadOptionError, DuplicateNameError)):
        flow.read(JsonLines("in", watch=1), **{"name": "in", **wrong})
    assert list(flow.plan().operators) == before


@every("into", [(), ("one",), ("a", "a"), ("a", "b/c"), ("a", "dead"), ("a", 1), "ab", 2, {"a": 1, "b": 2}])
def test_split_needs_different_names_of_outputs(into: Any):
    stream = numbers(Flow("flow"))
    refuses(BadOptionError, lambda: stream.split(str, into=into), f"into={into!r}", "two different names")


@pytest.mark.parametrize("outputs", [(), ("a", "a"), ("dead",), ("dead:again",), (1,), "late", None, {"late"}])
def test_process_class_needs_different_names_of_outputs(outputs: Any):
    stream = numbers(Flow("flow"))
    wrong = type("Wrong", (), {"outputs": outputs})
    refuses(BadOptionError, lambda: stream.process(wrong), "class Wrong", f"outputs = {outputs!r}")


@pytest.mark.parametrize(("hooks", "fact"), [((), "neither"), (("on_record", "on_batch"), "both")])
def test_process_class_has_either_on_record_or_on_batch(hooks: tuple[str, ...], fact: str):
    stream = numbers(Flow("flow"))
    wrong = type("Wrong", (), {hook: lambda self, ctx, value: None for hook in hooks})
    refuses(BadOptionError, lambda: stream.process(wrong), "class Wrong", fact, "on_batch(ctx, values)")


def test_missing_and_unknown_inputs_are_refused():
    flow = Flow("flow")
    stream = numbers(flow)
    refuses(InputsError, lambda: flow.process(Learner, samples=stream), "Learner", "'samples', 'weights'", "'samples'")
    misspelled = lambda: flow.process(Learner, samples=stream, wheights=stream)  # noqa: E731
    refuses(InputsError, misspelled, "Learner", "'samples', 'weights'", "'samples', 'wheights'")
    refuses(InputsError, lambda: flow.process(Late), "class Late", "input")
