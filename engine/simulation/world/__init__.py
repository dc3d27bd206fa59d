"""The simulated world: processes, network, store, and what goes wrong with them."""
