"""The transformer as Flax NNX modules, with a nested dict of arrays as its public form.

Names and layouts are nanochat's: linear weights are [out, in] and have no bias. A module holds tensors and the
mathematics of one part; `hidden` and `logits` are what training, scoring and generation call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from model.attention import attend
from model.layers import Rope, run_layers
from model.mesh import constrain_stream
from model.recipe import Compute, GPTConfig

Params = dict[str, Any]
Read = Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]


def init(config: GPTConfig, seed: int) -> Params:
    """Initial parameters in float32, a pure function of config and seed."""
    return nnx.to_pure_dict(nnx.state(GPT(config, nnx.Rngs(seed))))


def hidden(
    params: Params, tokens: jax.Array, config: GPTConfig, compute: Compute, mesh: Mesh | None = None
) -> jax.Array:
    """The stream after the last norm [batch, seq, n_embd], in compute dtype, of tokens int [batch, seq]."""
    return bind(params, config)(tokens, compute, mesh)


FEW_TOKENS = 64
"""From two to so many, XLA's CPU compiler takes 0.5 to 0.8 of the time for a product that names the weight first."""


def logits(params: Params, hidden: jax.Array, config: GPTConfig) -> jax.Array:
    """Softcapped logits float32 [..., vocab_size] of hidden [..., n_embd]; padding rows are cropped."""
    weight = params["lm_head"][: config.vocab_size].astype(hidden.dtype)
    return softcapped(jnp.einsum("...d,vd->...v", hidden, weight, preferred_element_type=jnp.float32), config)


def raw_logits(params: Params, hidden: jax.Array, config: GPTConfig) -> jax.Array:
    """Logits before the softcap, float32 [vocab_size, tokens] of hidden [tokens, n_embd], in the order that FEW_TOKENS
    are quicker in, and that a CPU finds the largest ones quicker in."""
    weight = params["lm_head"][: config.vocab_size].astype(hidden.dtype)
    return jnp.einsum("vd,nd->vn", weight, hidden, preferred_element_type=jnp.float32)


def softcapped(z: jax.Array, config: GPTConfig) -> jax.Array:
    """Logits bent towards ± the recipe's softcap."""
    cap = config.recipe.architecture.softcap
    return cap * jnp.tanh(z / cap)


def bind(params: Params, config: GPTConfig) -> GPT:
    """The module whose tensors are `params`, which may be NumPy's."""
    return nnx.merge(_graph(config), jax.tree.map(jnp.asarray, params))


@lru_cache(maxsize=64)
def _graph(config: GPTConfig) -> Any:
    return nnx.graphdef(nnx.eval_shape(lambda: GPT(config, nnx.Rngs(0))))


def rms_norm(x: jax.Array) -> jax.Array:
    """x / √(mean(x²) + ε) over the last axis, in float32; ε is float32's machine epsilon."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + jnp.finfo(jnp.float32).eps)
    return (wide * scale).astype(x.dtype)


def linear(x: jax.Array, weight: nnx.Param) -> jax.Array:
    """x [..., in] · weightᵀ [in, out] in x's dtype."""
    narrow = weight[...].astype(x.dtype)
    if 1 < x.size // x.shape[-1] <= FEW_TOKENS:
        return jnp.moveaxis(jnp.einsum("oi,...i->o...", narrow, x), 0, -1)
    return jnp.einsum("...i,oi->...o", x, narrow)


