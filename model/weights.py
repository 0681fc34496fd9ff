"""Weights in nanochat's names and layout ↔ Encore's parameter tree, with every tensor accounted for.

Both keep linear weights as [out, in], so an import moves tensors and never transposes, slices or guesses. It
succeeds only if each parameter was filled by exactly one tensor of the right shape and nothing was left over;
the audit says so tensor by tensor, because a model with one tensor not loaded still produces fluent nonsense.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model.recipe import GPTConfig, Recipe

# Encore's path ↔ nanochat's state-dict name (commits 92d63d4 and 324e69c). {i} is a layer index.
NAMES: tuple[tuple[str, str], ...] = (
    ("wte", "transformer.wte.weight"),
    ("lm_head", "lm_head.weight"),
    ("resid_lambdas", "resid_lambdas"),
    ("x0_lambdas", "x0_lambdas"),
    ("smear_gate", "smear_gate.weight"),
    ("smear_lambda", "smear_lambda"),
    ("backout_lambda", "backout_lambda"),
    ("value_embeds.{i}", "value_embeds.{i}.weight"),
    ("layers.{i}.attn.c_q", "transformer.h.{i}.attn.c_q.weight"),
    ("layers.{i}.attn.c_k", "transformer.h.{i}.attn.c_k.weight"),
    ("layers.{i}.attn.c_v", "transformer.h.{i}.attn.c_v.weight"),
    ("layers.{i}.attn.c_proj", "transformer.h.{i}.attn.c_proj.weight"),
    ("layers.{i}.attn.ve_gate", "transformer.h.{i}.attn.ve_gate.weight"),
    ("layers.{i}.mlp.c_fc", "transformer.h.{i}.mlp.c_fc.weight"),
    ("layers.{i}.mlp.c_proj", "transformer.h.{i}.mlp.c_proj.weight"),
)
TO_NANOCHAT = dict(NAMES)
TO_ENCORE = {theirs: ours for ours, theirs in NAMES}

CONFIG_FIELDS = {  # of nanochat → ours
    "sequence_len": "seq_len",
    "vocab_size": "vocab_size",
    "n_layer": "n_layer",
    "n_head": "n_head",
    "n_kv_head": "n_kv_head",
    "n_embd": "n_embd",
    "window_pattern": "window_pattern",
}

COMPILE_PREFIX = "_orig_mod."  # torch.compile puts it before every name of a state dict
BUFFER = re.compile(r"(^|\.)(cos|sin|inv_freq|mask|bias_mask|rotary\w*)$")  # computed, so never part of weights
INDEX = re.compile(r"(?<=\.)\d+(?=\.|$)")
LOADED = "loaded"


@dataclass(frozen=True)
class Row:
    """One line of the audit: a tensor of the file, a parameter of the model, or both when they met."""

    outcome: str  # LOADED, or the kind of problem
    detail: str = ""  # what a reader needs beside the names
    source: str = ""
    source_shape: tuple[int, ...] | None = None
    source_dtype: str = ""
    source_norm: float | None = None  # Frobenius, summed in float64
    transposed: bool = False  # both sides keep [out, in]; the column says so for each tensor
    target: str = ""
    target_shape: tuple[int, ...] | None = None
    target_dtype: str = ""
    target_norm: float | None = None


@dataclass(frozen=True)
class Audit:
    """What became of every tensor of either side."""

    rows: tuple[Row, ...]

    @property
    def problems(self) -> dict[str, list[str]]:
        """Kind of problem → the tensors it befell; empty for a complete import."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            if row.outcome != LOADED:
                name = row.source or nanochat_name(row.target)
                found.setdefault(row.outcome, []).append(f"{name} ({row.detail})" if row.detail else name)
        return found

    def to_markdown(self) -> str:
        """The table, one line a tensor, problems first."""
        columns = ("shape", "dtype", "norm")
        head = ("tensor", *columns, "transposed", "became", *columns, "outcome")
        lines = [" | ".join(head), " | ".join("---" for _ in head)]
        for row in sorted(self.rows, key=lambda row: row.outcome == LOADED):
            source = (row.source, _shape(row.source_shape), row.source_dtype, _number(row.source_norm))
            target = (row.target, _shape(row.target_shape), row.target_dtype, _number(row.target_norm))
            outcome = f"{row.outcome}: {row.detail}" if row.detail else row.outcome
            lines.append(" | ".join((*source, "yes" if row.transposed else "no", *target, outcome)))
        return "".join(f"| {line} |\n" for line in lines)


