"""backedge.engine.on_ray.actor: the actors that host tasks: one loop per actor, its tasks, threads and clock."""
