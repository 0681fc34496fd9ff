"""Muon: momentum, orthogonalised by Polar Express, scaled by NorMuon, with cautious weight decay.

[Jordan et al. 2024, kellerjordan.github.io/posts/muon; Polar Express, arXiv 2505.16932; NorMuon, arXiv 2510.05491;
Cautious Weight Decay, arXiv 2510.12402]. Matrices are [out, in], m rows and n columns. Those of one shape are worked on
as one stack [matrices, m, n]: few, large products.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from model import recipe
from model.mesh import ROWS, row_shards
from model.schedules import Dials

# (a, b, c) of X ← aX + (bA + cA²)X, five steps [arXiv 2505.16932, as tuned in nanochat]
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
TINY_ROW, TINY_NORM, TINY_SQUARE = 1e-6, 1e-6, 1e-10  # floors of nanochat's divisions


class MuonState(NamedTuple):
    """Two trees named like the parameters."""

    momentum: Any  # shaped like the parameter
    second: Any  # mean squares of the orthogonalised rows [m] if m ≥ n, else of its columns [n]


def muon(
    settings: recipe.Muon, learning_rate: float, polar_dtype: str, mesh: Mesh | None = None
) -> optax.GradientTransformationExtraArgs:
    """Muon for a tree of matrices; `update` takes `dials` (model.schedules.Dials) as an extra argument.

    learning_rate is that of a square matrix: others take it times √max(1, m/n). With a mesh each device works on its
    share of the matrices.
    """

    def init(params: Any) -> MuonState:
        second = jax.tree.map(lambda p: jnp.zeros((max(p.shape),), jnp.float32), params)
        return MuonState(jax.tree.map(jnp.zeros_like, params), second)

    def update(grads: Any, state: MuonState, params: Any, *, dials: Dials, **_: Any) -> tuple[Any, MuonState]:
        momentum = jax.tree.map(lambda b, g: b + (1 - dials.momentum) * (g - b), state.momentum, grads)
        mixed = jax.tree.map(lambda g, b: g + dials.momentum * (b - g), grads, momentum)
        leaves, tree = jax.tree.flatten(mixed)
        second, weights = jax.tree.leaves(state.second), jax.tree.leaves(params)
        by_shape = defaultdict(list)
        for i, leaf in enumerate(leaves):
            by_shape[leaf.shape].append(i)
        for (m, n), members in by_shape.items():
            stack, squares = (_spread(jnp.stack([values[i] for i in members]), mesh) for values in (leaves, second))
            directions = orthogonalize(stack, settings, polar_dtype)
            directions, squares = _normalize(directions, squares, settings.beta2)
            rate = learning_rate * max(1, m / n) ** 0.5 * dials.lr_mult
            for place, i in enumerate(members):
                direction, second[i] = directions[place], squares[place]
                decay = dials.weight_decay * weights[i] * (direction * weights[i] >= 0)
                leaves[i] = -rate * (direction + decay)
        return jax.tree.unflatten(tree, leaves), MuonState(momentum, jax.tree.unflatten(tree, second))

    return optax.GradientTransformationExtraArgs(init, update)


def orthogonalize(x: jax.Array, settings: recipe.Muon, dtype: str) -> jax.Array:
    """Each matrix of x [..., m, n] with its singular values brought near 1, iterated in `dtype`; float32."""
    m, n = x.shape[-2:]
    if settings.equilibrate_rows:
        row_norm = jnp.linalg.norm(x, axis=-1, keepdims=True)
        x = x * (_frobenius(x) / m**0.5 / jnp.maximum(row_norm, TINY_ROW))
    x = (x / (_frobenius(x) * settings.norm_factor + TINY_NORM)).astype(dtype)
    wide = x if m <= n else jnp.swapaxes(x, -1, -2)  # the small side first, whose products are the small ones
    for a, b, c in POLAR_EXPRESS:
        gram = _product("...in,...jn->...ij", wide, wide)
        square = _product("...ij,...jk->...ik", gram.astype(dtype), gram.astype(dtype))
        bent = (b * gram + c * square).astype(dtype)
        wide = (a * wide + _product("...ij,...jn->...in", bent, wide)).astype(dtype)
    x = (wide if m <= n else jnp.swapaxes(wide, -1, -2)).astype(jnp.float32)
    if settings.renormalize:
        x = x * (min(m, n) ** 0.5 / jnp.maximum(_frobenius(x), TINY_NORM))
    return x


def _normalize(x: jax.Array, second: jax.Array, beta2: float) -> tuple[jax.Array, jax.Array]:
    """NorMuon: each matrix of x [..., m, n] divided by the running root mean square of its rows, or of its columns if
    there are more of them; its norm is kept. second [..., max(m, n)]."""
    axis = -1 if x.shape[-2] >= x.shape[-1] else -2
    second = second + (1 - beta2) * (jnp.mean(x * x, axis=axis) - second)
    scaled = x * jnp.expand_dims(jax.lax.rsqrt(jnp.maximum(second, TINY_SQUARE)), axis)
    return scaled * (_frobenius(x) / jnp.maximum(_frobenius(scaled), TINY_SQUARE)), second


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """einsum that adds up in float32."""
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def _frobenius(x: jax.Array) -> jax.Array:
    """[..., 1, 1] of x [..., m, n]."""
    return jnp.sqrt(jnp.sum(x * x, axis=(-2, -1), keepdims=True))


def _spread(stack: jax.Array, mesh: Mesh | None) -> jax.Array:
    """The first axis of a stack dealt out over the devices that split a batch; zeros make the deal even."""
    if mesh is None:
        return stack
    fill = -stack.shape[0] % row_shards(mesh)
    stack = jnp.pad(stack, [(0, fill)] + [(0, 0)] * (stack.ndim - 1))
    return jax.lax.with_sharding_constraint(stack, NamedSharding(mesh, P(ROWS)))
