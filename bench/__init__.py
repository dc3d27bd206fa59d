"""What it costs: every claim of speed, beside a peer that was measured in the same run.

    python -m bench NAME [--seed N] [--repeats N] [--peer FILE]

One file a benchmark, named as it is called; `__main__.py` lists them. Each has `run(options) -> Report`. Whatever is
compared is measured in turns (`measuring.interleaved`), so that what else the machine does falls on all of it, and told
as the median of at least five turns. The clock is the CPU time of the process wherever no other process takes part. The
last line of the output is one JSON object: `ours`, `peers`, and `ratios`, which say how many times as fast ours is, so
that larger is better; `ok` says whether every limit holds, and so does the exit code.

- `workloads.py`: what a peer is given. `peers/`: the peers; `--peer FILE` puts another one in the place of the first.
- `ours.py`: runs flows on Ray and measures inside of the run. `session.py`: the Ray they run on. `notes.py`: what user
  functions write down meanwhile.
- `--seconds` and `--records` make a trial short. What is too short to count then misses its limit.

A figure without its peer says little about the code and much about the machine. `RESULTS.md` keeps figures with their
date, the machine and the call that repeats them.
"""
