"""What a run relies on in sources and sinks, as checks for their authors."""
