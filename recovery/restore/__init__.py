"""What is restored from a cut, by which task, with the same graph and parallelism or with others."""
