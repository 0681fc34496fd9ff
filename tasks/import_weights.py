"""Stage and command that make an artifact of weights trained elsewhere, with an audit of every tensor.

    python -m tasks.import_weights model_006612.pt --config meta_006612.json --recipe r4 --store runs
    python -m tasks.import_weights export/model.safetensors --config export/config.json --store runs

Reads nanochat's checkpoints (.pt, without torch), safetensors and npz with nanochat's names. The artifact holds what a
trained model's does, less optimizer state, and audit.md. Anything missing, left over, doubled or not finite is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from conf.compose import compose
from conf.errors import ConfigError
from conf.schema import Hardware
from model import gpt
from model.recipe import GPTConfig, Recipe
from model.weights import WeightsError, config_from_nanochat, import_nanochat
from tasks.stage import InputError, Stage
from tasks.store import Store
from tasks.store.inline import run_inline
from tasks.store.roots import sha256_file
from tasks.training.weights_io import MODEL, WEIGHTS, save_params
from tasks.weights_files import read_tensors

if TYPE_CHECKING:
    from tasks.store.artifact import Artifact
    from tasks.store.workspace import Workspace

STAGE = Stage(name="import_weights", version=1, reads=("sha256", "shape"), runtime=("path",))
AUDIT = "audit.md"


@dataclass(frozen=True)
class Request:
    """What to import; the content of the file counts, not its place."""

    path: str
    sha256: str
    shape: dict[str, Any]  # GPTConfig.to_dict()
    hardware: Hardware  # for the manifest


def run(config: Request, inputs: Mapping[str, Artifact], out: Workspace) -> dict[str, Any]:
    """Write weights, shape and audit; raises InputError, from WeightsError where tensors do not make up the model."""
    shape = GPTConfig.from_dict(config.shape)
    like = jax.eval_shape(partial(gpt.init, shape, 0))
    try:
        params, audit = import_nanochat(read_tensors(config.path), like)
    except WeightsError as error:
        raise InputError(f"{config.path}: {error}") from error
    save_params(out.path / WEIGHTS, params)
    (out.path / MODEL).write_text(json.dumps(config.shape, indent=1), encoding="utf-8")
    (out.path / AUDIT).write_text(audit.to_markdown(), encoding="utf-8")
    return {"tensors": len(audit.rows), "parameters": sum(leaf.size for leaf in jax.tree.leaves(params))}


def read_shape(path: Path, recipe_name: str | None) -> GPTConfig:
    """The model's shape from nanochat's meta_*.json or an export's config.json, the recipe by name or from the file."""
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        if recipe_name is not None:
            recipe = compose([f"recipe={recipe_name}"]).recipe
        elif "recipe" in described:
            recipe = Recipe.from_dict(described["recipe"])
        else:
            raise InputError(f"{path} does not say which recipe the model follows: add --recipe, such as r4 or head.")
        return config_from_nanochat(described.get("model_config", described), recipe)
    except KeyError as error:
        raise InputError(f"{path} lacks {error}, which nanochat's model_config has.") from error
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} cannot be read as the config of a model: {error}.") from error


def main(words: Sequence[str] | None = None) -> int:
    """The command; exit status 0, or 2 after one sentence on standard error (and the audit, where there is one)."""
    parser = argparse.ArgumentParser(prog="python -m tasks.import_weights", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="model_*.pt, .safetensors or .npz")
    parser.add_argument("--config", type=Path, required=True, help="nanochat's meta_*.json, or an export's config.json")
    parser.add_argument("--recipe", help="name in conf/recipe; an export's config.json has its own")
    parser.add_argument("--store", default="runs", help="directory or gs://bucket/prefix of artifacts")
    chosen = parser.parse_args(words)
    try:
        shape = read_shape(chosen.config, chosen.recipe)
        if not chosen.file.is_file():
            raise InputError(f"{chosen.file} does not exist.")
        hardware = compose().hardware
        request = Request(str(chosen.file.resolve()), sha256_file(chosen.file), shape.to_dict(), hardware)
        artifact = run_inline("tasks.import_weights", request, {}, Store.open(chosen.store))
    except (InputError, ConfigError) as error:
        print(error, file=sys.stderr)
        if isinstance(error.__cause__, WeightsError):
            print(error.__cause__.audit.to_markdown())
        return 2
    print(f"{artifact.where}: {artifact.manifest.metrics['tensors']} tensors; audit in {artifact.path(AUDIT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
