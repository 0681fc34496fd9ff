"""One optimizer step as one compiled program: micro-batches, gradient, optimizer, schedules and checksums.

The state is donated: the step writes the new one where the old one was. Nothing comes from the host but the rows;
learning rates, momentum and decay are functions of the step counter inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from model.checksum import row_checksums
from model.gpt import Params, init
from model.loss import loss_sum
from model.mesh import rows_sharding, state_shardings
from model.optimizer import make_optimizer
from model.recipe import Compute, GPTConfig, Recipe, Schedule
from model.schedules import Dials, dials
from model.sizing import Sizing

Metrics = dict[str, jax.Array]
TrainStep = Callable[["TrainState", jax.Array], tuple["TrainState", Metrics]]


class TrainState(NamedTuple):
    """All that a run carries from step to step."""

    step: jax.Array  # int32, steps done
    params: Params
    opt_state: Any


@dataclass(frozen=True)
class Training:
    """How one run moves the parameters; base and SFT differ in nothing else."""

    iterations: int
    schedule: Schedule
    weight_decay: float  # Muon's at step 0
    batch_lr_scale: float = 1.0  # of rates that grow with the batch
    lr_scale: float = 1.0  # of every rate

    @classmethod
    def base(cls, recipe: Recipe, sizing: Sizing) -> Training:
        """Pretraining as sized."""
        return cls(sizing.iterations, recipe.schedule, sizing.weight_decay, sizing.batch_lr_scale)

    @classmethod
    def sft(cls, recipe: Recipe, iterations: int, lr_scale: float) -> Training:
        """Fine-tuning: the recipe's rates times lr_scale, no weight decay [nanochat's chat_sft]."""
        return cls(iterations, recipe.sft_schedule, weight_decay=0.0, lr_scale=lr_scale)


def init_state(config: GPTConfig, training: Training, seed: int) -> TrainState:
    """The state of step 0."""
    params = init(config, seed)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer(config, training, Compute()).init(params))


def optimizer(
    config: GPTConfig, training: Training, compute: Compute, mesh: Mesh | None = None
) -> optax.GradientTransformationExtraArgs:
    """The recipe's parameter groups at this run's rates; `update` takes `dials`."""
    return make_optimizer(
        config.recipe, config.n_embd, training.batch_lr_scale, training.lr_scale, compute.polar_dtype, mesh
    )


def make_train_step(config: GPTConfig, compute: Compute, training: Training, mesh: Mesh | None = None) -> TrainStep:
    """The compiled step: (state, rows int32 [grad_accum_steps, rows, seq_len + 1]) -> (new state, metrics).

    A row is seq_len + 1 words: w ≥ 0 is token w, w < 0 is token ~w that is no target. The gradient is the mean over all
    targets of the step, however they are spread over micro-batches and devices; a step without targets has loss 0 and
    no gradient. `state` must not be used afterwards. Metrics, on the device:

        loss, grad_norm, lr_mult   float32
        n_targets                  int32
        row_checksums              uint32 [grad_accum_steps, rows], of the rows that the loss has read
    """

    def train_step(state: TrainState, rows: jax.Array) -> tuple[TrainState, Metrics]:
        total, n_targets, grads, checksums = _accumulate(state.params, rows, config, compute, mesh)
        share = 1 / jnp.maximum(n_targets, 1).astype(jnp.float32)
        grads = jax.tree.map(lambda g: g * share, grads)
        settings = dials(training.schedule, training.iterations, training.weight_decay, state.step)
        params, opt_state = apply_gradients(
            optimizer(config, training, compute, mesh), state.params, grads, state.opt_state, settings
        )
        metrics = {
            "loss": total * share,
            "n_targets": n_targets,
            "grad_norm": optax.global_norm(grads),
            "lr_mult": settings.lr_mult,
            "row_checksums": checksums,
        }
        return TrainState(state.step + 1, params, opt_state), metrics

    if mesh is None:
        one = SingleDeviceSharding(jax.devices()[0])  # said outright: a restored state is not a new program
        return jax.jit(train_step, in_shardings=one, out_shardings=one, donate_argnums=0)
    state = state_shardings(jax.eval_shape(lambda: init_state(config, training, 0)), config, mesh)
    return jax.jit(
        train_step,
        in_shardings=(state, rows_sharding(mesh)),
        out_shardings=(state, NamedSharding(mesh, PartitionSpec())),
        donate_argnums=0,
    )


def inputs_and_targets(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """tokens and targets int32 [..., seq_len] of rows [..., seq_len + 1]; −1 where a word is no target."""
    rows = rows.astype(jnp.int32)
    words, following = rows[..., :-1], rows[..., 1:]
    return jnp.where(words < 0, ~words, words), jnp.where(following < 0, -1, following)


def apply_gradients(
    optimizer: optax.GradientTransformationExtraArgs, params: Params, grads: Params, opt_state: Any, settings: Dials
) -> tuple[Params, Any]:
    """Parameters and optimizer state after one update."""
    updates, opt_state = optimizer.update(grads, opt_state, params, dials=settings)
    return optax.apply_updates(params, updates), opt_state


def _accumulate(
    params: Params, rows: jax.Array, config: GPTConfig, compute: Compute, mesh: Mesh | None
) -> tuple[jax.Array, jax.Array, Params, jax.Array]:
    """Sums over micro-batches of loss, targets and gradients (float32), and the checksums of their rows."""

    def micro_batch(sums: Any, rows: jax.Array) -> tuple[Any, jax.Array]:
        tokens, targets = inputs_and_targets(rows)
        run = jax.value_and_grad(loss_sum, has_aux=True)
        (loss, n_targets), grads = run(params, tokens, targets, config, compute, mesh)
        return jax.tree.map(jnp.add, sums, (loss, n_targets, grads)), row_checksums(rows)

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    (loss, n_targets, grads), checksums = jax.lax.scan(micro_batch, (jnp.float32(0), jnp.int32(0), zeros), rows)
    return loss, n_targets, grads, checksums
