"""Documents are converted by several threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIRST_CONVERSIONS = """
import sys
from threading import Barrier, Thread
from msgspec import defstruct
from backedge.recovery.stores.shapes import converted

sys.setswitchinterval(1e-7)
for number in range(40):
    parts = [defstruct(f"Part{number}_{k}", [("text", str), ("numbers", dict[str, int])]) for k in range(30)]
    whole = defstruct(f"Whole{number}", [(f"field{k}", part) for k, part in enumerate(parts)])
    document = {f"field{k}": {"text": "a", "numbers": {"b": 1}} for k in range(30)}
    begin = Barrier(4)
    threads = [Thread(target=lambda: (begin.wait(), converted(document, whole))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.slow
def test_threads_may_convert_to_a_type_for_the_first_time_at_once():
    """The supervisor leads each pipeline in a thread. Without the lock the process dies of SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", FIRST_CONVERSIONS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
