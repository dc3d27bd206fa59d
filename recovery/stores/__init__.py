"""backedge.recovery.stores: the cuts and the chain of a job, in a store: a local folder, or what a URI names.

    ROOT/JOB/job.json                                       who the job is
    ROOT/JOB/chain/00000001.json                            starts of attempts, and manifests, in their order
    ROOT/JOB/past/00000001.json                             what is needed of the first entries of a long chain
    ROOT/JOB/status.json                                    what is known about the run, as information
    ROOT/JOB/graph-HASH.json                                a graph: operators, edges, loops
    ROOT/JOB/epoch=7/attempt=2/manifest-00000003.json       the files of the cut, its tasks and channels
    ROOT/JOB/epoch=7/attempt=2/table=state/operator=rank/rank.0.parquet
    ROOT/JOB/epoch=7/attempt=2/table=state/operator=rank/rank.0-1.parquet           further key groups of a large state
    ROOT/JOB/epoch=last/attempt=2/...                       last states of tasks that have ended
    ROOT/JOB/constants/SHA256-RUN.constant                  the value of a constant of the flow, which cuts name
    ROOT/JOB/constants/BLAKE3-ATTEMPT.NUMBER.NAME.constant  a version that a task has published, which cuts name

`cut_store.py` is the store of a job; `cut_reader.py` reads it, and `cut_remover.py` removes what is dead. It calls a
`Store` (`store_protocol.py`), which `store_schemes.py` opens by the scheme of a URI; `object_store.py` is the one for
object stores, whose clients `object_client.py` makes. `folder_store.py` is the one for local folders, which makes files
durable and follows no link. `job_identity.py` creates job.json, `names.py` makes every name, `documents.py` seals JSON.
`chain.py` is the numbered list and `links.py` its entries, `manifests.py` the content of a cut.
`task_files.py` converts a snapshot to tables and back: `state_table.py` keyed state, `record_tables.py` the rest,
`parquet_tables.py` Parquet.
"""

from __future__ import annotations
