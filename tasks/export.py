"""Stage `export`: a trained model as files that others read, with its scores and where it came from.

Fills model.safetensors (nanochat's names and layout), config.json, tokenizer.json, token_bytes.npy, README.md (the
model card) and audit.md. What was written is imported again before the stage ends, and must give the same logits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from model import gpt
from model.recipe import Compute, GPTConfig, Recipe
from model.weights import (
    Audit,
    config_from_nanochat,
    encore_path,
    export_nanochat,
    flatten,
    import_nanochat,
    nanochat_config,
    unflatten,
)
from tasks import model_card
from tasks.stage import InputError, Stage
from tasks.training.weights_io import load_model
from tasks.weights_files import read_tensors, write_safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from conf.schema import Config
    from tasks.store.artifact import Artifact
    from tasks.store.workspace import Workspace

STAGE = Stage(
    name="export",
    version=1,
    reads=("name",),
    inputs=("model", "tokenizer"),
    optional=("core", "chat"),
    accelerator=True,
)

MODEL, CONFIG, AUDIT, CARD = "model.safetensors", "config.json", "audit.md", "README.md"
TOKENIZER_FILES = ("tokenizer.json", "token_bytes.npy")
PROBE_TOKENS = (2, 64)  # rows and tokens of the comparison


def run(config: Config, inputs: Mapping[str, Artifact], out: Workspace) -> dict[str, Any]:
    """Write, read again, compare; returns the number of parameters and of bytes written.

    Raises InputError when the tokenizer is not the model's.
    """
    params, shape = load_model(inputs["model"])
    _copy_tokenizer(inputs["tokenizer"], shape, out.path)
    write_model(out.path, params, shape)
    again, shape_again, audit = read_model(out.path)
    compare(params, shape, again, shape_again)
    (out.path / AUDIT).write_text(audit.to_markdown(), encoding="utf-8")
    card = model_card.collect(config.name, params, shape, inputs)
    (out.path / CARD).write_text(model_card.render(card), encoding="utf-8")
    return {"parameters": card.parameters, "bytes": sum(file.stat().st_size for file in out.path.iterdir())}


def write_model(directory: Path, params: Any, shape: GPTConfig) -> None:
    """model.safetensors and config.json."""
    write_safetensors(directory / MODEL, export_nanochat(params), {"format": "pt"})
    described = {"model_type": "encore", **nanochat_config(shape), "recipe": shape.recipe.to_dict()}
    (directory / CONFIG).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def read_model(directory: Path) -> tuple[dict[str, Any], GPTConfig, Audit]:
    """Parameters in the dtypes of the file, shape and audit of what `write_model` wrote."""
    described = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    shape = config_from_nanochat(described, Recipe.from_dict(described["recipe"]))
    tensors = read_tensors(directory / MODEL)
    stored = {encore_path(name): tensor.dtype for name, tensor in tensors.items()}
    like = flatten(jax.eval_shape(partial(gpt.init, shape, 0)))
    like = {path: jax.ShapeDtypeStruct(leaf.shape, stored.get(path, leaf.dtype)) for path, leaf in like.items()}
    params, audit = import_nanochat(tensors, unflatten(like))
    return params, shape, audit


def _copy_tokenizer(tokenizer: Artifact, shape: GPTConfig, directory: Path) -> None:
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer.path(name), directory / name)
    vocab_size = len(np.load(directory / "token_bytes.npy"))
    if vocab_size != shape.vocab_size:
        raise InputError(
            f"The model has a vocabulary of {shape.vocab_size}, {tokenizer!r} one of {vocab_size}: export a model with "
            "the tokenizer that it was trained with."
        )


def compare(params: Any, shape: GPTConfig, again: Any, shape_again: GPTConfig) -> None:
    """Raise RuntimeError unless both models give the same logits, bit for bit, on random tokens."""
    rows, length = PROBE_TOKENS
    tokens = np.random.default_rng(0).integers(0, shape.vocab_size, (rows, min(length, shape.seq_len)))
    before, after = (_logits(p, tokens, config) for p, config in ((params, shape), (again, shape_again)))
    if not np.array_equal(before, after):
        worst = float(np.max(np.abs(before - after)))
        raise RuntimeError(f"The exported files give other logits than the model, by up to {worst:g}.")


@partial(jax.jit, static_argnames="shape")
def _logits(params: Any, tokens: jax.Array, shape: GPTConfig) -> jax.Array:
    return gpt.logits(params, gpt.hidden(params, tokens, shape, Compute()), shape)
