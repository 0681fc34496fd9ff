"""Attention by cuDNN's fused kernels on an NVIDIA GPU (compute capability 8.0 and above), through JAX."""

from __future__ import annotations

import jax


def attend_cudnn(q: jax.Array, k: jax.Array, v: jax.Array, *, window: int) -> jax.Array:
    """`model.attention.attend` by cuDNN on one device.

    q [batch, seq, n_head, head_dim]; k, v [batch, seq, n_kv_head, head_dim], in bfloat16 (cuDNN has no float32).
    head_dim: a multiple of 8, at most 128 (256 on Hopper and later).
    """
    return jax.nn.dot_product_attention(
        q, k, v, is_causal=True, local_window_size=local_window(window, q.shape[1]), implementation="cudnn"
    )


def local_window(window: int, seq_len: int) -> tuple[int, int] | None:
    """JAX's (keys before the token, keys after it); None where the window reaches everything.

    Without a window cuDNN runs its plain causal kernel, which is the faster one.
    """
    return (window, 0) if window < seq_len else None
