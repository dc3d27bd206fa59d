"""The runtimes of the built-in operators, one per file, and what they need to send and to call.

`graphs/kinds.py` defines the operators, `base.py` is their base. `runtime.py` runs those of a task, which `wiring.py`
connects; `sending.py` and `back_edge.py` put their output into channels.
"""
