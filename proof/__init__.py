"""proof: the evidence that the protocol holds. Not part of the wheel; run it from a checkout.

`python -m proof run` simulates thousands of seeded schedules with faults over generated flows: `generated_flows.py`
makes flows of every topology out of the user code in `generated_steps.py`, and `runner.py` runs them.

`python -m proof explore` walks every schedule of the graphs in `tiny_graphs.py`, with every single crash point. Start
reading with `explorer.py`.
"""
