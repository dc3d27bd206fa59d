"""Sources and sinks: in memory, in files, in databases. `contracts/` checks any of them."""
