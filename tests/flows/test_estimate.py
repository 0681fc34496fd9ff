"""A plan's arithmetic, and what it warns of."""

import pytest

from conf.compose import compose
from flows.estimate import base_estimate, cautions, hardware_mesh

D24 = ["scale=d24", "scale.ratio=9.5", "hardware=v6e-8", "data=climbmix", "eval.bundle=b", "chat.data_dir=d"]


def test_the_published_run_has_its_published_tokens():
    """Leaderboard run 4: 6,612 steps of 1,048,576 tokens."""
    estimate = base_estimate(compose(D24))
    assert estimate.tokens == 6612 * 1_048_576


def test_time_and_price_follow_from_flops_peak_and_share():
    config = compose([*D24, "hardware.expected_mfu=0.25", "hardware.spot_price=2.0"])
    twice = compose([*D24, "hardware.expected_mfu=0.5", "hardware.spot_price=2.0"])
    slow, fast = base_estimate(config), base_estimate(twice)
    assert slow.seconds == pytest.approx(2 * fast.seconds)
    assert slow.dollars(config.hardware, True) == pytest.approx(slow.seconds / 3600 * 8 * 2.0)


def test_a_machine_without_a_known_peak_has_no_time():
    estimate = base_estimate(compose())
    assert estimate.seconds is None
    assert estimate.tokens > 0


def test_sharding_lowers_the_memory_of_a_chip():
    whole, sharded = base_estimate(compose(D24)), base_estimate(compose([*D24, "compute.mesh.fsdp=8"]))
    assert sharded.memory_gib < whole.memory_gib


def test_an_axis_of_minus_one_takes_the_remaining_chips():
    assert hardware_mesh(compose([*D24, "compute.mesh.tensor=2"])) == {"data": 4, "fsdp": 1, "tensor": 2}


def test_a_cpu_may_emulate_other_devices_than_it_has():
    assert hardware_mesh(compose(["hardware.chips=4", "compute.mesh.fsdp=3"])) == {"data": 1, "fsdp": 3, "tensor": 1}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["scale.head_dim=128"], "matrix unit"),
        (["compute.compute_dtype=float32"], "below the bf16 peak"),
        (["compute.attention=xla"], "splash"),
        (["hardware.hbm_gib=4.0"], "GiB"),
        (["compute.mesh.tensor=8", "scale.n_kv_head=4"], "KV heads do not divide"),
    ],
)
def test_what_wastes_money_is_said_before_it_is_rented(words, sentence):
    assert any(sentence in line for line in cautions(compose([*D24, *words])))


def test_a_fitting_model_on_fitting_hardware_has_no_cautions():
    assert cautions(compose([*D24, "scale.head_dim=256"])) == []
    assert cautions(compose()) == []
