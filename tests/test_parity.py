"""nanochat's own numbers, for every *.npz in $ENCORE_GOLDEN (default tests/golden); float32 on a CPU.

Greedy continuation with a KV cache is compared in tests/model/test_generate_golden.py.
"""

import json
import os
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from model.cost import flops_per_token, parameter_counts
from model.gpt import hidden, init, logits
from model.loss import loss_sum, token_losses
from model.optimizer import make_optimizer
from model.recipe import Compute, GPTConfig, Recipe
from model.schedules import Dials
from model.step import apply_gradients
from model.weights import flatten, import_nanochat

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(Path(os.environ.get("ENCORE_GOLDEN", ROOT / "tests/golden")).glob("*.npz"))
COMPUTE = Compute(attention="xla")
LOSSES, GRADIENTS, UPDATES = 2e-5, 1e-4, 1e-4  # relative errors that are allowed


@dataclass(frozen=True)
class Golden:
    """One file: its numbers, the model they are of and the recipe's optimizer at the rates they were made with."""

    numbers: dict[str, np.ndarray]

    @cached_property
    def about(self) -> dict[str, Any]:
        return json.loads(str(self.numbers["config/json"]))

    @cached_property
    def config(self) -> GPTConfig:
        file = ROOT / f"conf/recipe/{self.about['recipe']}.yaml"
        names = ("vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd", "window_pattern")
        shape = {name: self.about[name] for name in names}
        return GPTConfig(
            Recipe.from_dict(yaml.safe_load(file.read_text())), seq_len=self.about["sequence_len"], **shape
        )

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe at the base rates of the file. Its weight decay is among the schedule's numbers."""
        given, settings = self.about["optimizer"], self.config.recipe.optimizer
        changes: dict[str, Any] = {name: value for name, value in given.items() if name.endswith("_lr")}
        if "adam_betas" in given:
            beta1, beta2 = given["adam_betas"]
            for name in ("lm_head", "wte", "value_embeds", "resid_lambdas"):
                changes[name] = replace(getattr(settings, name), beta1=beta1, beta2=beta2)
        return replace(self.config.recipe, optimizer=replace(settings, **changes))

    def tree(self, prefix: str) -> dict[str, Any]:
        """The tensors under a prefix as Encore's parameter tree; every one must find its place."""
        names = [name for name in self.numbers if name.startswith(f"{prefix}/")]
        tensors = {name.removeprefix(f"{prefix}/"): self.numbers[name] for name in names}
        return import_nanochat(tensors, jax.eval_shape(lambda: init(self.config, 0)))[0]

    @cached_property
    def params(self) -> dict[str, Any]:
        return self.tree("params")


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def golden(request: pytest.FixtureRequest) -> Golden:
    with np.load(request.param) as file:
        return Golden(dict(file))


def error(ours: Any, theirs: Any) -> float:
    """‖a − b‖ / ‖b‖ in float64."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def assert_close(ours: Any, theirs: Any, limit: float) -> None:
    """Every tensor of two trees within `limit`; the message names those that are not."""
    ours, theirs = flatten(ours), flatten(theirs)
    assert ours.keys() == theirs.keys()
    far = {name: error(ours[name], theirs[name]) for name in ours}
    assert not {name: e for name, e in far.items() if not e <= limit}


def mean_loss(params: Any, tokens: jax.Array, targets: jax.Array, config: GPTConfig) -> jax.Array:
    total, n_targets = loss_sum(params, tokens, targets, config, COMPUTE)
    return total / n_targets


def test_there_are_golden_files() -> None:
    assert FILES


def test_losses_and_logits(golden: Golden) -> None:
    tokens, targets = golden.numbers["inputs"][0], golden.numbers["targets"][0]
    assert (targets == -1).any()
    positions = golden.numbers["logits_positions"]

    @jax.jit
    def run(params: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        stream = hidden(params, tokens[:2], golden.config, COMPUTE)[:, positions]
        losses = token_losses(params, tokens, targets, golden.config, COMPUTE)
        return losses, mean_loss(params, tokens, targets, golden.config), logits(params, stream, golden.config)

    losses, mean, at = run(golden.params)
    assert error(losses, golden.numbers["loss_none"]) <= LOSSES
    assert error(mean, golden.numbers["loss/0"]) <= LOSSES
    assert at.shape[-1] == golden.config.vocab_size
    assert error(at, golden.numbers["logits"]) <= LOSSES


def test_gradients(golden: Golden) -> None:
    run = jax.jit(jax.grad(mean_loss), static_argnames="config")
    ours = run(golden.params, golden.numbers["inputs"][0], golden.numbers["targets"][0], config=golden.config)
    assert_close(ours, golden.tree("grads"), GRADIENTS)


def test_three_updates(golden: Golden) -> None:
    optimizer = make_optimizer(golden.recipe, golden.config.n_embd)

    @jax.jit
    def step(params: Any, opt_state: Any, tokens: jax.Array, targets: jax.Array, settings: Dials) -> Any:
        loss, grads = jax.value_and_grad(mean_loss)(params, tokens, targets, golden.config)
        return loss, *apply_gradients(optimizer, params, grads, opt_state, settings)

    params, opt_state = golden.params, optimizer.init(golden.params)
    for i in range(3):
        names = ("lr_mult", "muon_momentum", "muon_weight_decay")
        settings = Dials(*(jnp.asarray(golden.numbers[f"schedule/{name}"][i]) for name in names))
        tokens, targets = golden.numbers["inputs"][i], golden.numbers["targets"][i]
        loss, params, opt_state = step(params, opt_state, tokens, targets, settings)
        assert error(loss, golden.numbers[f"loss/{i}"]) <= LOSSES
    start = jax.tree.map(partial(np.asarray, dtype=np.float64), golden.params)
    moved = jax.tree.map(np.subtract, params, start)
    assert_close(moved, jax.tree.map(np.subtract, golden.tree("params_after_3"), start), UPDATES)


def test_greedy_continuation(golden: Golden) -> None:
    params, prompt = golden.tree("params_after_3"), golden.numbers["greedy/prompt"]
    expected = golden.numbers["greedy/tokens"].tolist()

    @jax.jit
    def next_token(tokens: jax.Array, length: int) -> jax.Array:
        stream = hidden(params, tokens[None], golden.config, COMPUTE)[0, length - 1]
        return jnp.argmax(logits(params, stream, golden.config))

    tokens = np.zeros(len(prompt) + len(expected), np.int32)
    tokens[: len(prompt)] = prompt
    for length in range(len(prompt), len(tokens)):
        tokens[length] = next_token(tokens, length)
    assert tokens[len(prompt) :].tolist() == expected


def test_counts(golden: Golden) -> None:
    assert flops_per_token(golden.config) == golden.numbers["flops_per_token"]
    prefix = "param_counts/"
    counts = {k.removeprefix(prefix): int(v) for k, v in golden.numbers.items() if k.startswith(prefix)}
    assert parameter_counts(golden.config) == counts
    assert sum(x.size for x in jax.tree.leaves(golden.params)) == counts["total"]
    assert golden.config.padded_vocab_size == golden.about["padded_vocab_size"]
