"""The runtimes of the built-in operators, one per file. `graphs/kinds.py` defines them, `base.py` is their base."""
