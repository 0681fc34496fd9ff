"""A small state, saved and restored through a real workspace, with a clock that a test moves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tasks.training.checkpoint_manifest import Position
from tasks.training.checkpoints import Checkpoints
from tests.tasks.training.attempts import Attempt


@dataclass
class Settings:
    """`conf.schema.Checkpoint` with short intervals."""

    every_steps: int = 10
    every_minutes: float = 15.0
    keep: int = 2
    max_failure_minutes: float = 60.0


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def forward(self, minutes: float) -> None:
        self.now += 60 * minutes


def state_at(step: int, width: int = 3) -> dict[str, Any]:
    """A state whose every value tells its step."""
    params = {"wte": jnp.full((4, width), step, jnp.float32), "gate": jnp.full(2, step, jnp.bfloat16)}
    return {"params": params, "step": jnp.int32(step)}


def like(state: Any) -> Any:
    """Shapes, dtypes and shardings of a state."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)


def position(step: int, val_bpb: float | None = None) -> Position:
    return Position(step=step, rows=step * 2, tokens=step * 6, wall_seconds=1.5, val_bpb=val_bpb)


class Run:
    """One attempt at a run that only saves and restores."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.attempt = Attempt(directory)
        self.clock = Clock()
        self.records = self.attempt.out.path / "scratch" / "records"
        self.checkpoints = Checkpoints(
            self.attempt.out.path,
            self.attempt.out.directories,
            Settings(**settings),
            self.attempt.out.log,
            self.clock,
        )

    @property
    def lines(self) -> list[str]:
        return self.attempt.lines

    def save(self, step: int, val_bpb: float | None = None, state: Any = None) -> bool:
        """Save and wait for it; whether it succeeded."""
        self.checkpoints.save(state_at(step) if state is None else state, position(step, val_bpb), [])
        return self.checkpoints.finish(60)

    def restore(self, width: int = 3) -> tuple[Any, Position] | None:
        return self.checkpoints.restore(like(state_at(0, width)), self.records)

    def steps(self) -> list[int]:
        """Steps that the store believes in."""
        return [int(item.name.rpartition("/")[2]) for item in self.attempt.out.remote_directories()]

    def stored(self, step: int) -> Path:
        """Where the store keeps the checkpoint of a step."""
        return next((self.attempt.stored / "checkpoints").glob(f"{step:08d}~*"))