def rotary(positions: jax.Array, config: GPTConfig) -> tuple[jax.Array, jax.Array]:
    """cos and sin float32 [..., seq, 1, head_dim / 2] for integer positions [..., seq]."""
    half = config.head_dim // 2
    inverse_frequency = config.recipe.architecture.rope_base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions.astype(jnp.float32)[..., None, None] * inverse_frequency
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotary embedding of x [batch, seq, heads, head_dim], pairing the two halves of head_dim."""
    x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([x1 * cos + x2 * sin, x2 * cos - x1 * sin], axis=-1).astype(x.dtype)


class Attention(nnx.Module):
    """Query, key, value and output projections of one layer, and the gate of its value embedding if it has one."""

    def __init__(self, config: GPTConfig, layer: int, rngs: nnx.Rngs):
        arch, initial, width = config.recipe.architecture, config.recipe.initial, config.n_embd
        scale, kv_width = math.sqrt(3 / width), config.n_kv_head * config.head_dim
        self.config = config
        self.c_q = nnx.Param(_uniform(rngs, (width, width), -scale, scale))
        self.c_k = nnx.Param(_uniform(rngs, (kv_width, width), -scale, scale))
        self.c_v = nnx.Param(_uniform(rngs, (kv_width, width), -scale, scale))
        self.c_proj = nnx.Param(jnp.zeros((width, width)))
        if config.has_value_embed(layer):
            shape = (config.n_kv_head, arch.value_gate_channels)
            self.ve_gate = nnx.Param(_uniform(rngs, shape, 0.0, initial.value_gate_max))

    def qkv(
        self, h: jax.Array, value_rows: jax.Array | None, cos: jax.Array, sin: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """q [batch, seq, n_head, head_dim] and k, v [batch, seq, n_kv_head, head_dim], ready for attention.

        h [batch, seq, n_embd] is the normed input; value_rows [batch, seq, n_kv_head · head_dim] are the rows of
        this layer's value embedding, None where it has none.
        """
        arch, head_dim = self.config.recipe.architecture, self.config.head_dim
        q, k, v = (_heads(linear(h, w), head_dim) for w in (self.c_q, self.c_k, self.c_v))
        if value_rows is not None:
            gate = arch.value_gate_range * jax.nn.sigmoid(linear(h[..., : arch.value_gate_channels], self.ve_gate))
            v = v + gate[..., None] * _heads(value_rows.astype(v.dtype), head_dim)
        q, k = (rms_norm(rotate(x, cos, sin)) * jnp.asarray(arch.qk_scale, x.dtype) for x in (q, k))
        return q, k, v

    def out(self, y: jax.Array) -> jax.Array:
        """The output projection of attended values y [batch, seq, n_head, head_dim]."""
        return linear(y.reshape(*y.shape[:-2], -1), self.c_proj)


class MLP(nnx.Module):
    """Linear, ReLU², linear."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        width, scale = config.n_embd, config.recipe.initial.mlp_in_scale * math.sqrt(3 / config.n_embd)
        inner = config.recipe.architecture.mlp_ratio * width
        self.c_fc = nnx.Param(_uniform(rngs, (inner, width), -scale, scale))
        self.c_proj = nnx.Param(jnp.zeros((width, inner)))

    def __call__(self, x: jax.Array) -> jax.Array:
        return linear(jnp.square(jax.nn.relu(linear(x, self.c_fc))), self.c_proj)


class Block(nnx.Module):
    """One layer: attention and MLP, each reading the normed stream and adding to it."""

    def __init__(self, config: GPTConfig, layer: int, rngs: nnx.Rngs):
        self.attn = Attention(config, layer, rngs)
        self.mlp = MLP(config, rngs)

    def __call__(
        self,
        x: jax.Array,
        value_rows: jax.Array | None,
        rope: tuple[jax.Array, jax.Array],
        *,
        window: int,
        compute: Compute,
        mesh: Mesh | None = None,
    ) -> jax.Array:
        """The stream [batch, seq, n_embd] with both parts' outputs added; value_rows as in Attention.qkv."""
        q, k, v = self.attn.qkv(rms_norm(x), value_rows, *rope)
        attended = attend(q, k, v, window=window, compute=compute, mesh=mesh)
        x = constrain_stream(x + self.attn.out(attended), mesh)
        return constrain_stream(x + self.mlp(rms_norm(x)), mesh)


