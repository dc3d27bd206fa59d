"""recovery.stores: cuts, and the chain of a job, on disk.

    ROOT/JOB/job.json                                       who the job is
    ROOT/JOB/chain/00000001.json                            starts of attempts, and manifests, in their order
    ROOT/JOB/past/00000256.json                             what is left of the first entries of a long chain
    ROOT/JOB/graph-HASH.json                                what the graph was: operators, edges, loops
    ROOT/JOB/epoch=7/attempt=2/manifest.json                the files that make the cut, its tasks and channels
    ROOT/JOB/epoch=7/attempt=2/table=state/operator=rank/rank.0.parquet
    ROOT/JOB/epoch=7/attempt=2/table=state/operator=rank/rank.0-1.parquet           further key groups of a large state
    ROOT/JOB/epoch=last/attempt=2/...                       last states of tasks that have ended

`local.py` is the store, `opening.py` how it is opened. `folder.py` makes files durable and follows no link, `names.py`
makes every name, `documents.py` seals what is JSON. `chain.py` is the numbered list and `links.py` what is in it,
`manifests.py` what a cut consists of. `task_files.py` turns a snapshot into tables and back: `state_table.py` keyed
state, `record_tables.py` the rest, `parquet_tables.py` Parquet.
"""

from __future__ import annotations
