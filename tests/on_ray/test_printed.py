"""What Print sinks have printed is kept until the driver has it, and no longer."""

from __future__ import annotations

from engine.on_ray.supervisor.published_output import Output, PrintedLines
from engine.on_ray.transport.control_messages import TaskOptions
from graphs import Flow, Items, Print


def printing() -> Output:
    flow = Flow("printing")
    flow.read(Items([1]), name="one").write(Print("> "), name="shown")
    return Output(flow.plan(), TaskOptions(job="printing"), PrintedLines())


def test_lines_that_the_driver_has_are_forgotten():
    output = printing()
    output.publish("shown", "first", ["> 1", "> 2"])
    assert output.printed.since(0).lines == ["> 1", "> 2"]
    output.publish("shown", "second", ["> 3"])
    assert output.printed.since(2).lines == ["> 3"]
    assert output.printed.since(0).lines == ["> 3"], "the first two are gone"
    assert output.printed.since(3).lines == []


def test_an_answer_that_was_lost_is_given_again():
    output = printing()
    output.publish("shown", "first", ["> 1"])
    assert output.printed.since(0).lines == output.printed.since(0).lines == ["> 1"]


def test_a_transaction_that_is_published_twice_is_printed_once():
    output = printing()
    for _ in range(2):
        output.publish("shown", "first", ["> 1"])
    assert output.printed.since(0).lines == ["> 1"]
