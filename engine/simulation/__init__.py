"""backedge.engine.simulation: the cores of the protocol under seeded schedules and faults, for users' own flows.

In `world/`, `world.py` lists what can happen next and carries it out, `world_ports.py` is what the drivers see of it,
and `host.py` is one process in it. `schedule.py` chooses with a seeded generator, `fault_injection.py` lets things go
wrong. In `checker/`, `checker.py` judges what a run leaves behind (`record.py`), and shares no code with what it
judges. `breaks/` breaks the rules one by one.

`simulate.py` and `narrate.py` are for users. The package `proof`, which is not installed, runs the same world with
generated flows, whose output it knows (`proof/plain/`), and with every schedule of small graphs.
"""