class GPT(nnx.Module):
    """The whole model. `layers` and `value_embeds` are keyed by the layer number as a string."""

    def __init__(self, config: GPTConfig, rngs: nnx.Rngs):
        initial, width, vocab = config.recipe.initial, config.n_embd, config.padded_vocab_size
        scale, kv_width = math.sqrt(3 / width), config.n_kv_head * config.head_dim
        layers = range(config.n_layer)
        depth = jnp.arange(config.n_layer, dtype=jnp.float32) / max(config.n_layer - 1, 1)
        self.config = config
        self.wte = nnx.Param(initial.wte_std * jax.random.normal(rngs.params(), (vocab, width)))
        self.lm_head = nnx.Param(initial.lm_head_std * jax.random.normal(rngs.params(), (vocab, width)))
        self.resid_lambdas = nnx.Param(initial.resid_start - initial.resid_fall * depth)
        self.x0_lambdas = nnx.Param(initial.x0_start - initial.x0_fall * depth)
        if config.recipe.architecture.smear:
            shape = (1, config.recipe.architecture.smear_channels)
            self.smear_gate = nnx.Param(_uniform(rngs, shape, 0.0, initial.smear_gate_max))
            self.smear_lambda = nnx.Param(jnp.full((1,), initial.smear_lambda, jnp.float32))
        if config.recipe.architecture.backout:
            self.backout_lambda = nnx.Param(jnp.full((1,), initial.backout_lambda, jnp.float32))
        self.layers = nnx.Dict({str(i): Block(config, i, rngs) for i in layers})
        self.value_embeds = nnx.Dict(
            {
                str(i): nnx.Param(_uniform(rngs, (vocab, kv_width), -scale, scale))
                for i in layers
                if config.has_value_embed(i)
            }
        )

    def embed(self, tokens: jax.Array, compute: Compute) -> jax.Array:
        """Normed embeddings [batch, seq, n_embd] in compute dtype, before smearing."""
        return rms_norm(self.wte[...][tokens].astype(compute.compute_dtype))

    def smear(self, x: jax.Array, previous: jax.Array) -> jax.Array:
        """x plus a gated share of `previous`, the embeddings (before smearing) of the token before each."""
        gate = jax.nn.sigmoid(linear(x[..., : self.config.recipe.architecture.smear_channels], self.smear_gate))
        return x + self.smear_lambda[...].astype(x.dtype) * gate * previous

    def smear_all(self, x: jax.Array) -> jax.Array:
        """Embeddings x [batch, seq, n_embd] of whole sequences, smeared where the recipe says so."""
        if not self.config.recipe.architecture.smear:
            return x
        return jnp.concatenate([x[:, :1], self.smear(x[:, 1:], x[:, :-1])], axis=1)

    def __call__(self, tokens: jax.Array, compute: Compute, mesh: Mesh | None = None) -> jax.Array:
        """See `hidden`."""
        config = self.config
        with jax.ensure_compile_time_eval():  # constants: XLA's CPU compiler would compute them anew for every head
            rope = rotary(jnp.arange(tokens.shape[1]), config)
        x = self.smear_all(constrain_stream(self.embed(tokens, compute), mesh))
        return self.finish(*run_layers(self, x, tokens, rope, compute, mesh))

    def walk(
        self, x: jax.Array, tokens: jax.Array, rope: Rope, compute: Compute, read: Read, layers: int | None = None
    ) -> jax.Array:
        """The stream after the last norm, of embeddings x [rows, columns, n_embd] already smeared, for callers that
        keep keys and values: read(layer, q, k, v) is the attention of a layer, with q, k, v as of `Attention.qkv`.

        layers: how many of them, for a caller that wants their keys and values only; None: all.
        """
        x0 = kept = x
        for i in range(self.config.n_layer if layers is None else layers):
            x = self.mix(i, x, x0)
            block = self.layers[str(i)]
            q, k, v = block.attn.qkv(rms_norm(x), self.value_rows(i, tokens, compute), *rope)
            x = x + block.attn.out(read(i, q, k, v))
            x = x + block.mlp(rms_norm(x))
            if i == self.config.n_layer // 2:
                kept = x
        return self.finish(x, kept)

    def mix(self, layer: int, x: jax.Array, x0: jax.Array) -> jax.Array:
        """The input of a layer: the stream and the embedding, weighted."""
        resid, first = self.resid_lambdas[layer].astype(x.dtype), self.x0_lambdas[layer].astype(x.dtype)
        return resid * x + first * x0

    def value_rows(self, layer: int, tokens: jax.Array, compute: Compute) -> jax.Array | None:
        """Rows [batch, seq, n_kv_head · head_dim] of the layer's value embedding, None if it has none."""
        if not self.config.has_value_embed(layer):
            return None
        return self.value_embeds[str(layer)][...][tokens].astype(compute.compute_dtype)

    def finish(self, x: jax.Array, kept: jax.Array) -> jax.Array:
        """The last norm, after subtracting the stream kept from the middle layer where the recipe says so."""
        if self.config.recipe.architecture.backout:
            x = x - self.backout_lambda[...].astype(x.dtype) * kept
        return rms_norm(x)


def _heads(x: jax.Array, head_dim: int) -> jax.Array:
    return x.reshape(*x.shape[:-1], -1, head_dim)


def _uniform(rngs: nnx.Rngs, shape: tuple[int, ...], low: float, high: float) -> jax.Array:
    return jax.random.uniform(rngs.params(), shape, minval=low, maxval=high)
