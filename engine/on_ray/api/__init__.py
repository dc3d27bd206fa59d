"""engine.on_ray.api: what users call and hold: `start`, its checks, the job that it returns."""
