"""Every row of sizing.json, and the rules where nothing is given from outside."""

import json
from pathlib import Path

import jax
import pytest

from model.cost import parameter_counts
from model.gpt import init
from model.sizing import size
from tests.model.engines import recipe, tiny


def test_sizing_json(golden: Path) -> None:
    for name, rows in json.loads((golden / "sizing.json").read_text()).items():
        for row in rows:
            sizing = size(recipe(name), row["depth"], vocab_size=32768, seq_len=2048, ratio=row["ratio"])
            assert row == {
                "depth": row["depth"],
                "ratio": row["ratio"],
                "n_embd": sizing.config.n_embd,
                "n_head": sizing.config.n_head,
                "windows": list(sizing.config.windows),
                "param_counts": sizing.parameter_counts,
                "flops_per_token": sizing.flops_per_token,
                "target_tokens": sizing.target_tokens,
                "total_batch_size": sizing.total_batch_tokens,
                "num_iterations": sizing.iterations,
                "batch_lr_scale": sizing.batch_lr_scale,
                "weight_decay": sizing.weight_decay,
                "dmodel_lr_scale": sizing.width_lr_scale,
            }


def test_published_runs() -> None:
    r4 = size(recipe("r4"), 24, vocab_size=32768, seq_len=2048, ratio=9.5)
    assert (r4.iterations, r4.total_batch_tokens) == (6612, 1_048_576)
    assert size(recipe("head"), 24, vocab_size=32768, seq_len=2048, ratio=8).iterations == 5568


def test_given_batch_and_horizon_are_kept() -> None:
    free = size(recipe("r4"), 12, vocab_size=32768, seq_len=2048)
    bound = size(recipe("r4"), 12, vocab_size=32768, seq_len=2048, total_batch_tokens=131_072, iterations=7)
    assert (bound.iterations, bound.total_batch_tokens, bound.batch_lr_scale) == (7, 131_072, 0.5)
    assert bound.target_tokens == free.target_tokens


def test_fewer_kv_heads_than_the_reference_depth_could_share() -> None:
    sizing = size(recipe("head"), 8, vocab_size=4096, seq_len=256, head_dim=64, n_kv_head=1)
    assert (sizing.config.n_head, sizing.config.n_kv_head) == (8, 1)
    assert sizing.iterations >= 1


@pytest.mark.parametrize("name", ["head", "r4"])
@pytest.mark.parametrize("changes", [{}, {"n_layer": 5, "vocab_size": 131}, {"n_head": 4, "n_kv_head": 1}])
def test_counts_are_those_of_the_arrays(name: str, changes: dict[str, int]) -> None:
    config = tiny(name, n_embd=64, **changes)
    shapes = jax.eval_shape(lambda: init(config, 0))
    sizes = {top: sum(x.size for x in jax.tree.leaves(tree)) for top, tree in shapes.items()}
    counts = parameter_counts(config)
    assert counts["total"] == sum(sizes.values())
    assert counts["transformer_matrices"] == sizes["layers"]
    assert counts["value_embeds"] == sizes["value_embeds"]
    assert counts["wte"] == sizes["wte"]
    assert counts["lm_head"] == sizes["lm_head"]
