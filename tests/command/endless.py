"""A flow that goes on until it is interrupted, as the user's module endless.py; what it prints is in a cut."""

MODULE = """
from backedge import Flow, Print, Range
from tests.gates import Gate, Gated

flow = Flow("endless")
again = flow.loop("again", endless=True)
source = Gated(Range(100), Gate("that is never opened"), 20)
numbers = flow.read(source, name="numbers").merge(again).key_by(lambda n: n).map(lambda n: n + 1, name="grow")
again.feed(numbers.filter(lambda n: n % 5, name="some"))
numbers.write(Print(), name="shown")
"""
