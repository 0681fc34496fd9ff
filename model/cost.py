"""How large a model is and what a token costs: parameters and floating-point operations.

Plain arithmetic, so that a plan can be made without JAX.
"""

from __future__ import annotations

from model.recipe import GPTConfig

BYTES = {"float32": 4, "bfloat16": 2}


def parameter_counts(config: GPTConfig) -> dict[str, int]:
    """Numbers of parameters by nanochat's groups (padding rows of the vocabulary included) and their total."""
    arch, width, kv_width = config.recipe.architecture, config.n_embd, config.n_kv_head * config.head_dim
    table = config.padded_vocab_size * width
    with_value_embed = sum(config.has_value_embed(i) for i in range(config.n_layer))
    layer = 2 * width * width + 2 * kv_width * width + 2 * arch.mlp_ratio * width * width
    counts = {
        "wte": table,
        "value_embeds": with_value_embed * config.padded_vocab_size * kv_width,
        "lm_head": table,
        "transformer_matrices": config.n_layer * layer + with_value_embed * config.n_kv_head * arch.value_gate_channels,
        "scalars": 2 * config.n_layer + arch.smear * (arch.smear_channels + 1) + arch.backout,
    }
    return {**counts, "total": sum(counts.values())}


def flops_per_token(config: GPTConfig) -> float:
    """Floating-point operations of training on one token, forward and backward.

    6 for each parameter in a product, and 12 · n_head · head_dim · keys for the scores and values of a layer whose
    window holds that many keys [PaLM, arXiv 2204.02311, appendix B].
    """
    arch, counts = config.recipe.architecture, parameter_counts(config)
    in_products = counts["transformer_matrices"] + counts["lm_head"] + arch.smear * arch.smear_channels
    keys = sum(min(window, config.seq_len) for window in config.windows)
    return 6.0 * in_products + 12.0 * config.n_embd * keys
