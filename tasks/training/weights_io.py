"""The files of a trained model: weights.safetensors, optimizer.safetensors, model.json.

Names are the paths of the parameter tree joined by dots; every tensor keeps its own dtype and shape, so that what is
read is what was trained, bit for bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load_file

from model.recipe import GPTConfig
from model.weights import flatten, unflatten
from tasks.stage import InputError
from tasks.store.artifact import Artifact
from tasks.weights_files import write_safetensors

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
MODEL = "model.json"


def save_params(path: Path, params: Any) -> None:
    """Write a tree of arrays, wherever they lie, to a safetensors file."""
    write_safetensors(path, {name: np.asarray(leaf) for name, leaf in flatten(params).items()}, {"format": "encore"})


def save_model(directory: Path, params: Any, opt_state: Any, config: GPTConfig) -> None:
    """Write the three files of a trained model."""
    save_params(directory / WEIGHTS, params)
    save_params(directory / OPTIMIZER, opt_state)
    (directory / MODEL).write_text(json.dumps(config.to_dict(), indent=1))


def load_model(artifact: Artifact) -> tuple[dict[str, Any], GPTConfig]:
    """Parameters (NumPy, as the nested dict of `model.gpt`) and shape of the model that a stage trained."""
    config = GPTConfig.from_dict(json.loads(artifact.path(MODEL).read_text()))
    return unflatten(load_file(artifact.path(WEIGHTS))), config


def load_into(path: Path, like: Any) -> Any:
    """A tree of the structure of `like` from a file; raises InputError unless names, shapes and dtypes are the same."""
    tensors, wanted = load_file(path), flatten(like)
    if different := sorted(tensors.keys() ^ wanted.keys()):
        raise InputError(f"{path} does not fit this run: {', '.join(different[:5])} is on one side only.")
    for name, leaf in wanted.items():
        if (tensors[name].shape, tensors[name].dtype) != (leaf.shape, leaf.dtype):
            raise InputError(
                f"{path} does not fit this run: {name} is {tensors[name].dtype}{list(tensors[name].shape)} in it and "
                f"{leaf.dtype}{list(leaf.shape)} here."
            )
    return jax.tree.unflatten(jax.tree.structure(like), [tensors[name] for name in wanted])
