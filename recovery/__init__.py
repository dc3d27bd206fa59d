"""backedge.recovery: how a run survives. Pure except for `stores/` and `spark/`: methods take an event, and return
effects.

`protocol/` is everything the protocol says, of a task and of a run. `cut/` defines what a cut consists of, `restore/`
plans and makes what each task takes from one, for the same parallelism and graph or for others. `stores/` keeps cuts
and the chain of a job. `spark/` is Spark's view of what a run has left behind.
"""
