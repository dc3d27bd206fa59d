"""backedge.engine.on_ray.transport: messages between actors: mailboxes, frames, control messages, spilled batches."""
