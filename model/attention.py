"""Causal attention with a local window, behind one function; the implementation is chosen by name or by device.

`xla` runs on any device and is the reference that the kernels are compared with. It walks over blocks of
queries, so that the largest array is [batch, heads, block, window + block] and what lies outside the window
is never computed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from model.attention_cudnn import attend_cudnn
from model.mesh import map_heads
from model.recipe import Compute

QUERY_BLOCK = 128


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, *, window: int, compute: Compute, mesh: Mesh | None = None
) -> jax.Array:
    """What each token reads: softmax(q·kᵀ / √head_dim)·v over itself and `window` tokens before it.

    q [batch, seq, n_head, head_dim]; k, v [batch, seq, n_kv_head, head_dim], n_kv_head dividing n_head (each KV
    head serves n_head / n_kv_head neighbouring query heads). Returns [batch, seq, n_head, head_dim] in q's
    dtype. Scores and softmax are float32.
    """
    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    name = choose(compute, device.platform)
    kernel: Callable[..., jax.Array]
    if name == "splash":
        from model.attention_splash import attend_splash  # Pallas takes a second to import

        kernel = partial(attend_splash, window=window, chip=device.device_kind)
    elif name == "cudnn":
        kernel = partial(attend_cudnn, window=window)
    else:
        return attend_xla(q, k, v, window=window)
    return map_heads(kernel, q, k, v, mesh)


def choose(compute: Compute, platform: str) -> str:
    """The implementation that `compute.attention` means on `platform` (a jax.Device's: cpu, gpu, tpu).

    Raises ValueError for a kernel that the platform lacks, or that would round the compute dtype.
    """
    name = compute.attention
    if name == "auto":
        fused_on_gpu = "cudnn" if compute.compute_dtype == "bfloat16" else "xla"
        return {"tpu": "splash", "gpu": fused_on_gpu}.get(platform, "xla")
    home = {"splash": "tpu", "cudnn": "gpu"}.get(name, platform)
    if home != platform:
        raise ValueError(f"compute.attention={name} runs on {home}, not on {platform}: use auto or xla")
    if name == "cudnn" and compute.compute_dtype != "bfloat16":
        raise ValueError("compute.attention=cudnn computes in bfloat16: set compute.compute_dtype=bfloat16 or use xla")
    return name


def attend_xla(q: jax.Array, k: jax.Array, v: jax.Array, *, window: int) -> jax.Array:
    """attend in plain XLA operations."""
    blocks = []
    for start in range(0, q.shape[1], QUERY_BLOCK):
        stop = min(start + QUERY_BLOCK, q.shape[1])
        first = max(0, start - window)
        blocks.append(_attend_block(q[:, start:stop], k[:, first:stop], v[:, first:stop], start - first, window))
    return jnp.concatenate(blocks, axis=1)


def _attend_block(q: jax.Array, k: jax.Array, v: jax.Array, offset: int, window: int) -> jax.Array:
    """Attention of q [batch, queries, …] over k, v [batch, keys, …]; query i sits beside key i + offset."""
    distance = jnp.arange(q.shape[1])[:, None] + offset - jnp.arange(k.shape[1])[None, :]
    visible = (distance >= 0) & (distance <= window)
    return jax.nn.dot_product_attention(q, k, v, mask=visible[None, None], implementation="xla")
