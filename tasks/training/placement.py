"""Where the state and the rows of a run lie: on one device, or on a mesh by its partition rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from conf.errors import ConfigError
from conf.schema import Mesh as MeshConfig
from model.mesh import make_mesh, row_shards, rows_sharding, shard_state, state_shardings
from model.recipe import GPTConfig
from model.step import Training, init_state


@dataclass(frozen=True)
class Placement:
    """A mesh, or None for a single device."""

    config: GPTConfig
    mesh: Mesh | None

    @classmethod
    def choose(cls, config: GPTConfig, mesh: MeshConfig) -> Placement:
        """All devices of the job in the shape that is asked for; raises ConfigError where they do not fit it."""
        if len(jax.devices()) == 1 and max(mesh.data, mesh.fsdp, mesh.tensor) == 1:
            return cls(config, None)
        try:
            return cls(config, make_mesh(mesh.data, mesh.fsdp, mesh.tensor))
        except ValueError as error:
            raise ConfigError(f"{error}.") from error

    @property
    def row_shards(self) -> int:
        """Devices that get rows of their own."""
        return 1 if self.mesh is None else row_shards(self.mesh)

    def state_shapes(self, training: Training) -> Any:
        """ShapeDtypeStructs of a train state, with the shardings that it has here."""
        state = jax.eval_shape(lambda: init_state(self.config, training, 0))
        if self.mesh is None:
            one = SingleDeviceSharding(jax.devices()[0])
            shardings = jax.tree.map(lambda _: one, state)
        else:
            shardings = state_shardings(state, self.config, self.mesh)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state, shardings
        )

    def state_bytes(self, training: Training) -> int:
        """Bytes of a train state and its gradients on one device."""

        def held(leaf: Any) -> int:
            return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

        state = self.state_shapes(training)
        return sum(map(held, jax.tree.leaves(state))) + sum(map(held, jax.tree.leaves(state.params)))

    def create(self, make: Callable[[], Any], training: Training) -> Any:
        """The train state that `make` computes, compiled so that each device makes its own part alone."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.state_shapes(training))
        return jax.jit(make, out_shardings=shardings)()

    def put_state(self, state: Any) -> Any:
        """A state laid out as the training step takes it."""
        if self.mesh is None:
            return jax.device_put(state, jax.devices()[0])
        return shard_state(state, self.config, self.mesh)

    def put_rows(self, rows: np.ndarray) -> jax.Array:
        """Rows int32 [grad_accum_steps, rows, seq_len + 1]; every process passes all of them and keeps its own."""
        if self.mesh is None:
            return jax.device_put(rows)
        return jax.make_array_from_callback(rows.shape, rows_sharding(self.mesh), lambda index: rows[index])