class WeightsError(ValueError):
    """Tensors that do not make up the model. `str(error)` names each one, `.audit` has the whole table."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        found = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in audit.problems.items())
        super().__init__(f"The weights do not fit the model, and none were taken. {found}.")


def flatten(params: Mapping[str, Any]) -> dict[str, Any]:
    """The nested parameter tree as {"layers.0.attn.c_q": leaf}, sorted by path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten` for nested dicts."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, name = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def nanochat_name(path: str) -> str:
    """nanochat's name of Encore's parameter `path`; KeyError if there is none."""
    return _rename(path, TO_NANOCHAT)


def encore_path(name: str) -> str | None:
    """Encore's path of nanochat's tensor `name`, None if it is no parameter."""
    try:
        return _rename(name.removeprefix(COMPILE_PREFIX), TO_ENCORE)
    except KeyError:
        return None


def export_nanochat(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """All parameters in nanochat's names and layout, as NumPy arrays of their own dtype."""
    return {nanochat_name(path): np.asarray(leaf) for path, leaf in flatten(params).items()}


def nanochat_config(config: GPTConfig) -> dict[str, Any]:
    """The shape of a model as nanochat's `model_config` (in its meta_*.json) writes it."""
    return {theirs: getattr(config, ours) for theirs, ours in CONFIG_FIELDS.items()}


def config_from_nanochat(model_config: Mapping[str, Any], recipe: Recipe) -> GPTConfig:
    """Our shape from nanochat's `model_config`; fields that it lacks raise KeyError, others are ignored."""
    return GPTConfig(recipe, **{ours: model_config[theirs] for theirs, ours in CONFIG_FIELDS.items()})


def import_nanochat(
    tensors: Mapping[str, np.ndarray] | Iterable[tuple[str, np.ndarray]], like: Mapping[str, Any]
) -> tuple[dict[str, Any], Audit]:
    """The parameter tree shaped and typed as `like`, filled from `tensors`, and the audit of how.

    `like` is a tree of arrays or ShapeDtypeStructs (`jax.eval_shape` of the model's `init`). Raises
    `WeightsError` naming every tensor that is missing, left over, a buffer, duplicated (two names for one
    parameter, or one set of values under two parameters), of another shape, or not finite.
    """
    pairs = list(tensors.items() if isinstance(tensors, Mapping) else tensors)
    wanted = flatten(like)
    loaded: dict[str, np.ndarray] = {}
    holder: dict[str, str] = {}  # digest of a matrix's values → the first tensor that held them
    rows: list[Row] = []
    named: set[str] = set()

    for name, tensor in pairs:
        path = encore_path(name) or ""
        if path not in wanted:
            outcome, detail = ("non-parameter" if BUFFER.search(name) else "left over"), ""
        elif path in named:
            outcome, detail = "duplicated", f"{path} was named before"
        else:
            outcome, detail = _compare(name, tensor, wanted[path], holder)
        row = Row(outcome, detail, name, tensor.shape, str(tensor.dtype), frobenius(tensor))
        if path in wanted:
            named.add(path)
            row = replace(row, target=path, target_shape=wanted[path].shape, target_dtype=str(wanted[path].dtype))
        if outcome == LOADED:
            loaded[path] = tensor.astype(wanted[path].dtype)
            row = replace(row, target_norm=frobenius(loaded[path]))
        rows.append(row)

    for path in sorted(wanted.keys() - named):
        rows.append(Row("missing", target=path, target_shape=wanted[path].shape, target_dtype=str(wanted[path].dtype)))
    audit = Audit(tuple(rows))
    if audit.problems:
        raise WeightsError(audit)
    return unflatten({path: loaded[path] for path in wanted}), audit


def _compare(name: str, tensor: np.ndarray, parameter: Any, holder: dict[str, str]) -> tuple[str, str]:
    """LOADED, or what keeps `tensor` from becoming `parameter`; remembers its values in `holder`."""
    if tensor.shape != parameter.shape:
        return "wrong shape", f"{_shape(tensor.shape)} where the model has {_shape(parameter.shape)}"
    if not jnp.issubdtype(tensor.dtype, jnp.floating):
        return "wrong dtype", f"{tensor.dtype} where weights are floating"
    if not np.isfinite(tensor.astype(parameter.dtype)).all():
        return "NaN or infinite", ""
    if tensor.ndim == 2 and tensor.size > 1 and (tensor != tensor[0, 0]).any():  # constants repeat by right
        first = holder.setdefault(hashlib.sha256(np.ascontiguousarray(tensor).tobytes()).hexdigest(), name)
        if first != name:
            return "duplicated", f"the same values as {first}"
    return LOADED, ""


def frobenius(tensor: np.ndarray) -> float:
    """√Σx², summed in float64."""
    return float(np.sqrt(np.sum(np.square(tensor.astype(np.float64)))))


def _rename(name: str, table: Mapping[str, str]) -> str:
    index = INDEX.search(name)
    if index is None:
        return table[name]
    return table[f"{name[: index.start()]}{{i}}{name[index.end() :]}"].replace("{i}", index.group())


def _shape(shape: tuple[int, ...] | None) -> str:
    return "" if shape is None else "×".join(map(str, shape)) or "scalar"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
