"""backedge.engine.on_ray.supervisor: the actor that leads a run: attempts, orders, deaths, published output."""
