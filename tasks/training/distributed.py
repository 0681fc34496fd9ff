"""One training job in several processes: JAX started over all of them, and what they must decide alike.

Every process runs the same loop on its own devices. What one of them alone can know (that it was asked to stop, that a
checkpoint is due) is voted on, as a tiny computation over all of them, so that all read the same answer for the same
step. What has to be whole (a checkpoint, the weights) is gathered on the first process, the only one that writes.

A collective waits for a missing process without a word. So before one that some may reach late, the processes wait
for each other on the host, through JAX's key-value store, and whoever is not there in time is named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tasks.hosts.job import Absent, Job
from tasks.hosts.meeting import Meeting
from tasks.stage import InputError, Preempted, StopSignal

JAX_START_SECONDS = 60  # everybody has just called: JAX's own start takes a second
PATIENCE_SECONDS = 3600.0  # for the slowest host to restore, compile, evaluate or save
SHUTDOWN_SECONDS = 60
Wish = Callable[[], bool]


class Alone:
    """A single process, which asks nobody. Starts nothing."""

    leads = True

    def ask(self, *wishes: Wish) -> Callable[[], list[bool]]:
        """Which of these some process wishes, known when the result is called."""
        return lambda: [wish() for wish in wishes]

    def shared_stop(self, stop: StopSignal) -> StopSignal:
        """A stop signal that is given when one of the processes has it. All must look at it in the same places."""
        return stop

    def on_first(self, tree: Any, mesh: Mesh | None) -> tuple[Any, Mesh | None]:
        """The arrays whole in the first process, and the mesh they lie on there; None in the others."""
        return tree, mesh

    def wait(self, place: str) -> None:
        """Until all processes are at `place`, a name used once in a run; raises Absent naming who is not there."""


class Team:
    """The processes of a job after JAX has started over them."""

    def __init__(self, meeting: Meeting, client: Any) -> None:
        """`client`: of JAX's key-value store."""
        self.job, self._client = meeting.job, client
        devices = sorted(jax.devices(), key=lambda device: device.process_index)
        mesh = Mesh(np.array(devices).reshape(len(self.job.names), -1), ("process", "device"))
        self._by_process = NamedSharding(mesh, PartitionSpec("process"))

    @property
    def leads(self) -> bool:
        """Whether this process writes what all of them made."""
        return self.job.leads

    def ask(self, *wishes: Wish) -> Callable[[], list[bool]]:
        """As `Alone.ask`. The vote is put on the devices' queue now: reading it waits for what was queued before."""
        mine = np.array([[wish() for wish in wishes]])
        shape = (len(self.job.names), len(wishes))
        votes = _everywhere(jax.make_array_from_process_local_data(self._by_process, mine, shape))
        return lambda: [bool(column.any()) for column in np.asarray(votes).T]

    def shared_stop(self, stop: StopSignal) -> StopSignal:
        """As `Alone.shared_stop`."""
        return SharedStop(self, stop)

    def on_first(self, tree: Any, mesh: Mesh | None) -> tuple[Any, Mesh | None]:
        """As `Alone.on_first`, as NumPy arrays; one after the other, so that no device holds two of them whole."""
        return jax.tree.map(self._bring, tree), None

    def _bring(self, array: jax.Array) -> np.ndarray | None:
        whole = _everywhere(array)
        return np.asarray(whole) if self.leads else None

    def place(self, whole: np.ndarray | None, like: jax.ShapeDtypeStruct) -> jax.Array:
        """An array laid out as `like`, from the whole one that the first process has."""
        # As bits: JAX sends by adding zeros, which would make 0.0 of -0.0.
        bits = np.dtype(f"u{like.dtype.itemsize}")
        sent = np.zeros(like.shape, bits) if whole is None else np.asarray(whole).view(bits)
        arrived = np.asarray(multihost_utils.broadcast_one_to_all(sent)).view(like.dtype)
        return jax.make_array_from_callback(like.shape, like.sharding, lambda index: arrived[index])

    def tell(self, message: bytes) -> bytes:
        """The first process's message, in every process."""
        size = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
        sent = np.frombuffer(message, np.uint8) if self.leads else np.zeros(size, np.uint8)
        return np.asarray(multihost_utils.broadcast_one_to_all(sent)).tobytes()

    def wait(self, place: str, seconds: float = PATIENCE_SECONDS) -> None:
        """As `Alone.wait`."""
        self._client.key_value_set(f"encore/{place}/{self.job.rank}", "here")
        deadline = time.monotonic() + seconds
        missing = []
        for rank in range(len(self.job.names)):
            milliseconds = max(100, int((deadline - time.monotonic()) * 1000))
            try:
                self._client.blocking_key_value_get(f"encore/{place}/{rank}", milliseconds)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise Absent(f"{self.job.called(0)} is gone, seen at {place}: {error}") from error
                missing.append(rank)
        if missing:
            raise Absent(f"{self.job.called(*missing)} did not arrive at {place} within {seconds:g} s")


def _everywhere(array: jax.Array) -> jax.Array:
    """The array whole on every device of its mesh; queued, not waited for."""
    assert isinstance(array.sharding, NamedSharding)
    return jax.jit(_same, out_shardings=NamedSharding(array.sharding.mesh, PartitionSpec()))(array)


def _same(array: jax.Array) -> jax.Array:
    return array


class SharedStop(StopSignal):
    """A stop that one process was asked for and all agree on."""

    def __init__(self, team: Team, own: StopSignal) -> None:
        super().__init__()
        self._team, self._own = team, own

    @property
    def requested(self) -> bool:
        """Whether any process was asked; all of them must call it."""
        [asked] = self._team.ask(lambda: self._own.requested)()
        if asked:
            self.request(self._own.reason or "a stop that another host was asked for")
        return asked


@contextmanager
def together(meeting: Meeting | None) -> Iterator[Alone | Team]:
    """JAX over all processes that have met, until each is done or all have agreed to stop; nothing for a single one.

    Nothing may have touched a device before (KNOWN_FAILURES B51).
    """
    if meeting is None:
        yield Alone()
        return
    job = meeting.job
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # what CPUs speak; other devices ignore it
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM away from `tasks.store.stopping` (B10)
    jax.distributed.initialize(
        f"{job.coordinator}:{job.port}",
        num_processes=len(job.names),
        process_id=job.rank,
        initialization_timeout=JAX_START_SECONDS,
        shutdown_timeout_seconds=SHUTDOWN_SECONDS,
    )
    from jax._src.distributed import global_state  # JAX has no public handle of its key-value store

    check_order(job, jax.process_index(), jax.process_count())
    try:
        yield Team(meeting, global_state.client)
    except Absent:
        raise
    except Preempted:
        leave(meeting)
        raise
    leave(meeting)


def check_order(job: Job, process: int, count: int) -> None:
    """Raise InputError unless JAX counts the processes as the job does: a TPU slice has an order of its own."""
    if (process, count) != (job.rank, len(job.names)):
        raise InputError(
            f"{job.called(job.rank)} of {len(job.names)} is process {process} of {count} to JAX: name all hosts of the "
            "slice in its own order, or set hardware.hosts.names=auto."
        )


def leave(meeting: Meeting) -> None:
    """End JAX's part of the job together: the first process coordinates it, and would end the others by going first."""
    meeting.disperse()
    jax.distributed.shutdown()
