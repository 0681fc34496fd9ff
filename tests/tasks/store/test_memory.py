"""Freed memory that stays: no page is mapped anew when a program runs again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tasks.store.parent import PROJECT

PROGRAM = """
import resource, sys
from tasks.store.memory import keep_freed
if sys.argv[1] == "keep":
    assert keep_freed()
import jax, jax.numpy as jnp
step = jax.jit(lambda x: (x @ x.T) @ x)
x = jnp.ones((4096, 8))  # the first product is 64 MiB, 16,384 pages; glibc may keep 32 MiB of its own accord
counts = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
for _ in range(30):
    step(x).block_until_ready()
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(*(after - before for before, after in zip(counts, counts[1:])))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="malloc's options are glibc's")
def test_a_program_that_runs_again_finds_its_memory_mapped():
    assert faults("keep") < 1000 < 16_000 < faults("return")


def faults(how: str) -> int:
    """Page faults at least, in later calls of a program that needs 16,384 pages."""
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=True)
    return min(map(int, done.stdout.split()[2:]))
