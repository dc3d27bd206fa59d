"""engine: how a dataflow runs.

A task is two things that know nothing of each other. `task.py` is its part of the protocol: barriers, logs, markers,
END. `runtime.py` is what runs the user's code: it takes batches and gives batches. Both are pure, so that the same two
run under the simulator and in a cluster; a driver hands the effects of the one to the other.

The runtime, from the inside out: an operator a file in `operators/`; `sending.py` and `back_edge.py` put what they send
into channels; `wiring.py` puts the operators of a chain together; `state.py`, `timers.py` and `capture.py` keep their
state and encode it while the task goes on; `services.py` says what it needs from outside, and `memory.py` is that, in
memory.
"""
