"""The runtimes of the built-in operators, one a file. `graphs/kinds.py` describes them, `base.py` is common to all."""
