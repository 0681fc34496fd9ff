"""The attention kernels mean what `xla` means, forward and backward, and are chosen by device."""

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.attention import attend, attend_xla, choose
from model.attention_cudnn import local_window
from model.attention_splash import BLOCK, COMPUTE, LANES, attend_splash, choose_tiles
from model.recipe import Compute

BF16 = "bfloat16"


def heads(batch: int, seq: int, n_head: int, n_kv_head: int, head_dim: int):
    """q, k, v and the gradient that arrives at the output."""
    rng = np.random.default_rng(0)
    counts = (n_head, n_kv_head, n_kv_head, n_head)
    return [rng.normal(size=(batch, seq, count, head_dim)).astype(np.float32) for count in counts]


def bump(x, position):
    """x with one token changed."""
    x = x.copy()
    x[:, position] += 1
    return x


def forward_and_backward(attention, q, k, v, arriving):
    """The output and the gradients of q, k and v."""

    @jax.jit
    def run(q, k, v, arriving):
        out, pull_back = jax.vjp(attention, q, k, v)
        return out, *pull_back(arriving)

    return run(q, k, v, arriving)


def dense(q, k, v, window):
    """The definition, in float64: every score, then the mask, then softmax."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    distance = np.arange(q.shape[1])[:, None] - np.arange(q.shape[1])[None, :]
    scores = np.where((distance >= 0) & (distance <= window), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize(("seq", "window"), [(7, 0), (200, 40), (130, 500)])
def test_xla_is_the_definition(seq, window):
    q, k, v, _ = heads(2, seq, 4, 2, 8)
    attended = jax.jit(partial(attend, window=window, compute=Compute()))(q, k, v)
    np.testing.assert_allclose(attended, dense(q, k, v, window), atol=2e-6)


@pytest.mark.parametrize(
    ("seq", "n_kv_head", "head_dim", "window", "chip"),
    [
        pytest.param(512, 1, 16, 511, "TPU v5 lite", id="three kernels, several tiles of keys"),
        pytest.param(300, 2, 16, 100, "TPU v6 lite", id="fused backward, window, padded"),
    ],
)
def test_splash_agrees_with_xla(seq, n_kv_head, head_dim, window, chip):
    arrays = heads(1, seq, 2, n_kv_head, head_dim)
    expected = forward_and_backward(lambda *qkv: attend_xla(*qkv, window=window), *arrays)
    got = forward_and_backward(lambda *qkv: attend_splash(*qkv, window=window, chip=chip, interpret=True), *arrays)
    for ours, theirs in zip(got, expected, strict=True):
        assert np.linalg.norm(ours - theirs) <= 2e-6 * np.linalg.norm(theirs)


def test_a_splash_window_is_one_key_wider_than_its_number():
    """The far edge alone: in a window of 3 token 9 reads 6, 7, 8, 9, so v of 6 reaches it and v of 5 does not."""
    q, k, v, _ = heads(1, 10, 1, 1, 8)
    splash = jax.jit(partial(attend_splash, window=3, chip="", interpret=True))
    before = splash(q, k, v)
    seen = [key for key in range(10) if np.any(splash(q, k, bump(v, key))[0, 9] != before[0, 9])]
    assert seen == [6, 7, 8, 9]


@pytest.mark.parametrize("window", [3, 63, 64])
def test_the_window_given_to_cudnn_means_the_same(window):
    """JAX defines the argument for both of its implementations; its `xla` can be run here."""
    q, k, v, _ = heads(1, 64, 2, 1, 8)
    options = {"is_causal": True, "local_window_size": local_window(window, 64), "implementation": "xla"}
    attended = jax.jit(partial(jax.nn.dot_product_attention, **options))(q, k, v)
    np.testing.assert_allclose(attended, dense(q, k, v, window), atol=2e-6)


@settings(deadline=None, max_examples=200)
@given(seq=st.integers(1, 9000), chip=st.sampled_from(["TPU v6 lite", "TPU v5 lite", "TPU v4", "cpu"]))
def test_tiles_are_legal_and_never_the_default(seq, chip):
    tiles = choose_tiles(seq, chip)
    assert tiles.block % LANES == tiles.compute % LANES == tiles.block % tiles.compute == 0
    assert tiles.block <= BLOCK
    assert min(tiles.block, tiles.compute) >= min(COMPUTE, -(-seq // LANES) * LANES)


def test_tiles_at_2048():
    assert choose_tiles(2048, "TPU v5 lite") == (512, 256, False)
    assert choose_tiles(2048, "TPU v6 lite") == (512, 256, True)


def test_auto_chooses_by_device():
    auto = Compute(compute_dtype=BF16)
    assert [choose(auto, platform) for platform in ("tpu", "gpu", "cpu")] == ["splash", "cudnn", "xla"]
    assert choose(Compute(), "gpu") == "xla"  # cuDNN would round float32
    assert choose(Compute(attention="xla"), "tpu") == "xla"


@pytest.mark.parametrize(
    ("compute", "platform", "reason"),
    [
        (Compute(attention="splash"), "cpu", "splash runs on tpu, not on cpu"),
        (Compute(attention="cudnn", compute_dtype=BF16), "tpu", "cudnn runs on gpu, not on tpu"),
        (Compute(attention="cudnn"), "gpu", "computes in bfloat16"),
    ],
)
def test_a_kernel_that_cannot_serve_is_refused(compute, platform, reason):
    with pytest.raises(ValueError, match=reason):
        choose(compute, platform)
