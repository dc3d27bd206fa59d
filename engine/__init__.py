"""backedge.engine: how a dataflow runs.

A task has two independent parts. `recovery/protocol/task.py` is its part of the protocol: barriers, logs, markers, END.
`operators/runtime.py` runs the user's code: it takes batches and returns batches. Both are pure, so the same code runs
in the simulator and in a cluster; `task/driver.py` passes the effects of one part to the other.

From the inside out: `batches/` are records that travel together, `state/` is what operators keep by key, `operators/`
has one operator per file and `vertices/` vertex programs, `io/` has sources and sinks, `parts/` what many loops need.
`task/` drives a task and `run/` a run. On top of these are `simulation/`, `replay/` and `on_ray/`.
"""
