"""What it costs: every claim of speed, beside a peer that was measured in the same run.

    python -m bench NAME [--seed N] [--repeats N]

One file a benchmark, named as it is called; `__main__.py` lists them. Each has `run(seed, repeats) -> Report`. Whatever
is compared is measured in turns (`measuring.interleaved`), so that what else the machine does falls on all of it, and
told as the median of at least five turns. The clock is the CPU time of the process wherever no other process takes
part. The last line of the output is one JSON object; `ok` says whether every limit holds, and so does the exit code.

A figure without its peer says little about the code and much about the machine. `RESULTS.md` keeps figures with their
date, the machine and the call that repeats them.
"""
