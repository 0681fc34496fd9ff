"""Where arrays lie on many devices: a mesh of three axes and one table of rules by parameter name.

data    copies of the model, each with its own rows of the batch
fsdp    rows of the batch too, and parameters in pieces that are gathered where they are used
tensor  heads, MLP columns and vocabulary in pieces that stay where they are [Megatron-LM, arXiv 1909.08053]

The optimizer's state is cut over data and fsdp as well [ZeRO stage 1, arXiv 1910.02054]. A layout changes where
numbers are computed, never which.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from model.recipe import GPTConfig
from model.sizing import mesh_sizes

AXES = ("data", "fsdp", "tensor")
ROWS = ("data", "fsdp")  # the axes that split a batch


class Rule(NamedTuple):
    """How parameters named by `pattern` (the whole path) are cut: the mesh axis of each dimension, None for whole.

    unit: the field of GPTConfig that counts what the tensor axis must keep whole, such as heads.
    """

    pattern: str
    axes: tuple[str | None, ...]
    unit: str | None = None


RULES: tuple[Rule, ...] = (
    Rule(r"wte", ("fsdp", "tensor")),
    Rule(r"lm_head", ("tensor", "fsdp")),
    Rule(r"value_embeds\.\d+", ("fsdp", "tensor"), "n_kv_head"),
    Rule(r"layers\.\d+\.attn\.c_q", ("tensor", "fsdp"), "n_head"),
    Rule(r"layers\.\d+\.attn\.c_[kv]", ("tensor", "fsdp"), "n_kv_head"),
    Rule(r"layers\.\d+\.attn\.ve_gate", ("tensor", None), "n_kv_head"),
    Rule(r"layers\.\d+\.attn\.c_proj", ("fsdp", "tensor"), "n_head"),
    Rule(r"layers\.\d+\.mlp\.c_fc", ("tensor", "fsdp")),
    Rule(r"layers\.\d+\.mlp\.c_proj", ("fsdp", "tensor")),
    Rule(r"resid_lambdas|x0_lambdas|smear_lambda|backout_lambda", (None,)),
    Rule(r"smear_gate", (None, None)),
)


def make_mesh(data: int = -1, fsdp: int = 1, tensor: int = 1, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh of `devices` (default: all of the job) with these sizes; one of them may be -1: the rest.

    Raises ValueError when the sizes do not use every device exactly once.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(data, fsdp, tensor, devices=len(devices))
    return jax.make_mesh(sizes, AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES), devices=devices)


def row_shards(mesh: Mesh) -> int:
    """How many pieces a batch is cut into: the rows of a micro-batch must be a multiple of it."""
    return math.prod(mesh.shape[axis] for axis in ROWS)


def rows_sharding(mesh: Mesh) -> NamedSharding:
    """Of a step's rows [grad_accum_steps, rows, seq_len + 1]."""
    return NamedSharding(mesh, P(None, ROWS, None))


def constrain_stream(x: jax.Array, mesh: Mesh | None) -> jax.Array:
    """x [batch, seq, …] with its rows split as the batch is and everything else whole; x itself without a mesh.

    Not only for speed: left to itself, XLA's partitioner let the columns of `wte` spread into the stream and computed
    another function (data=2 fsdp=2 tensor=2, jax 0.10.2, error 0.7). tests/model/test_mesh.py is what guards this.
    """
    if mesh is None:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(ROWS)))


