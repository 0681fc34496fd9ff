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
        one = jax.checkpoint(lambda chunk: self._chunk(weight, *chunk)[0])
        losses = jax.lax.map(one, self._split(x, targets))
        return losses.reshape(-1)[: targets.size].reshape(targets.shape)

    def _local_sum_and_gradients(self, x, weight, targets):
        narrow = weight.astype(x.dtype)

        def one(carry, chunk):
            total, d_weight = carry
            losses, d_logits = self._chunk(narrow, *chunk)
            d_x = jnp.einsum("vn,vd->nd", d_logits, narrow, preferred_element_type=jnp.float32)
            d_weight += jnp.einsum("vn,nd->vd", d_logits, chunk[0], preferred_element_type=jnp.float32)
            return (total + jnp.sum(losses), d_weight), d_x

        start = (jnp.float32(0), jnp.zeros(weight.shape, jnp.float32))
        (total, d_weight), d_x = jax.lax.scan(one, start, self._split(x, targets))
        d_x = d_x.reshape(-1, x.shape[-1])[: targets.size].reshape(x.shape)
        d_x = self._over(VOCAB_AXIS, d_x).astype(x.dtype)
        return self._over(BATCH_AXES, total), d_x, self._over(BATCH_AXES, d_weight)

    def _split(self, x, targets):
        """Chunks x [chunks, tokens, n_embd] and targets [chunks, tokens], filled up with targets −1."""
        chunk = min(self.compute.loss_chunk, targets.size)
        fill = -targets.size % chunk
        x = jnp.pad(x.reshape(targets.size, -1), ((0, fill), (0, 0)))
        targets = jnp.pad(targets.reshape(-1), (0, fill), constant_values=-1)
        return x.reshape(-1, chunk, x.shape[-1]), targets.reshape(-1, chunk)

    def _chunk(self, weight, x, targets):
        """Losses [tokens] and the loss' gradient by the product [vocab, tokens] in x's dtype, of one chunk.

        The vocabulary is the first axis: a sum over it runs along the tokens, which compilers vectorise.
        """
        vocab = weight.shape[0]
        first = 0 if self.mesh is None else vocab * jax.lax.axis_index(VOCAB_AXIS)
        row = first + jnp.arange(vocab)[:, None]
        wanted = row == targets
        bent = jnp.tanh(jnp.einsum("vd,nd->vn", weight, x, preferred_element_type=jnp.float32) / self.cap)
        exp = jnp.exp(self.cap * bent)
        if self.config.vocab_size < self.config.padded_vocab_size:
            exp = jnp.where(row < self.config.vocab_size, exp, 0)
        norm = self._over(VOCAB_AXIS, jnp.sum(exp, axis=0))
        target_logit = self._over(VOCAB_AXIS, jnp.sum(jnp.where(wanted, self.cap * bent, 0), axis=0))
        losses = jnp.where(targets >= 0, jnp.log(norm) - target_logit, 0)
        share = jnp.where(targets >= 0, 1 / norm, 0)
        d_logits = (exp * share - wanted) * (1 - bent * bent)
        return losses, d_logits.astype(x.dtype)


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
