"""Schedules against nanochat's formulas in plain Python, on every kind of horizon."""

import math

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.recipe import Schedule
from model.schedules import decay_shape, lr_mult, muon_momentum
from tests.model.engines import recipe

run = {f: jax.jit(f, static_argnums=(0, 1)) for f in (lr_mult, muon_momentum, decay_shape)}


def by_hand(schedule: Schedule, n: int, i: int) -> tuple[float, float, float]:
    warmdown = round(schedule.warmdown_fraction * n)
    left = (n - i) / warmdown if i > n - warmdown else 1.0
    if i < schedule.warmup_steps:
        lr = (i + 1) / schedule.warmup_steps
    else:
        lr = left + (1 - left) * schedule.final_fraction
    if i < schedule.momentum_warmup_steps:
        frac = i / schedule.momentum_warmup_steps
        momentum = (1 - frac) * schedule.momentum_start + frac * schedule.momentum_peak
    else:
        momentum = schedule.momentum_peak + (1 - left) * (schedule.momentum_final - schedule.momentum_peak)
    decay = 0.5 * (1 + math.cos(math.pi * i / n)) if schedule.decay == "cosine" else 1 - i / n
    return lr, momentum, decay


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["head", "r4"]), st.sampled_from([1, 3, 50, 613, 6612, 1_000_003]), st.data())
def test_schedules(name: str, iterations: int, data: st.DataObject) -> None:
    schedule = recipe(name).schedule
    edges = [0, 39, 40, 299, 300, 399, 400, round(iterations * 0.35), round(iterations * 0.5), iterations - 1]
    steps = [i for i in edges if i < iterations] + [data.draw(st.integers(0, iterations - 1))]
    for i in steps:
        got = [float(run[f](schedule, iterations, jnp.int32(i))) for f in (lr_mult, muon_momentum, decay_shape)]
        assert got == pytest.approx(by_hand(schedule, iterations, i), rel=2e-6, abs=2e-7)


@pytest.mark.parametrize("name", ["head", "r4"])
def test_ends(name: str) -> None:
    """What a reader of the recipes expects to see at the first and the last steps of a long run."""
    schedule, n = recipe(name).schedule, 6612
    at = {i: float(lr_mult(schedule, n, jnp.int32(i))) for i in (0, 40, n // 4, n - 1)}
    assert at[0] == pytest.approx({"head": 1 / 40, "r4": 1}[name])
    assert at[40] == at[n // 4] == 1
    assert at[n - 1] == pytest.approx({"head": 0.05, "r4": 0.0}[name], abs=1e-3)
    assert float(muon_momentum(schedule, n, jnp.int32(n - 1))) == pytest.approx(
        {"head": 0.9, "r4": 0.95}[name], abs=1e-3
    )
    assert float(decay_shape(schedule, n, jnp.int32(n - 1))) < 1e-3


def test_fine_tuning_starts_at_full_rate_and_ends_at_zero() -> None:
    for name in ("head", "r4"):
        schedule = recipe(name).sft_schedule
        values = [float(lr_mult(schedule, 10, jnp.int32(i))) for i in range(11)]
        assert values == pytest.approx([1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0])
