"""How an optimizer step's rows are cut into micro-batches: by memory, never by what is computed.

grad_accum_steps × rows × seq_len = total_batch_tokens whatever the devices, and the rows of a step keep their order;
a different cut changes the order of additions and so only the rounding.
"""

from __future__ import annotations

from conf.errors import ConfigError
from model.memory import activation_bytes
from model.recipe import Compute, GPTConfig

USABLE = 0.6  # of a device's memory beside the state: the rest is for logits, gathered weights and fragmentation


def split_batch(batch_rows: int, row_shards: int, device_rows: int) -> tuple[int, int]:
    """(grad_accum_steps, rows of a micro-batch over all devices) for at most `device_rows` rows a device.

    `row_shards`: devices that get rows of their own (data × fsdp). Raises ConfigError where they cannot share a batch.
    """
    if batch_rows % row_shards:
        raise ConfigError(
            f"A batch of {batch_rows} rows cannot be shared evenly by {row_shards} devices: choose total_batch_tokens "
            "as a multiple of seq_len × data × fsdp, or another compute.mesh."
        )
    rows = batch_rows // row_shards
    fitting = max(n for n in range(1, min(device_rows, rows) + 1) if rows % n == 0)
    return rows // fitting, fitting * row_shards


def device_rows_that_fit(
    config: GPTConfig, compute: Compute, device_bytes: float, state_bytes: float, flash: bool
) -> int:
    """Rows of a micro-batch whose activations fit on one device beside its part of the state; at least 1."""
    free = USABLE * max(0.0, device_bytes - state_bytes)
    return max(1, int(free // (config.seq_len * activation_bytes(config, compute, flash=flash))))
