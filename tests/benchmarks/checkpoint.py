"""What a checkpoint costs, and how long one takes after SIGTERM, on a local root or in a bucket on loopback.

    python tests/benchmarks/checkpoint.py --scale rehearsal|d12 --vocab 32768 [--bucket] [--steps 20]

Parameters and optimizer state have the shapes and dtypes of the scale, and random values. After SIGTERM: seconds until
the marker is committed, with nothing else to do, as in a run whose step has just ended. With --steps, also the
processor seconds of one checkpoint beside those of the training steps between two of them (half of
checkpoint.every_steps).
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp

from conf.compose import compose
from conf.schema import Config
from conf.sizing import sized
from model.recipe import Compute
from model.sizing import Sizing
from model.step import Training, TrainState, init_state, make_train_step
from tasks.stage import StopSignal
from tasks.store.events import Events
from tasks.store.lease import Lease
from tasks.store.roots import open_root
from tasks.store.stopping import Stopper
from tasks.store.workspace import Workspace
from tasks.training.checkpoint_manifest import Position
from tasks.training.checkpoints import Checkpoints
from tests.gcs_server import GcsServer

WHERE = "base/benchmark"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="rehearsal")
    parser.add_argument("--vocab", type=int, help="default: tokenizer.vocab_size of the config")
    parser.add_argument("--bucket", action="store_true", help="a GCS protocol server on loopback instead of the disk")
    parser.add_argument("--steps", type=int, default=0, help="training steps to measure; 0: none")
    args = parser.parse_args()
    config = compose([f"scale={args.scale}"])
    sizing = sized(config, args.vocab)
    training = Training.base(config.recipe, sizing)
    with tempfile.TemporaryDirectory() as folder, place(Path(folder), args.bucket) as (url, server):
        root = open_root(url)
        lease = Lease(root, WHERE, seconds=60)
        lease.acquire()
        stop = StopSignal()
        out = Workspace(root, WHERE, lease, Path(folder) / "work", Events(lambda event: None), stop)
        checkpoints = Checkpoints(out.path, out.directories, config.base.checkpoint, print)
        state = filled(init_state(sizing.config, training, seed=0))
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        print(f"{args.scale}: {size / 2**20:.0f} MiB in {len(jax.tree.leaves(state))} arrays, {url.partition(':')[0]}")
        if args.steps:
            state = compare(state, config, sizing, training, checkpoints, args.steps)
        before = server.cpu_seconds() if server else 0
        commit(state, checkpoints, stop, out)
        if server:
            print(f"of the same cores the test's server took {server.cpu_seconds() - before:.1f} CPU s meanwhile")
        print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


@contextmanager
def place(folder: Path, bucket: bool) -> Iterator[tuple[str, GcsServer | None]]:
    """The address of an empty root, and the server that it is on."""
    if not bucket:
        yield str(folder / "root"), None
        return
    server = GcsServer(folder)
    server.start()
    with mock.patch.dict(os.environ, server.environment()):
        yield f"gs://{server.new_bucket()}/runs", server
    server.stop()


def filled(state: TrainState) -> TrainState:
    """The state with random values, also in the optimizer: zeros would be pages that nobody ever wrote."""
    keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves(state))))

    def fill(leaf: jax.Array) -> jax.Array:
        random = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.random.normal(next(keys), leaf.shape, leaf.dtype) if random else leaf

    return jax.block_until_ready(jax.tree.map(fill, state))


def compare(
    state: TrainState, config: Config, sizing: Sizing, training: Training, checkpoints: Checkpoints, steps: int
) -> TrainState:
    """Processor and wall seconds of a checkpoint beside those of the steps between two of them."""
    train_step = make_train_step(sizing.config, Compute(), training)
    rows = sizing.total_batch_tokens // sizing.config.seq_len
    batch = jax.random.randint(
        jax.random.key(1), (1, rows, sizing.config.seq_len + 1), 0, sizing.config.vocab_size, jnp.int32
    )
    state = jax.block_until_ready(train_step(state, batch)[0])  # compiled
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        state, metrics = train_step(state, batch)
        jax.block_until_ready(metrics)
    wall, cpu = (time.perf_counter() - started) / steps, (time.process_time() - cpu) / steps
    for warm in (False, True):  # the first save also imports and compiles
        begun, spent = time.perf_counter(), time.process_time()
        checkpoints.save(state, Position(1 + warm, 0, 0, 0.0), [])
        blocked = time.perf_counter() - begun
        assert checkpoints.finish(600)
        spent = time.process_time() - spent
    every = config.base.checkpoint.every_steps // 2
    print(f"one step: {wall:.3f} s, {cpu:.3f} CPU s; one checkpoint: blocks {blocked:.3f} s, {spent:.3f} CPU s")
    print(f"of {every} steps: blocked {blocked / (every * wall):.2%}, CPU {spent / (every * cpu):.2%}")
    return state


def commit(state: TrainState, checkpoints: Checkpoints, stop: StopSignal, out: Workspace) -> None:
    """SIGTERM to this process, then what the loop does once its step has ended."""
    control, _ = os.pipe()
    Stopper(stop, 600, lambda reason: os._exit(1)).listen(control)
    begun, spent = time.perf_counter(), time.process_time()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.wait(10)
    checkpoints.save(state, Position(7, 0, 0, 0.0), [])
    blocked = time.perf_counter() - begun
    assert checkpoints.finish(600)
    seconds, spent = time.perf_counter() - begun, time.process_time() - spent
    newest = out.remote_directories()[-1]
    assert newest.meta["position"]["step"] == 7
    print(
        f"SIGTERM to commit: {seconds:.1f} s, the first {blocked:.1f} s until the copy was made; {spent:.1f} CPU s; "
        f"{newest.size:,} bytes; load of the machine {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
