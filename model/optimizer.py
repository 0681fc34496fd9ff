"""The parameter groups of a recipe as one Optax transformation over the nested dict of parameters."""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.sharding import Mesh

from model.gpt import Params
from model.muon import muon
from model.recipe import AdamGroup, Recipe
from model.schedules import Dials

GROUPS = {  # first part of a parameter's path → the recipe's group
    "lm_head": "lm_head",
    "wte": "wte",
    "value_embeds": "value_embeds",
    "resid_lambdas": "resid_lambdas",
    "x0_lambdas": "x0_lambdas",
    "smear_gate": "smear_backout",
    "smear_lambda": "smear_backout",
    "backout_lambda": "smear_backout",
    "layers": "muon",
}


def make_optimizer(
    recipe: Recipe,
    n_embd: int,
    batch_lr_scale: float = 1.0,
    lr_scale: float = 1.0,
    polar_dtype: str = "float32",
    mesh: Mesh | None = None,
) -> optax.GradientTransformationExtraArgs:
    """AdamW for embeddings and scalars, Muon for every matrix inside the layers.

    `update(grads, state, params, dials=Dials(...))` returns what to add to the parameters. batch_lr_scale
    multiplies the rates that the recipe scales with the batch, lr_scale all of them.
    """
    settings = recipe.optimizer

    def adamw(group: AdamGroup) -> optax.GradientTransformationExtraArgs:
        rate = getattr(settings, group.rate) * group.factor * lr_scale
        rate *= batch_lr_scale if group.batch_scaled else 1
        rate *= (settings.width_reference / n_embd) ** 0.5 if group.width_scaled else 1
        return optax.chain(
            optax.scale_by_adam(group.beta1, group.beta2, eps=settings.adam_epsilon),
            optax.add_decayed_weights(group.weight_decay),
            _scale_by_rate(rate),
        )

    adam_groups = sorted(set(GROUPS.values()) - {"muon"})
    transforms: dict[Any, Any] = {name: adamw(getattr(settings, name)) for name in adam_groups}
    matrix_lr = settings.matrix_lr * batch_lr_scale * lr_scale
    transforms["muon"] = muon(settings.muon, matrix_lr, polar_dtype, mesh)
    return optax.partition(transforms, labels)


def labels(params: Params) -> Params:
    """The group of each parameter, as a tree of the same structure. KeyError for a parameter without a group."""
    return {name: jax.tree.map(lambda _, group=GROUPS[name]: group, tree) for name, tree in params.items()}


def _scale_by_rate(learning_rate: float) -> optax.GradientTransformationExtraArgs:
    """Updates times −learning_rate · lr_mult."""

    def update(updates: Any, state: Any, params: Any = None, *, dials: Dials, **_: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda u: -learning_rate * dials.lr_mult * u, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
