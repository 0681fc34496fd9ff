"""Learning rate, Muon's momentum and Muon's weight decay as functions of the step, for use inside the compiled step.

Steps are whole numbers until the last division, so float32 gives the same value at step 6,000 as at step 6.
Formulas: nanochat's base_train and chat_sft (commits 92d63d4 and 324e69c).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from model.recipe import Schedule


class Dials(NamedTuple):
    """What the optimizer is set to for one step; float32 scalars."""

    lr_mult: jax.Array  # of every learning rate
    momentum: jax.Array  # Muon's
    weight_decay: jax.Array  # Muon's


def dials(schedule: Schedule, iterations: int, weight_decay: float, step: jax.Array) -> Dials:
    """The values for step 0 … iterations − 1 (int32 scalar); `weight_decay` is Muon's at its largest."""
    return Dials(
        lr_mult(schedule, iterations, step),
        muon_momentum(schedule, iterations, step),
        weight_decay * decay_shape(schedule, iterations, step),
    )


def lr_mult(schedule: Schedule, iterations: int, step: jax.Array) -> jax.Array:
    """(step + 1) / warmup_steps; then 1; over the warm-down linear from 1 to final_fraction at step `iterations`."""
    remaining = _warmdown_remaining(schedule, iterations, step)
    final = schedule.final_fraction
    warm = _ratio(step + 1, max(schedule.warmup_steps, 1))
    return jnp.where(step < schedule.warmup_steps, warm, remaining + (1 - remaining) * final)


def muon_momentum(schedule: Schedule, iterations: int, step: jax.Array) -> jax.Array:
    """Linear from start to peak over the momentum warm-up, then the peak, over the warm-down linear to final."""
    remaining = _warmdown_remaining(schedule, iterations, step)
    start, peak, final = schedule.momentum_start, schedule.momentum_peak, schedule.momentum_final
    warm = _ratio(step, max(schedule.momentum_warmup_steps, 1))
    rising = start + (peak - start) * warm
    return jnp.where(step < schedule.momentum_warmup_steps, rising, final + (peak - final) * remaining)


def decay_shape(schedule: Schedule, iterations: int, step: jax.Array) -> jax.Array:
    """From 1 at step 0 to 0 at step `iterations`: ½(1 + cos(π step / iterations)), or a line."""
    done = _ratio(step, iterations)
    return 0.5 * (1 + jnp.cos(jnp.pi * done)) if schedule.decay == "cosine" else 1 - done


def _warmdown_remaining(schedule: Schedule, iterations: int, step: jax.Array) -> jax.Array:
    """1 before the warm-down, falling linearly to 0 at step `iterations`."""
    warmdown_steps = round(schedule.warmdown_fraction * iterations)
    return jnp.clip(_ratio(iterations - step, max(warmdown_steps, 1)), 0, 1)


def _ratio(numerator: jax.Array | int, denominator: int) -> jax.Array:
    """A quotient of whole numbers below 2²⁴, which float32 holds exactly."""
    return jnp.asarray(numerator, jnp.float32) / jnp.float32(denominator)
