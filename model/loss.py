"""Cross entropy over the vocabulary in chunks of tokens, so that the whole logits never exist.

`loss_sum` is what training differentiates. Its gradient is computed in the forward pass, while a chunk's logits
are at hand: they are neither kept nor computed twice. Softcapped logits are at most 60 (checked in the recipe), so
exp cannot overflow in float32 and the softmax needs no running maximum.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from model.gpt import Params, hidden
from model.recipe import Compute, GPTConfig

BATCH_AXES = ("data", "fsdp")
VOCAB_AXIS = "tensor"


def token_losses(
    params: Params,
    tokens: jax.Array,
    targets: jax.Array,
    config: GPTConfig,
    compute: Compute,
    mesh: Mesh | None = None,
) -> jax.Array:
    """Cross entropy in nats of each target, float32 [batch, seq]; 0 where the target is −1."""
    x = hidden(params, tokens, config, compute, mesh)
    return _Head(config, compute, mesh).losses(x, params["lm_head"], targets)


def loss_sum(
    params: Params,
    tokens: jax.Array,
    targets: jax.Array,
    config: GPTConfig,
    compute: Compute,
    mesh: Mesh | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The sum of token_losses (float32 scalar) and the number of targets (int32 scalar).

    A batch without targets has sum 0 and zero gradients. Differentiate with has_aux=True.
    """
    x = hidden(params, tokens, config, compute, mesh)
    total = _summed(_Head(config, compute, mesh), x, params["lm_head"], targets)
    return total, jnp.sum(targets >= 0, dtype=jnp.int32)


