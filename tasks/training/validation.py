"""Bits per byte of a fixed set of validation rows, and the texts a model writes from their beginnings."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from model.bpb import bits_per_byte, nats_and_bytes
from model.loss import token_losses
from model.recipe import Compute, GPTConfig
from model.step import inputs_and_targets
from tasks.stage import StopSignal
from tasks.training.loader import RowSet
from tasks.training.placement import Placement

PROMPT_TOKENS = 16  # of a row whose every token is a target
SAMPLE_PROMPTS = 4
SAMPLE_TOKENS = 64


class Validation:
    """The first `tokens` tokens of the validation split, always the same ones, in calls of one shape."""

    def __init__(
        self,
        rows: RowSet,
        tokens: int,
        call_rows: int,
        token_bytes: np.ndarray,
        compute: Compute,
        placement: Placement,
    ) -> None:
        """`call_rows` as the rows of a training micro-batch, which fit and can be shared by the devices."""
        self.count = min(len(rows), max(1, tokens // rows.seq_len))
        self._rows, self._call_rows, self._placement = rows, call_rows, placement
        config, mesh = placement.config, placement.mesh
        self._sums = jax.jit(
            partial(_sums, token_bytes=jnp.asarray(token_bytes), config=config, compute=compute, mesh=mesh)
        )

    def bits_per_byte(self, params: Any, stop: StopSignal) -> float | None:
        """Bits per byte over all of the rows, or None if a stop was asked for before it was known."""
        nats, length = 0.0, 0
        for start in range(0, self.count, self._call_rows):
            if stop.requested:
                return None
            part_nats, part_length = self._sums(params, self._placement.put_rows(self._call(start)[None]))
            nats, length = nats + float(part_nats), length + int(part_length)
        return bits_per_byte(nats, length)

    def _call(self, start: int) -> np.ndarray:
        """Rows [call_rows, seq_len + 1] from `start` on; beyond the last one, rows without a target."""
        rows, _ = self._rows.take(np.arange(start, min(start + self._call_rows, self.count)))
        padding = np.full((self._call_rows - len(rows), rows.shape[1]), ~0, np.int32)
        return np.concatenate([rows, padding])


def _sums(
    params: Any, rows: jax.Array, token_bytes: jax.Array, config: GPTConfig, compute: Compute, mesh: Mesh | None
) -> tuple[jax.Array, jax.Array]:
    tokens, targets = inputs_and_targets(rows[0])
    losses = token_losses(params, tokens, targets, config, compute, mesh)
    return nats_and_bytes(losses, targets, token_bytes)


def prompts(rows: RowSet) -> list[list[int]]:
    """Beginnings of the first validation rows: up to the first target, or a few tokens where all are targets."""
    words, _ = rows.take(np.arange(min(SAMPLE_PROMPTS, len(rows))))
    found = []
    for row in words:
        first_target = int(np.argmax(row >= 0))
        length = first_target or min(PROMPT_TOKENS, len(row) // 2)
        found.append([int(word) if word >= 0 else ~int(word) for word in row[:length]])
    return found
