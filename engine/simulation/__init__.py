"""engine.simulation: the cores of the protocol under seeded schedules and faults, for users' own flows.

`world.py` lists what can happen and lets it happen; `host.py` is one process in it. `schedule.py` picks by a seeded
generator. `checker.py` judges what a run leaves behind (`record.py`), and shares no code with what it judges:
`plain.py` and its neighbours interpret a flow without parallelism, batches or snapshots. `breaks.py` breaks the rules
one by one.

`simulate.py` and `narrate.py` are for users. The package `proof`, which is not installed, runs the same world over
generated flows, and over every schedule of small graphs.
"""
