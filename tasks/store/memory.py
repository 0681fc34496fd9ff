"""Memory that a stage has freed stays with its process, for the next step to use."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # malloc.h


def keep_freed() -> bool:
    """Have glibc keep what is freed; False where another C library runs. Call before JAX has started its threads.

    XLA's CPU client takes the temporaries of a program from malloc at every call, and glibc returns as much to the
    system at once: each page is then cleared and mapped anew, 178,000 of them or 0.5 to 0.9 s in a step of 6 s
    (tests/benchmarks/train_step.py). One arena, since the others map what does not fit into them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return all(mallopt(option, value) for option, value in ((M_TRIM_THRESHOLD, -1), (M_MMAP_MAX, 0), (M_ARENA_MAX, 1)))
