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

QUERY_BLOCK, MOST_BLOCKS = 128, 8  # queries of a block at least, and blocks of a sequence at most


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
    (batch, seq, n_head, head_dim), n_kv_head = q.shape, k.shape[2]
    q = jnp.moveaxis(q.reshape(batch, seq, n_kv_head, n_head // n_kv_head, head_dim), 1, 3)
    k, v = jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
    block, blocks = max(QUERY_BLOCK, -(-seq // MOST_BLOCKS)), []
    for start in range(0, seq, block):
        queries = slice(start, min(start + block, seq))
        keys = slice(max(0, start - window), queries.stop)
        blocks.append(_attend_block(q[..., queries, :], k[:, :, keys], v[:, :, keys], start - keys.start, window))
    return jnp.moveaxis(jnp.concatenate(blocks, axis=3), 3, 1).reshape(batch, seq, n_head, head_dim)


def _attend_block(q: jax.Array, k: jax.Array, v: jax.Array, offset: int, window: int) -> jax.Array:
    """q [batch, n_kv_head, group, queries, head_dim] over k, v [batch, n_kv_head, keys, head_dim]; query i sits beside
    key i + offset.

    Scores are laid out keys first: a softmax over rows of numbers far apart is one that CPUs can vectorise.
    """
    distance = jnp.arange(q.shape[3]) + offset - jnp.arange(k.shape[2])[:, None]
    visible = (distance >= 0) & (distance <= window)
    scores = jnp.einsum("bngqd,bnkd->bngkq", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-2).astype(v.dtype)
    return jnp.einsum("bngkq,bnkd->bngqd", weights, v)
