"""backedge.engine.on_ray: flows on a Ray cluster.

- `api/`: what users call (`starting.py`) and what they hold during a run (`job_handle.py`).
- `supervisor/`: the actor that leads a run. It carries out the orders of the coordinator and the supervisor of
  `recovery` with a crew of actors.
- `actor/`: the actors that host the tasks. In each, one loop (`actor_loop.py`) serves one mailbox and its tasks.
- `transport/`: messages between them, over sockets and shared memory within a host and ZeroMQ between hosts. Ray starts
  processes and reports when one dies.

What is called of Ray is in `cluster.py`, except for its datasets (`ray_data.py`).
"""
