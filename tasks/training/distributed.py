"""One training job in several processes: JAX started over all of them, and waiting that names who is late.

A collective waits for a missing process without a word. So the processes wait for each other on the host, through
JAX's key-value store, before they enter what all must enter; whoever is not there in time is named.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import multihost_utils

from tasks.training.rendezvous import Absent, Job, meet

START_SECONDS = 300.0  # hosts of a slice come up minutes apart
JAX_START_SECONDS = 60  # everybody has just called: JAX's own start takes a second


@dataclass(frozen=True)
class Team:
    """The processes of this run; one that is alone waits for nobody."""

    job: Job | None = None
    store: Any = None  # JAX's key-value store

    @property
    def leads(self) -> bool:
        """Whether this process writes what all of them made."""
        return self.job is None or self.job.rank == 0

    def wait(self, place: str, seconds: float) -> None:
        """Until all processes are at `place`, a name used once in a run; raises Absent naming who is not there."""
        if self.job is None:
            return
        self.store.key_value_set(f"encore/{place}/{self.job.rank}", "here")
        deadline = time.monotonic() + seconds
        missing = []
        for rank in range(len(self.job.names)):
            milliseconds = max(100, int((deadline - time.monotonic()) * 1000))
            try:
                self.store.blocking_key_value_get(f"encore/{place}/{rank}", milliseconds)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise Absent(f"{self.job.called(0)} is gone, seen at {place}: {error}") from error
                missing.append(rank)
        if missing:
            raise Absent(f"{self.job.called(*missing)} did not arrive at {place} within {seconds:g} s")

    def leave(self) -> None:
        """End JAX's part of the job; every process calls it."""
        if self.job is not None:
            jax.distributed.shutdown()


def start(job: Job | None, seconds: float = START_SECONDS) -> Team:
    """Meet the other processes and start JAX over all of them. Nothing may have touched a device before.

    Raises Absent after `seconds`, naming who is missing, and InputError when a process belongs to another job.
    """
    if job is None:
        return Team()
    meet(job, seconds)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # what CPUs speak; other devices ignore it
    jax.distributed.initialize(
        f"{job.coordinator}:{job.port}",
        num_processes=len(job.names),
        process_id=job.rank,
        initialization_timeout=JAX_START_SECONDS,
    )
    from jax._src.distributed import global_state  # JAX has no public handle of its key-value store

    return Team(job, global_state.client)


def to_host(tree: Any) -> Any:
    """Arrays that lie over all processes, as NumPy in every process; all of them must call it."""
    return multihost_utils.process_allgather(tree, tiled=True)
