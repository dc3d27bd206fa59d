"""backedge.engine.on_ray.api: what users call and hold: `start`, its checks, and the job that it returns."""
