"""Where the memory of a task's arrays comes from: what was freed is used again, and it is asked for in huge pages."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other settings")


def printed_by(script: str, *arguments: str) -> list[int]:
    """The numbers that a process of its own prints."""
    run = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return list(map(int, run.stdout.split()))


FAULTS = """
import resource, threading
import numpy as np
from backedge.engine.on_ray.actor.task_memory import keep_freed_memory

def copy(found):
    array = np.ones(131_072)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        copies = [array.copy() for _ in range(64)]
        del copies
    found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

def copy_in_a_thread():
    found = []
    for _ in range(2):
        copy(found)
    print(found[1])

for prepare in (None, keep_freed_memory):
    if prepare is not None:
        prepare()
    thread = threading.Thread(target=copy_in_a_thread)
    thread.start()
    thread.join()
"""


@pytest.mark.slow
def test_memory_of_freed_columns_is_used_again_instead_of_new_memory_of_the_kernel():
    before, after = printed_by(FAULTS)
    assert before > 1_000
    assert after < 100


ADVISED = """
import sys, threading
import numpy as np
from backedge.engine.on_ray.actor.task_memory import keep_freed_memory, prefer_huge_pages

def is_advised(address):
    inside = False
    for line in open("/proc/self/smaps"):
        name, *rest = line.split()
        if "-" in name:
            start, end = (int(part, 16) for part in name.split("-"))
            inside = start <= address < end
        elif inside and name == "VmFlags:":
            return "hg" in rest

def count(asks):
    if asks:
        prefer_huge_pages()
    arrays = [np.ones(131_072) for _ in range(64)]
    print(sum(is_advised(array.ctypes.data) for array in arrays))

keep_freed_memory()
thread = threading.Thread(target=count, args=(len(sys.argv) > 1,))
thread.start()
thread.join()
"""


@pytest.mark.slow
def test_arrays_of_a_task_are_in_memory_for_which_huge_pages_are_asked_if_the_kernel_has_any():
    has_huge_pages = Path("/sys/kernel/mm/transparent_hugepage").exists()
    assert printed_by(ADVISED) == [0]
    (asked,) = printed_by(ADVISED, "ask")
    assert (asked >= 60) == has_huge_pages
