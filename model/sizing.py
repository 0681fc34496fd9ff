"""Depth is the dial: width, heads, batch, horizon, rates and decay of a run follow from it and the recipe.

The formulas are nanochat's base_train (commits 92d63d4 and 324e69c); tests/golden/sizing.json holds its numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from model.cost import flops_per_token, parameter_counts
from model.recipe import GPTConfig, Recipe


@dataclass(frozen=True)
class Sizing:
    """A model and the run that suits it."""

    config: GPTConfig
    target_tokens: int
    total_batch_tokens: int  # tokens per optimizer step
    iterations: int
    batch_lr_scale: float  # of rates that grow with the batch
    weight_decay: float  # Muon's at step 0
    width_lr_scale: float  # of rates that shrink with the width
    parameter_counts: dict[str, int]
    flops_per_token: float


def size(
    recipe: Recipe,
    depth: int,
    *,
    vocab_size: int,
    seq_len: int,
    ratio: float | None = None,
    aspect: int = 64,
    head_dim: int = 128,
    n_kv_head: int | None = None,
    window_pattern: str = "SSSL",
    total_batch_tokens: int | None = None,
    iterations: int | None = None,
) -> Sizing:
    """Size a run. None takes the recipe's ratio, as many KV heads as heads, the batch rule and the horizon.

    With B tokens per step and D = ratio · (parameters inside layers + lm_head) target tokens, B_ref and D_ref those of
    the reference depth: B = 2^round(log₂(B_ref · (D / D_ref)^exponent)), iterations = D // B,
    rates · √(B / B_ref), Muon's decay · √(B / B_ref) · D_ref / D. A given horizon sets iterations and nothing else.
    """
    ratio, horizon = recipe.horizon.ratio if ratio is None else ratio, recipe.horizon

    def shape(n_layer: int, n_kv_head: int | None) -> GPTConfig:
        n_embd = math.ceil(n_layer * aspect / head_dim) * head_dim
        n_head = n_embd // head_dim
        return GPTConfig(recipe, vocab_size, seq_len, n_layer, n_head, n_kv_head or n_head, n_embd, window_pattern)

    config = shape(depth, n_kv_head)
    target_tokens = int(ratio * scaling_parameters(config))
    reference_tokens = ratio * scaling_parameters(shape(horizon.reference_depth, None))
    if total_batch_tokens is None:
        growth = (target_tokens / reference_tokens) ** horizon.batch_exponent
        total_batch_tokens = 2 ** round(math.log2(horizon.reference_batch_tokens * growth))
    batch_ratio = total_batch_tokens / horizon.reference_batch_tokens
    decay = recipe.optimizer.muon.weight_decay * math.sqrt(batch_ratio) * (reference_tokens / target_tokens)
    return Sizing(
        config=config,
        target_tokens=target_tokens,
        total_batch_tokens=total_batch_tokens,
        iterations=max(1, target_tokens // total_batch_tokens) if iterations is None else iterations,
        batch_lr_scale=math.sqrt(batch_ratio),
        weight_decay=decay,
        width_lr_scale=(config.n_embd / recipe.optimizer.width_reference) ** -0.5,
        parameter_counts=parameter_counts(config),
        flops_per_token=flops_per_token(config),
    )


def scaling_parameters(config: GPTConfig) -> int:
    """The parameters that the horizon is counted in: inside the layers, and lm_head."""
    counts = parameter_counts(config)
    return counts["transformer_matrices"] + counts["lm_head"]


def filled_mesh(data: int, fsdp: int, tensor: int, devices: int) -> tuple[int, ...]:
    """Devices by axis of a mesh, where one size may be -1: the rest, or 1; whether they fit is mesh_sizes' to say."""
    sizes = (data, fsdp, tensor)
    if sizes.count(-1) != 1:
        return sizes
    rest = max(1, devices // -math.prod(sizes))
    return tuple(rest if size == -1 else size for size in sizes)


def mesh_sizes(data: int, fsdp: int, tensor: int, devices: int) -> tuple[int, ...]:
    """filled_mesh; raises ValueError when the sizes do not use every device exactly once."""
    sizes = filled_mesh(data, fsdp, tensor, devices)
    if min(sizes) < 1 or math.prod(sizes) != devices:
        raise ValueError(
            f"compute.mesh is data={data} fsdp={fsdp} tensor={tensor}, but there are {devices} devices: "
            "choose sizes whose product is that number, one of them -1 for the rest"
        )
    return sizes
