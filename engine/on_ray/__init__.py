"""engine.on_ray: flows on a Ray cluster.

`starting.py` is where users come in, `job.py` what they hold while it runs. A supervisor's actor (`overseer.py`,
`supervising.py`) carries out what coordinator and supervisor of `recovery` say, with a crew of actors (`crew.py`,
`actor.py`) that host the tasks. In each of them one loop (`loop.py`) serves one mailbox (`mailbox.py`) and its tasks
(`host.py`). Data travels over ZeroMQ (`frames.py`, `flow.py`), Ray starts processes, and tells when one dies. Every
call of Ray's stands in `cluster.py`.
"""
