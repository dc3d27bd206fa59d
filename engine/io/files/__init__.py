"""Sources and sinks on files, and how fast sources are read.

The formats (`file_formats.py`) are sources and sinks like anyone's. A source falls into splits (`splits.py`): files,
ranges of big text files, row groups. They are listed once, before anything runs (`checks.py`), and dealt to the tasks.
A split is read block by block (`text_splits.py`, `parquet_split.py`) at a rate (`pace.py`), its rows fitted to declared
columns (`input_columns.py`), and what has been read is positions, from which a restored run reads on.

A sink writes transactions (`file_output.py`, `writers.py`) in two steps that each survive a crash at any point: a part
(`parts.py`, `parquet_part.py`) is made durable in a staging (`staging.py`) before the cut that lists it is complete,
and is published after, several cuts together (`rolls.py`). Where it publishes (`output_storage.py`) is a folder
(`folder_storage.py`, `disk.py`), from which it can be withdrawn (`withdrawing.py`), or a place in an object store
(`object_storage.py`).

`FileServices` (`services.py`) is all of it, as a task sees it.
"""
