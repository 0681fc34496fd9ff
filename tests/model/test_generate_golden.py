"""Generation on the golden models, which are nanochat's: greedy tokens, and logits past the sliding windows.

`$ENCORE_GOLDEN` (default tests/golden) may hold models of other shapes.
"""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from model.generate import Completion, Engine
from model.gpt import init
from model.recipe import GPTConfig
from model.weights import import_nanochat
from tests.model.engines import COMPUTE, ROOT, full_logits, recipe, stepped_logits

GOLDEN = sorted(Path(os.environ.get("ENCORE_GOLDEN", ROOT / "tests/golden")).glob("*.npz"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_greedy_with_cache(path: Path) -> None:
    with np.load(path) as file:
        golden = dict(file)
    about = json.loads(str(golden["config/json"]))
    shape = {name: about[name] for name in ("vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd")}
    config = GPTConfig(recipe(about["recipe"]), seq_len=about["sequence_len"], **shape)
    like = jax.eval_shape(lambda: init(config, 0))
    trained = {k.removeprefix("params_after_3/"): v for k, v in golden.items() if k.startswith("params_after_3/")}
    params, _ = import_nanochat(trained, like)
    prompt, expected = golden["greedy/prompt"].tolist(), golden["greedy/tokens"].tolist()
    engine = Engine(params, config, COMPUTE)
    # Among prompts of other lengths, as an engine is used.
    others = [golden["inputs"][0, row, : 7 + 11 * row].tolist() for row in range(3)]
    answers = engine.generate([others[0], prompt, *others[1:]], max_new_tokens=len(expected), stop=[])
    assert answers[1] == [Completion(expected, [False] * len(expected), False)]
    # Logits at every position of rows that are longer than the short windows.
    long = golden["inputs"][0, :2].tolist()
    assert len(long[0]) > min(config.windows) + 8
    for row, stepped in zip(long, stepped_logits(params, long, len(long[0]) - 20, config), strict=True):
        full = full_logits(params, row, config)[-len(stepped) :]
        assert np.linalg.norm(stepped - full) <= 2e-5 * np.linalg.norm(full)
