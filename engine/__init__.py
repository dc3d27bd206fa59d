"""backedge.engine: how a dataflow runs.

A task has two independent parts. `task.py` is its part of the protocol: barriers, logs, markers, END. `runtime.py` runs
the user's code: it takes batches and returns batches. Both are pure, so the same code runs in the simulator and in a
cluster; a driver (`task_driver.py`) passes the effects of one part to the other.

The runtime, from the inside out: `operators/` has one operator per file; `sending.py` and `back_edge.py` put output
into channels; `wiring.py` connects the operators of a chain; `state.py`, `timers.py` and `capture.py` keep their state
and encode it while the task goes on; `services.py` defines what the runtime needs from outside, and `memory.py`
implements that in memory.
"""
