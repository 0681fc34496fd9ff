"""Attention by the Splash kernels of Pallas on TPU: local windows and grouped KV heads, tiles chosen, never default.

The kernels want [heads, seq, head_dim], lengths in whole tiles and scaled queries: this module does that, so that
`attend_splash` has the meaning of `model.attention.attend` on one device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

LANES = 128  # of a TPU vector register: tiles are multiples of it


class Tiles(NamedTuple):
    """Tokens per tile of the kernels' grid, forward and backward."""

    block: int  # queries, and keys, of one tile
    compute: int  # keys that one inner iteration works on
    fused_backward: bool  # one backward kernel for queries, keys and values


# Tiles of 512/512/256 (queries, keys, keys of an inner iteration) at 2048 tokens are what a published port measured on
# v6e-8: 41.2 % MFU, and 22.4 % with tiles of 128. The fused backward takes 25.5 µs a head in place of 29.8 there by the
# compiler's schedule, by which 1024/1024/512 would take 19.6; that has not been measured on a chip. 2048 does not fit.
BLOCK, COMPUTE = 512, 256
FUSED_BACKWARD = ("v6",)  # parts of a device_kind


def choose_tiles(seq_len: int, chip: str) -> Tiles:
    """Tiles for `seq_len` tokens on `chip` (a device_kind such as "TPU v6 lite"), never under 256 without need.

    Of the blocks up to BLOCK, the largest that pads the sequence least.
    """
    smallest = min(COMPUTE, _round_up(seq_len, LANES))
    block = min(range(smallest, BLOCK + 1, LANES), key=lambda block: (_round_up(seq_len, block), -block))
    fused = any(name in chip for name in FUSED_BACKWARD)
    return Tiles(block, COMPUTE if block % COMPUTE == 0 else block, fused)


def attend_splash(
    q: jax.Array, k: jax.Array, v: jax.Array, *, window: int, chip: str, interpret: bool = False
) -> jax.Array:
    """`model.attention.attend` by Splash on one device of kind `chip`.

    q [batch, seq, n_head, head_dim]; k, v [batch, seq, n_kv_head, head_dim]. 1/√head_dim goes into q, in q's dtype.
    interpret: run the kernels without a TPU, slowly.
    """
    seq_len, head_dim = q.shape[1], q.shape[3]
    tiles = choose_tiles(seq_len, chip)
    kernel = _kernel(q.shape[2], _round_up(seq_len, tiles.block), window, tiles, interpret)

    def to_kernel(x: jax.Array) -> jax.Array:
        """[batch, heads, whole tiles, head_dim]; what is added at the end is seen by no real query."""
        return jnp.pad(x, ((0, 0), (0, -seq_len % tiles.block), (0, 0), (0, 0))).swapaxes(1, 2)

    q = q * jnp.asarray(1 / math.sqrt(head_dim), q.dtype)
    attended = jax.vmap(kernel)(to_kernel(q), to_kernel(k), to_kernel(v))
    return attended.swapaxes(1, 2)[:, :seq_len]


@lru_cache(maxsize=64)
def _kernel(n_head: int, seq_len: int, window: int, tiles: Tiles, interpret: bool) -> Callable[..., jax.Array]:
    mask: masks.Mask
    if window < seq_len:
        mask = masks.LocalMask((seq_len, seq_len), (window, 0), 0)  # the token itself and `window` before it
    else:
        mask = masks.CausalMask((seq_len, seq_len))
    separate_dq = None if tiles.fused_backward else tiles.block
    blocks = kernels.BlockSizes(
        block_q=tiles.block,
        block_kv=tiles.block,
        block_kv_compute=tiles.compute,
        block_q_dkv=tiles.block,
        block_kv_dkv=tiles.block,
        block_kv_dkv_compute=tiles.compute,
        block_q_dq=separate_dq,
        block_kv_dq=separate_dq,
        use_fused_bwd_kernel=tiles.fused_backward,
    )
    with jax.ensure_compile_time_eval():
        kernel = kernels.make_splash_mha(
            mask=masks.MultiHeadMask([mask] * n_head),
            block_sizes=blocks,
            head_shards=1,
            q_seq_shards=1,
            interpret=interpret,
        )
        return jax.tree.map(np.asarray, kernel)  # plain constants, so that no trace or device is kept alive


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple
