"""proof.plain: judges a simulated run by what its flow means.

`interpreter.py` and its neighbours interpret a flow without parallelism, batches or snapshots, and share no code with
what they judge. `judge.py` compares a run with them: its output (`plain_output.py`), and each cut by the theorem of
Chandy and Lamport (`theorem.py`).
"""
