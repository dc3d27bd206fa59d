"""backedge.recovery: how a run survives. Pure except for `stores/`: methods take an event and return effects or orders.

Per task: `alignment.py` decides when it captures, `channel_log.py` logs the batches in its channels at the cut,
`channels.py` counts and digests both ends, `rounds.py` separates the rounds of iterations. `messages.py` defines the
items of a channel, `effects.py` what a task's core asks of its driver.

Per run: `coordinator.py` starts, completes and aborts the epochs of an attempt, `termination.py` detects from a cut
that a loop has run dry, `supervisor.py` claims attempts in the job's chain. `orders.py` defines what they ask of their
driver.

A cut: `cut.py` defines its content, `restored.py` the part that one task restores, `rescale.py` redistributes it for
another parallelism; `stores/` keeps it in a folder.
"""
