"""What drives the core of one task, on Ray and in the simulator: channels, turns, snapshots, load."""
