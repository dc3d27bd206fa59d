"""engine.on_ray: flows on a Ray cluster.

- `api/`: where users come in (`starting.py`) and what they hold while a run goes on (`job_handle.py`).
- `supervisor/`: the actor that leads a run. It carries out the orders of the coordinator and the supervisor of
  `recovery` with a crew of actors.
- `actor/`: the actors that host the tasks. In each, one loop (`actor_loop.py`) serves one mailbox and its tasks.
- `transport/`: what travels between them. Data goes over ZeroMQ; Ray starts processes and reports when one dies.

Every call of Ray's stands in `cluster.py`.
"""
