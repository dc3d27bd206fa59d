"""proof: the evidence that the protocol holds. Not part of the wheel; run it from a checkout.

`python -m proof run` simulates thousands of seeded schedules with faults on generated flows: `generated_flows.py`
builds flows of every topology from the user code in `generated_steps.py`, and `runner.py` runs them.

`python -m proof explore` walks every schedule of the graphs in `tiny_graphs.py`, with every single crash point, and
of what graphs have in common: pipelines (`explored_pipelines.py`) and answers that are kept (`explored_answers.py`).
Start reading with `explorer.py`.

`plain/` judges these runs by what their flows mean.

`python -m proof transcript NAME` prints a short run in which one thing happens (`transcripts.py`).
"""
