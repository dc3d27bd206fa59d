"""How the C library, if it is glibc, hands out memory for the arrays of tasks: freed memory is kept, in huge pages."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

KEPT_BYTES_MAX = 256 << 20
_ARENA_BYTES = 64 << 20
_LARGEST_THRESHOLD = 32 << 20
_ADVISED_BYTES = 31 << 20
"""A block of this size comes from the memory that is kept."""


def keep_freed_memory() -> None:
    """Let the C library keep memory that was freed.

    It would return each array of columns to the kernel, which clears new memory page by page: in a copy of 8 MB that
    takes four times as long as copying.
    """
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
        mallopt(m_mmap_threshold, _LARGEST_THRESHOLD)
        mallopt(m_trim_threshold, KEPT_BYTES_MAX)
        # Arenas of other threads than the first one are given up piece by piece unless the pad is as large as a piece.
        mallopt(m_top_pad, _ARENA_BYTES)


def prefer_huge_pages() -> None:
    """Ask for huge pages in the memory that this thread uses first, as much as is kept (`keep_freed_memory`).

    The kernel needs 45 ms for 96 MB of new memory in pages of 4 KB, and 15 in pages of 2 MB. Asking takes only
    addresses, but each page that is touched later is used whole.
    """
    library: Any = ctypes.CDLL(None)
    huge = getattr(mmap, "MADV_HUGEPAGE", None)
    if huge is None or not hasattr(library, "mallopt"):
        return
    library.malloc.argtypes, library.malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    library.free.argtypes = (ctypes.c_void_p,)
    library.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    blocks: list[int] = []
    for _ in range(KEPT_BYTES_MAX // _ADVISED_BYTES):
        block = library.malloc(_ADVISED_BYTES)
        if block is None:
            break
        blocks.append(block)
        start = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
        library.madvise(start, (block + _ADVISED_BYTES - start) // mmap.PAGESIZE * mmap.PAGESIZE, huge)
    for block in blocks:
        library.free(block)
