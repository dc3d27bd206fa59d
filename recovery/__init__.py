"""recovery: how a run survives. Pure, but for `stores/`: methods take what happened and return what to do.

One task: `alignment.py` says when it captures, `channel_log.py` keeps what was in its channels at the cut,
`channels.py` counts and digests both ends, `rounds.py` keeps iterations apart. `messages.py` is what travels in a
channel, `effects.py` what a task's core tells its driver.

The whole: `coordinator.py` starts, completes and aborts epochs of one attempt, `termination.py` reads off a cut that a
loop has run dry, `supervisor.py` claims attempts in the job's chain. `orders.py` is what these tell their driver.

A cut: `cut.py` is what it holds, `restored.py` what one task takes back, `rescale.py` who takes what; `stores/` keeps
it in a folder.
"""
