"""engine.on_ray.transport: what travels between actors: mailboxes, frames, channel ends, spilled batches."""
