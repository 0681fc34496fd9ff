"""A run that takes seconds: a handful of the sample world's documents and a model of a few thousand parameters."""

from __future__ import annotations

from pathlib import Path

from conf.compose import compose
from conf.schema import Config
from tasks.store import Store
from tasks.store.artifact import Artifact
from tasks.store.inline import run_inline

WORDS = [
    "data.world.people=8",
    "data.world.places=6",
    "data.world.things=6",
    "data.world.documents=300",
    "tokenizer.vocab_size=400",
    "scale.depth=1",
    "scale.aspect=32",
    "scale.head_dim=16",
    "scale.seq_len=32",
    "base.steps=24",
    "base.total_batch_tokens=256",
    "base.device_batch_rows=4",
    "base.eval_every=5",
    "base.eval_tokens=640",
    "base.sample_every=8",
    "base.log_every=1",
    "base.checkpoint.every_steps=4",
    "sft.steps=6",
    "sft.total_batch_tokens=256",
    "sft.device_batch_rows=4",
    "sft.eval_every=3",
    "sft.log_every=1",
    "sft.eval_tokens=640",
    "sft.checkpoint.every_steps=2",
    # The recipe's own rates: a rehearsal's higher ones magnify rounding beyond what the tests compare.
    "recipe.optimizer.matrix_lr=0.02",
    "recipe.optimizer.unembedding_lr=0.004",
    "recipe.optimizer.embedding_lr=0.3",
    "sft.lr_scale=0.8",
]

BASE_INPUTS = ("shards", "tokenizer")
ELASTIC = ("base.steps=16", "base.eval_every=16", "base.sample_every=16", "base.checkpoint.every_steps=100")
SFT_INPUTS = ("base", "conversations", "tokenizer")


def config(*words: str) -> Config:
    """The tiny run, with overrides."""
    return compose([*WORDS, *words])


def make_inputs(directory: Path, stages: tuple[str, ...] = ("shards",)) -> tuple[Store, dict[str, Artifact]]:
    """A store that holds what training needs, and its artifacts by role."""
    store = Store(directory / "store", cache_dir=directory / "cache", lease_seconds=5)
    made: dict[str, Artifact] = {}
    made["corpus"] = run_inline("corpus", config(), {}, store)
    made["tokenizer"] = run_inline("tokenizer", config(), {"corpus": made["corpus"]}, store)
    inputs = {"shards": ("corpus", "tokenizer"), "conversations": ("tokenizer",)}
    for stage in stages:
        made[stage] = run_inline(stage, config(), {role: made[role] for role in inputs[stage]}, store)
    return store, made
