"""backedge.graphs: what a dataflow is. Nothing here runs one.

A user builds a graph with `Flow`. Streams are tails: outputs of operators, each with a routing (`draft.py`). Operators
that are applied to a stream (`stream.py`) join the flow's draft. A loop (`loop.py`) is a stream that is consumed before
it is fed; an iteration (`iterate.py`) is a loop in rounds. `io.py` describes sources and sinks.

`Flow.plan()` freezes the draft (`building.py`): open ends become back edges, graphs that cannot run are refused
(`checks.py`, `graph_errors.py`), and the structure gets a hash that every process computes alike. A plan says what is
computed; `expand` says where (`expansion.py`): tasks, the chains of operators in them, channels, actors, components.
`routing.py` maps a key to its task.

Cycles are the point. A back edge is an edge that the user named; every cycle has one. `cycles.py` finds the components,
the heads and the nesting, `drawing.py` draws them.

An `OperatorKind` (`operator_kind.py`) says what an operator does, with its options; `kinds.py` has the built-in ones.
An operator with on_error "dead_letter" has the output "dead"; one that feeds a loop with a limit has "dead:LOOP".

>>> from backedge import Flow, Items, Print
>>> from backedge.graphs.expansion import expand
>>> flow = Flow("hello")
>>> flow.read(Items(["hello", "world"])).map(str.upper).write(Print())
>>> [str(task) for task in expand(flow.plan()).tasks]
['read-1/0']
"""
