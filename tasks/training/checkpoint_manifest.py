"""What a checkpoint says of itself, and whether that fits the model and the bits at hand.

The store's marker of a mirrored directory holds this as its `meta`, beside the size and sha256 of every file. Orbax's
own metadata is not relied on: it lists an empty directory or a zeroed file as the newest step, and restores a tree
with fewer layers or another dtype without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FORMAT = 1


class Unusable(Exception):
    """A checkpoint that must not be restored. `str(error)` says what is wrong with it."""


@dataclass(frozen=True)
class Tensor:
    """One array of the state. `checksum` is of its bits, the same number on any mesh."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int


@dataclass(frozen=True)
class Position:
    """Where a run stands after `step` optimizer steps."""

    step: int
    rows: int  # of the seeded order that were trained on: the next batch starts here
    tokens: int
    wall_seconds: float  # spent on the run so far, over all attempts
    val_bpb: float | None = None  # measured at this very step


@dataclass(frozen=True)
class CheckpointManifest:
    """What a checkpoint holds."""

    position: Position
    tensors: dict[str, Tensor]
    format: int = FORMAT

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> CheckpointManifest:
        """The inverse of `to_dict`; raises Unusable."""
        try:
            if plain["format"] != FORMAT:
                raise Unusable(f"its format is {plain['format']} and this version reads {FORMAT}")
            tensors = {
                name: Tensor(tuple(entry["shape"]), entry["dtype"], entry["checksum"])
                for name, entry in plain["tensors"].items()
            }
            return cls(Position(**plain["position"]), tensors)
        except (KeyError, TypeError, AttributeError) as error:
            raise Unusable(f"its manifest cannot be read ({type(error).__name__}: {error})") from error

    def check_tensors(self, like: Mapping[str, Any]) -> None:
        """Raise Unusable unless the tensors have the names, shapes and dtypes of `like` (orbax#2972)."""
        missing, extra = like.keys() - self.tensors.keys(), self.tensors.keys() - like.keys()
        if missing or extra:
            example = min(missing or extra)
            raise Unusable(
                f"it is of another model: it lacks {len(missing)} tensors of this one and has {len(extra)} "
                f"that this one has not, such as {example}"
            )
        for name, wanted in like.items():
            saved = self.tensors[name]
            if (saved.shape, saved.dtype) != (tuple(wanted.shape), str(wanted.dtype)):
                raise Unusable(
                    f"it is of another model: {name} is {saved.dtype}{list(saved.shape)} in it and "
                    f"{wanted.dtype}{list(wanted.shape)} here"
                )

    def check_values(self, flat: Mapping[str, jax.Array]) -> None:
        """Raise Unusable unless the arrays on the devices are, bit for bit, those that were saved."""
        for name, checksum in checksums(flat).items():
            if int(np.asarray(checksum)) != self.tensors[name].checksum:
                raise Unusable(f"its tensor {name} arrived with other bits than it was saved with")


def checksums(flat: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """A uint32 for each array, computed where the array lies; nothing is waited for."""
    return {name: _checksum(array) for name, array in flat.items()}


@jax.jit
def _checksum(array: jax.Array) -> jax.Array:
    """Each element's bits are mixed with its place (MurmurHash3's finalizer) and summed modulo 2³²."""
    bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
    x = jax.lax.bitcast_convert_type(array, bits).astype(jnp.uint32)
    stride = 0x9E3779B9
    for axis in reversed(range(array.ndim)):  # no reshape: it would gather a sharded array
        x += jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis) * jnp.uint32(stride)
        stride = stride * array.shape[axis] % 2**32
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return (x ^ (x >> 16)).sum(dtype=jnp.uint32)


def describe(flat: Mapping[str, Any], sums: Mapping[str, jax.Array]) -> dict[str, Tensor]:
    """The manifest's entry of each array (or ShapeDtypeStruct); waits for the checksums."""
    return {
        name: Tensor(tuple(array.shape), str(array.dtype), int(np.asarray(sums[name]))) for name, array in flat.items()
    }
