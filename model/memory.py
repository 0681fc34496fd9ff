"""What a device holds while training: state, gradients, activations. Arithmetic, so that a plan needs no JAX."""

from __future__ import annotations

from model.cost import BYTES, parameter_counts
from model.recipe import Compute, GPTConfig

GRADIENT_BYTES = 4  # gradients are summed over micro-batches in float32
ADAM_BYTES, MUON_BYTES = 8, 4  # two moments; one momentum buffer (NorMuon's row moments are negligible)


def state_bytes(config: GPTConfig, compute: Compute, *, data: int = 1, fsdp: int = 1, tensor: int = 1) -> float:
    """Bytes of parameters, gradients and optimizer state on one device of a (data, fsdp, tensor) mesh.

    Parameters and gradients are sharded over fsdp and tensor, optimizer state over data besides (ZeRO-1,
    arXiv 1910.02054).
    """
    counts = parameter_counts(config)
    by_muon = counts["transformer_matrices"]
    moments = by_muon * MUON_BYTES + (counts["total"] - by_muon) * ADAM_BYTES
    weights = counts["total"] * (BYTES[compute.param_dtype] + GRADIENT_BYTES)
    return weights / (fsdp * tensor) + moments / (data * fsdp * tensor)


def activation_bytes(config: GPTConfig, compute: Compute, *, flash: bool = True) -> float:
    """Bytes that one token of a micro-batch holds from forward to backward.

    A layer keeps 34 bytes a token and channel at 16 bits, plus 5 bytes a token, head and key where attention keeps its
    scores (not `flash`) [Korthikanti et al. 2022, arXiv 2205.05198, equation 2]. Rematerialised layers keep 2 bytes of
    input, and one of them is whole at a time; `dots` keeps about half.
    """
    channel_bytes = 34 * config.n_embd + (0 if flash else 5 * config.n_head * config.seq_len)
    kept_layers = {"none": config.n_layer, "dots": config.n_layer / 2 + 1, "full": 1}[compute.remat]
    widths = BYTES[compute.compute_dtype] / 2
    return (channel_bytes * kept_layers + 2 * config.n_embd * config.n_layer) * widths
