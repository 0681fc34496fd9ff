"""Recipes and shapes as data: round trips, ranges, windows."""

import dataclasses
import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.recipe import Architecture, Compute, GPTConfig, Recipe
from tests.model.engines import ROOT, recipe, tiny

NAMES = sorted(path.stem for path in (ROOT / "conf/recipe").glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_recipe_round_trip(name: str) -> None:
    again = Recipe.from_dict(json.loads(json.dumps(recipe(name).to_dict())))
    assert again == recipe(name)
    config = tiny(name)
    assert GPTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_unknown_missing_and_mistyped_fields_are_named_by_path() -> None:
    data = recipe("r4").to_dict()
    data["optimizer"]["muon"]["beta3"] = 0.9
    with pytest.raises(ValueError, match=r"recipe\.optimizer\.muon\.beta3 is not a field"):
        Recipe.from_dict(data)
    data = recipe("r4").to_dict()
    del data["schedule"]["decay"]
    with pytest.raises(ValueError, match=r"recipe\.schedule\.decay is missing"):
        Recipe.from_dict(data)
    data = recipe("r4").to_dict()
    data["architecture"]["smear"] = "no"
    with pytest.raises(ValueError, match=r"recipe\.architecture\.smear is 'no'.*bool"):
        Recipe.from_dict(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [("softcap", 200.0), ("softcap", math.nan), ("rope_base", math.inf), ("short_window_round", "nearest")],
)
def test_values_out_of_range_are_named(field: str, value: float | str) -> None:
    good = recipe("head").architecture
    with pytest.raises(ValueError, match=field):
        Architecture(**{**dataclasses.asdict(good), field: value})


def test_shapes_that_cannot_be() -> None:
    for changes, word in [
        ({"n_embd": 38}, "n_embd"),
        ({"n_kv_head": 3, "n_head": 4, "n_embd": 64}, "n_kv_head"),
        ({"window_pattern": "SM"}, "window_pattern"),
        ({"n_embd": 16, "n_head": 2}, "channels"),
    ]:
        with pytest.raises(ValueError, match=word):
            tiny("head", **changes)
    with pytest.raises(ValueError, match="remat"):
        Compute(remat="some")  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8192), st.integers(1, 12), st.text("SL", min_size=1, max_size=5))
def test_windows(seq_len: int, n_layer: int, pattern: str) -> None:
    short = {"head": -(-seq_len // 4 // 128) * 128, "r4": seq_len // 2}
    for name, size in short.items():
        windows = tiny(name, seq_len=seq_len, n_layer=n_layer, window_pattern=pattern).windows
        letters = [pattern[i % len(pattern)] for i in range(n_layer - 1)] + ["L"]
        assert windows == tuple({"S": size, "L": seq_len}[letter] for letter in letters)


@given(st.integers(1, 40))
def test_value_embeddings_alternate_and_end_on_the_last_layer(n_layer: int) -> None:
    config = tiny(n_layer=n_layer)
    has = [config.has_value_embed(i) for i in range(n_layer)]
    assert has[-1]
    assert all(a != b for a, b in itertools.pairwise(has))


def test_vocabulary_is_padded() -> None:
    assert [tiny(vocab_size=v).padded_vocab_size for v in (1, 64, 65, 300)] == [64, 64, 128, 320]
