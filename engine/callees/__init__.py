"""What `map_async` may call: services and models that are asked again, in `retry`, `Chat` and `Pool`."""
