"""backedge.inspecting: look at jobs and cuts without the code of their flows. Nothing is unpickled here.

`jobs.py` finds jobs in a store and on a cluster. `cut_contents.py` reads what is in a cut as JSON text, and
`cut_diff.py` compares two cuts. `health.py` looks at the machine and the cluster.
"""
