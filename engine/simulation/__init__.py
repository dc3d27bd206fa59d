"""engine.simulation: the cores of the protocol under seeded schedules and faults, and under every schedule there is.

`world.py` lists what can happen and lets it happen; `host.py` is one process in it. `schedule.py` picks by a seeded
generator, and `explorer.py` everything in turn, on the graphs of `tiny_graphs.py`. `cases.py` makes flows of every
topology, `runner.py` runs them by the thousand, `breaks.py` breaks the rules one by one.

`checker.py` judges what a run leaves behind (`record.py`), and shares no code with what it judges: `plain.py` and its
neighbours interpret a flow without parallelism, batches or snapshots.

`simulate.py` is for users: their own flow, under the same schedules.
"""
