"""Tables of the lakehouse as sources and sinks: Delta and Iceberg.

A table is files and a log of its versions. A sink adds the rows of a cut and their marker by one commit
(`lake_table.py`); a source reads the files of one version (`version_files.py`). `new_columns.py` says what becomes of
columns that a table lacks. The packages of the two formats are imported when first used, and only here.
"""
