"""A layout over devices changes where numbers are computed, never which."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from model.mesh import find_rule, make_mesh, state_shardings
from model.weights import NAMES
from tests.model.mesh_layouts import CONFIG, LAYOUTS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def emulated() -> dict:
    """What mesh_layouts.py found on eight emulated devices. XLA compiles with little effort: that takes longest."""
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    if jax.__version_info__ < (0, 11):  # later versions do not know it, and abort
        flags += " --xla_cpu_use_fusion_emitters=false"
    finished = subprocess.run(
        [sys.executable, "tests/model/mesh_layouts.py"],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return json.loads(finished.stdout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_trains_as_one_device_does(emulated, layout):
    found = emulated["layouts"][layout]
    assert found["params"] < 1e-5  # of the worst tensor, after three steps
    assert found["moments"] < 3e-5
    assert found["loss"] < 1e-6
    assert found["same_rows"]


def test_kv_heads_that_the_tensor_axis_does_not_divide_are_whole_and_named(emulated):
    for layout in set(LAYOUTS) - {"1×1×8"}:
        assert emulated["layouts"][layout]["warnings"] == []
    (message, *_) = emulated["layouts"]["1×1×8"]["warnings"]
    assert "8 devices does not divide 8 query and 4 KV heads" in message
    names = message.partition("whole on each of its devices are ")[2].split(", ")
    assert names == [
        "layers.0.attn.c_k",
        "layers.0.attn.c_v",
        "layers.1.attn.c_k",
        "layers.1.attn.c_v",
        "layers.1.attn.ve_gate",
        "value_embeds.1",
    ]


@pytest.mark.parametrize("layout", ["8×1×1", "1×8×1", "2×2×2"])
def test_a_device_holds_its_share_of_the_moments(emulated, layout):
    assert emulated["layouts"][layout]["state_share"] < 1.01 / 8


def test_splash_on_a_mesh_repeats_kv_heads_that_cannot_be_shared_out(emulated):
    assert emulated["kernel"] < 1e-6


def test_the_sizes_must_use_every_device_once():
    device = jax.devices()[:1]
    assert dict(make_mesh(-1, 1, 1, devices=device).shape) == {"data": 1, "fsdp": 1, "tensor": 1}
    for sizes in [(2, 1, 1), (0, 1, 1), (-1, -1, 1), (-1, 2, 1)]:
        with pytest.raises(ValueError, match=r"compute.mesh is data=.*there are 1 devices"):
            make_mesh(*sizes, devices=device)


def test_each_parameter_has_exactly_one_rule_and_an_unknown_one_none():
    for path, _ in NAMES:
        assert find_rule(path.replace("{i}", "3")) is not None
    assert find_rule("layers.3.attn.c_x") is None
    params = {"layers": {"0": {"attn": {"c_x": jnp.ones((8, 8))}}}}
    with pytest.raises(KeyError, match=r"layers\.0\.attn\.c_x of shape \(8, 8\)"):
        state_shardings(params, CONFIG, make_mesh(devices=jax.devices()[:1]))
