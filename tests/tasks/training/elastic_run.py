"""Trains part of a run on each of several meshes of emulated devices; run as a program by test_elastic.

    python -m tests.tasks.training.elastic_run <directory of make_inputs> <directory of attempts> 8x1x1:6 2x2x1:12 …

Each `data x fsdp x tensor : step` is one attempt, stopped after that step.
"""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from tasks.stage import Preempted
from tasks.store import Store
from tests.tasks.training.attempts import Attempt
from tests.tasks.training.tiny import BASE_INPUTS, ELASTIC, config

DEVICES = 8


def main(inputs: Path, attempts: Path, legs: list[str]) -> None:
    """Run the legs one after another."""
    store = Store(inputs / "store", cache_dir=inputs / "cache")
    made = {role: store.artifact(role, next((inputs / "store" / role).iterdir()).name) for role in BASE_INPUTS}
    for leg in legs:
        shape, _, stop_after = leg.partition(":")
        sizes = [int(size) for size in shape.split("x")]
        attempt = Attempt(attempts)
        train(made, attempt, sizes, int(stop_after))
        attempt.end()


def train(made: dict, attempt: Attempt, sizes: list[int], stop_after: int) -> None:
    """One attempt on the first prod(sizes) devices."""
    import jax

    from model.mesh import make_mesh
    from tasks import base
    from tasks.training.loop import Loop
    from tasks.training.placement import Placement

    def stop(event: dict) -> None:
        if event.get("step") == stop_after and "loss" in event:
            attempt.stop.request("a stop of the test")

    attempt.listeners.append(stop)
    mesh = make_mesh(*sizes, devices=jax.devices()[: math.prod(sizes)])
    Placement.choose = lambda config, _: Placement(config, mesh)  # type: ignore[method-assign]
    plan = base.plan_run(config(*ELASTIC), made)
    with suppress(Preempted):
        Loop(plan, attempt.out).run(lambda: base.start(plan, 0))


if __name__ == "__main__":
    # Three programs are compiled for a few steps each: how fast they are does not matter.
    flags = f"--xla_force_host_platform_device_count={DEVICES} --xla_backend_optimization_level=0"
    if metadata.version("jaxlib").startswith("0.10."):  # later versions do not know it, and abort
        flags += " --xla_cpu_use_fusion_emitters=false"
    os.environ["XLA_FLAGS"] = flags
    os.environ["JAX_PLATFORMS"] = "cpu"
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