class _Head:
    """The last product and the cross entropy; static, so that it can be an argument of a custom derivative."""

    def __init__(self, config: GPTConfig, compute: Compute, mesh: Mesh | None):
        self.config, self.compute, self.mesh = config, compute, mesh
        self.cap = config.recipe.architecture.softcap

    def losses(self, x: jax.Array, weight: jax.Array, targets: jax.Array) -> jax.Array:
        """float32 [batch, seq] of x [batch, seq, n_embd], weight [padded vocab, n_embd], targets [batch, seq]."""
        return self._shards(self._local_losses, x, weight, targets, out=P(BATCH_AXES, None))

    def sum_and_gradients(
        self, x: jax.Array, weight: jax.Array, targets: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The summed loss and its gradients with respect to x (x's dtype) and weight (float32)."""
        out = (P(), P(BATCH_AXES, None, None), P(VOCAB_AXIS, None))
        return self._shards(self._local_sum_and_gradients, x, weight, targets, out=out)

    def _shards(self, function, x, weight, targets, out):
        """Run on each device's tokens and vocabulary rows; on one device, simply run."""
        if self.mesh is None:
            return function(x, weight, targets)
        specs = (P(BATCH_AXES, None, None), P(VOCAB_AXIS, None), P(BATCH_AXES, None))
        run = jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)
        return run(x, weight, targets)

    def _over(self, axes, value: jax.Array) -> jax.Array:
        return value if self.mesh is None else jax.lax.psum(value, axes)

    def _local_losses(self, x, weight, targets):
        weight = weight.astype(x.dtype)
        one = jax.checkpoint(lambda chunk: self._norm(self._bent(weight, chunk)[0]))
        norm = jax.lax.map(one, self._chunks(x.reshape(targets.size, -1)))
        logit, _, _ = self._at_targets(x, weight, targets)
        return jnp.where(targets >= 0, jnp.log(norm.reshape(-1)[: targets.size].reshape(targets.shape)) - logit, 0)

    def _local_sum_and_gradients(self, x, weight, targets):
        """The target's part of the gradient is a row of the weight for each token, added after the loop.

        The weight's gradient adds up transposed, from tokens transposed before the loop: XLA's CPU compiler takes half
        of the time for a product whose operands both lie as it reads them.
        """
        narrow, flat, counted = weight.astype(x.dtype), x.reshape(targets.size, -1), targets.reshape(-1) >= 0

        def one(d_weight, chunk):
            tokens, across, counted = chunk
            exp, slope = self._bent(narrow, tokens)
            norm = self._norm(exp)
            share = jnp.where(counted, 1 / norm, 0)[:, None]
            d_logits = (share * exp * slope).astype(x.dtype)
            d_x = jnp.einsum("nv,vd->nd", d_logits, narrow, preferred_element_type=jnp.float32)
            d_weight += jnp.einsum("dn,nv->dv", across, d_logits, preferred_element_type=jnp.float32)
            return d_weight, (norm, d_x)

        tokens = self._chunks(flat)
        chunks = tokens, jnp.swapaxes(tokens, 1, 2), self._chunks(counted)
        d_weight, (norm, d_x) = jax.lax.scan(one, jnp.zeros(weight.shape[::-1], jnp.float32), chunks)
        norm, d_x = norm.reshape(-1)[: targets.size], d_x.reshape(-1, x.shape[-1])[: targets.size]
        logit, pull, rows = (
            value.reshape(targets.size, *value.shape[2:]) for value in self._at_targets(x, narrow, targets)
        )
        total = jnp.sum(jnp.where(counted, jnp.log(norm) - logit, 0))
        d_x = self._over(VOCAB_AXIS, d_x - pull[:, None] * rows)
        own = self._own(targets.reshape(-1), weight.shape[0])
        # Of a single chunk XLA would fold .T into the product; JAX 0.10 has no bfloat16 kernel for that form on CPUs.
        d_weight = jax.lax.optimization_barrier(d_weight).T
        d_weight = d_weight.at[own].add(-pull[:, None] * flat, mode="drop")
        d_x = d_x.reshape(x.shape).astype(x.dtype)
        return self._over(BATCH_AXES, total), d_x, self._over(BATCH_AXES, d_weight)

    def _chunks(self, values):
        """values [tokens, …] as [chunks, loss_chunk, …], filled up with zeros."""
        chunk = min(self.compute.loss_chunk, values.shape[0])
        fill = [(0, -values.shape[0] % chunk)] + [(0, 0)] * (values.ndim - 1)
        return jnp.pad(values, fill).reshape(-1, chunk, *values.shape[1:])

    def _bent(self, weight, x):
        """exp(softcapped logits) and the softcap's slope [tokens, vocab], float32."""
        bent = jnp.tanh(jnp.einsum("nd,vd->nv", x, weight, preferred_element_type=jnp.float32) / self.cap)
        exp = jnp.exp(self.cap * bent)
        if self.config.vocab_size < self.config.padded_vocab_size:
            token = self._first(weight.shape[0]) + jnp.arange(weight.shape[0])
            exp = jnp.where(token < self.config.vocab_size, exp, 0)
        return exp, 1 - bent * bent

    def _norm(self, exp):
        """The softmax' denominator [tokens]."""
        return self._over(VOCAB_AXIS, jnp.sum(exp, axis=1))

    def _at_targets(self, x, weight, targets):
        """Each target's softcapped logit [batch, seq], the slope there (0 unless this device has the target's row), and
        that row of the weight [batch, seq, n_embd]."""
        own = self._own(targets, weight.shape[0])
        here = own < weight.shape[0]
        rows = weight[jnp.where(here, own, 0)]
        bent = jnp.tanh(jnp.einsum("...d,...d->...", x, rows, preferred_element_type=jnp.float32) / self.cap)
        logit = self._over(VOCAB_AXIS, jnp.where(here, self.cap * bent, 0))
        return logit, jnp.where(here, 1 - bent * bent, 0), rows

    def _own(self, targets, vocab):
        """The row of each target on this device, or `vocab` where it has none."""
        row = targets - self._first(vocab)
        return jnp.where((targets >= 0) & (row >= 0) & (row < vocab), row, vocab)

    def _first(self, vocab):
        """The token that this device's first row of the vocabulary stands for."""
        return 0 if self.mesh is None else vocab * jax.lax.axis_index(VOCAB_AXIS)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _summed(head: _Head, x: jax.Array, weight: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.sum(head.losses(x, weight, targets))


def _summed_forward(head, x, weight, targets):
    total, d_x, d_weight = head.sum_and_gradients(x, weight, targets)
    return total, (d_x, d_weight.astype(weight.dtype))


def _summed_backward(head, gradients, cotangent):
    d_x, d_weight = gradients
    return d_x * cotangent.astype(d_x.dtype), d_weight * cotangent.astype(d_weight.dtype), None


_summed.defvjp(_summed_forward, _summed_backward)
