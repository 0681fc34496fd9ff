"""The newest checkpoint that can be believed, on whatever devices there are now.

A candidate is checked three times before training goes on from it: the sha256 of every file; the names, shapes and
dtypes of its tensors against the model at hand; and the bits that arrived on the devices against those that were
saved. One that fails is quarantined with a message, and the one before it is tried. When there are candidates and
none passes the run stops: a start from step 0 would end in overwriting the good ones among them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import orbax.checkpoint as ocp

from model.weights import flatten
from tasks.stage import InputError
from tasks.store.directories import Mirrored
from tasks.store.manifest import Damaged
from tasks.training.checkpoint_manifest import CheckpointManifest, Position, Unusable

FOLDER = "checkpoints"
STATE = "state"  # what Orbax wrote
RECORDS = "records"  # what the run had recorded up to the step


class Store(Protocol):
    """The part of `tasks.store.directories.Directories` that checkpoints are kept with."""

    def mirror(self, name: str, meta: dict[str, Any] | None = None) -> Mirrored: ...
    def committed(self, below: str) -> list[Mirrored]: ...
    def unusable(self, below: str) -> dict[str, str]: ...
    def fetch(self, mirrored: Mirrored) -> Path: ...
    def quarantine(self, mirrored: Mirrored, reason: str) -> None: ...
    def remove(self, mirrored: Mirrored) -> None: ...


def newest(store: Store, like: Any, records: Path, log: Callable[[str], None]) -> tuple[Any, Position] | None:
    """State and position of the newest checkpoint that passes; None if there never was one.

    `like` is a tree of ShapeDtypeStructs with the shardings wanted, whatever mesh the checkpoint was saved on; without
    shardings the state comes as NumPy arrays. The records saved with it are copied into the directory `records`.
    Raises InputError if none of several passes.
    """
    for location, reason in store.unusable(FOLDER).items():
        log(f"{location} is not used: {reason}")
    for mirrored in sorted(store.committed(FOLDER), key=lambda item: (item.name, item.token, item.serial))[::-1]:
        try:
            path = store.fetch(mirrored)
            state, position = _load(path, mirrored.meta, like)
        except (Damaged, Unusable) as error:
            log(f"{mirrored.name} is not used and was quarantined: {error}")
            store.quarantine(mirrored, str(error))
            continue
        records.mkdir(parents=True, exist_ok=True)
        for record in (path / RECORDS).glob("*"):
            shutil.copyfile(record, records / record.name)
        return state, position
    if reasons := store.unusable(FOLDER):
        listed = "; ".join(f"{location}: {reason}" for location, reason in reasons.items())
        raise InputError(
            f"This run has checkpoints and none can be used ({listed}). It does not start again from step 0 over "
            "them: bring back a good copy, or remove these directories to start anew."
        )
    return None


def _load(path: Path, meta: dict[str, Any], like: Any) -> tuple[Any, Position]:
    manifest = CheckpointManifest.from_dict(meta)
    wanted = flatten(like)
    manifest.check_tensors(wanted)
    arguments = {name: _arguments(leaf) for name, leaf in wanted.items()}
    alone = this_process_alone()
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    try:
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as orbax:
            flat = orbax.restore(path / STATE, args=ocp.args.PyTreeRestore(restore_args=arguments))
    except Exception as error:  # Orbax and TensorStore have no common base of "cannot be read"
        raise Unusable(f"Orbax cannot read it ({type(error).__name__}: {error})") from error
    manifest.check_values(flat)
    return jax.tree.unflatten(jax.tree.structure(like), [flat[name] for name in wanted]), manifest.position


def _arguments(leaf: jax.ShapeDtypeStruct) -> ocp.RestoreArgs:
    if leaf.sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray, dtype=leaf.dtype)
    return ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype)


def this_process_alone() -> ocp.options.MultiprocessingOptions:
    """Orbax's setting for a process that saves or restores without the others of its job taking part."""
    rank = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=rank, active_processes={rank})