def map_heads(
    attend: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mesh: Mesh | None,
) -> jax.Array:
    """`attend` run by each device on its own rows and whole heads; plain `attend(q, k, v)` without a mesh.

    q [batch, seq, n_head, head_dim]; k, v [batch, seq, n_kv_head, head_dim]. KV heads that the tensor axis does not
    divide are repeated, one for each query head; query heads that it does not divide stay whole on each device.
    """
    if mesh is None:
        return attend(q, k, v)
    n_head, n_kv_head, tensor = q.shape[2], k.shape[2], mesh.shape["tensor"]
    spec = P(ROWS, None, "tensor" if n_head % tensor == 0 else None, None)
    if n_head % tensor == 0 and n_kv_head % tensor:
        k, v = (jnp.repeat(x, n_head // n_kv_head, axis=2) for x in (k, v))
    # check_vma: a Pallas call does not say how its results vary over the mesh
    return jax.shard_map(attend, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec, check_vma=False)(q, k, v)


def state_shardings(state: Any, config: GPTConfig, mesh: Mesh) -> Any:
    """A NamedSharding for each leaf of a train state, or of parameters alone (arrays or ShapeDtypeStructs).

    Parameters follow RULES. What is named after a parameter and shaped like it (moments, momentum) is cut like it
    and over data and fsdp besides; the rest is whole everywhere. Warns, naming parameters, where the tensor axis
    does not divide what must stay whole. Raises KeyError for a parameter without a rule.
    """
    replicated: list[str] = []

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        is_parameter = not name.startswith(("opt_state", "step"))
        rule = find_rule(name)
        if rule is None or len(rule.axes) != len(leaf.shape):
            if is_parameter:
                raise KeyError(f"no rule in model.mesh.RULES fits the parameter {name} of shape {leaf.shape}")
            return NamedSharding(mesh, P())
        axes, whole = _cut(rule, leaf.shape, config, mesh)
        if is_parameter and "tensor" in whole:
            replicated.append(name)
        if not is_parameter:
            axes = _cut_further(axes, leaf.shape, mesh)
        return NamedSharding(mesh, P(*axes))

    shardings = jax.tree_util.tree_map_with_path(sharding, state)
    if replicated:
        names = ", ".join(name.removeprefix("params.") for name in sorted(replicated, key=_natural))
        warnings.warn(
            f"the tensor axis of {mesh.shape['tensor']} devices does not divide {config.n_head} query and "
            f"{config.n_kv_head} KV heads or a width: whole on each of its devices are {names}",
            stacklevel=2,
        )
    return shardings


def shard_state(state: Any, config: GPTConfig, mesh: Mesh) -> Any:
    """`state` laid out by `state_shardings`; every process must hold the same whole state."""
    return jax.device_put(state, state_shardings(state, config, mesh))


def find_rule(name: str) -> Rule | None:
    """The rule of the parameter whose path ends `name`, such as "opt_state.mu.layers.3.mlp.c_fc"."""
    return next((rule for rule in RULES if re.search(rf"(^|\.)({rule.pattern})$", name)), None)


def _cut(rule: Rule, shape: tuple[int, ...], config: GPTConfig, mesh: Mesh) -> tuple[list[tuple[str, ...]], list[str]]:
    """Mesh axes of each dimension, and the axes of the rule that do not divide theirs."""
    axes: list[tuple[str, ...]] = []
    whole = []
    for axis, length in zip(rule.axes, shape, strict=True):
        pieces = getattr(config, rule.unit) if axis == "tensor" and rule.unit else length
        divides = axis is not None and pieces % mesh.shape[axis] == 0
        axes.append((axis,) if axis is not None and divides else ())
        if axis is not None and not divides:
            whole.append(axis)
    return axes, whole


def _cut_further(axes: list[tuple[str, ...]], shape: tuple[int, ...], mesh: Mesh) -> list[tuple[str, ...]]:
    """`axes` with data and fsdp, where they cut nothing yet, each put on the longest piece that it divides."""
    axes = list(axes)
    for axis in ROWS:
        if any(axis in used for used in axes):
            continue
        pieces = [length // math.prod(mesh.shape[a] for a in used) for used, length in zip(axes, shape, strict=True)]
        fitting = [i for i, piece in enumerate(pieces) if piece % mesh.shape[axis] == 0]
        if fitting:
            longest = max(fitting, key=lambda i: pieces[i])
            axes[longest] = (*axes[longest], axis)
    return axes


def _natural(name: str) -> list[str]:
    """Sorts layer 2 before layer 10."""
    return [part.zfill(6) if part.isdigit() else part for part in name.split(".")]
