"""Tables of databases as sources and sinks.

A sink commits the rows of a cut and a marker of it in one transaction (`marked_output.py`): the marker makes a repeated
commit harmless (`commit_ledger.py`). PostgreSQL can also prepare the rows when the cut is taken (`prepared_writer.py`).
A source reads a table by ranges of a key (`key_ranges.py`).

`postgres_table.py` and `sqlite_table.py` are what users name. psycopg is imported when first used, and only here.
"""
