"""Weights go both ways between nanochat's names and Encore's tree, and nothing is lost, doubled or guessed."""

import json
from functools import partial
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import yaml

from model import gpt
from model.recipe import Compute, Recipe
from model.weights import (
    WeightsError,
    config_from_nanochat,
    encore_path,
    export_nanochat,
    flatten,
    import_nanochat,
    nanochat_config,
    nanochat_name,
    unflatten,
)

RECIPES = Path(__file__).parents[2] / "conf/recipe"


def golden_model(folder: Path, name: str):
    """nanochat's config as ours, the tensors, and the shapes of our parameters."""
    archive = np.load(folder / f"{name}.npz")
    theirs = json.loads(str(archive["config/json"]))
    recipe = Recipe.from_dict(yaml.safe_load((RECIPES / f"{theirs['recipe']}.yaml").read_text()))
    config = config_from_nanochat(theirs, recipe)
    assert nanochat_config(config).items() <= theirs.items()
    tensors = {key.removeprefix("params/"): archive[key] for key in archive.files if key.startswith("params/")}
    return archive, config, tensors, jax.eval_shape(partial(gpt.init, config, 0))


@pytest.fixture
def head(golden):
    return golden_model(golden, "head")


@pytest.mark.parametrize("name", ["head", "r4"])
def test_imported_weights_give_nanochats_logits_and_survive_a_round_trip(golden, name):
    archive, config, tensors, like = golden_model(golden, name)

    @jax.jit
    def logits(params, tokens):
        return gpt.logits(params, gpt.hidden(params, tokens, config, Compute()), config)

    params, audit = import_nanochat(tensors, like)
    rows = archive["inputs"][0][: archive["logits"].shape[0]]
    ours = np.asarray(logits(params, rows))
    theirs = archive["logits"]
    picked = ours[:, archive["logits_positions"]]
    assert np.linalg.norm(picked - theirs) <= 2e-5 * np.linalg.norm(theirs)

    exported = export_nanochat(params)
    assert exported.keys() == tensors.keys()
    again, _ = import_nanochat(exported, like)
    np.testing.assert_array_equal(logits(again, rows), ours)
    assert [row.outcome for row in audit.rows] == ["loaded"] * len(tensors)


def test_every_parameter_of_every_recipe_has_one_name_on_either_side(golden):
    for name in ("head", "r4"):
        _, _, tensors, like = golden_model(golden, name)
        paths = list(flatten(like))
        assert {nanochat_name(path) for path in paths} == tensors.keys()
        assert [encore_path(nanochat_name(path)) for path in paths] == paths
        assert flatten(unflatten(flatten(like))) == flatten(like)


def test_the_audit_lists_each_tensor_with_what_it_became(head):
    _, _, tensors, like = head
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"].astype(ml_dtypes.bfloat16)
    params, audit = import_nanochat(tensors, like)
    lines = audit.to_markdown().splitlines()
    assert len(lines) == len(tensors) + 2
    (line,) = [line for line in lines if "transformer.wte.weight" in line]
    norm = f"{np.linalg.norm(tensors['transformer.wte.weight'].astype(np.float64)):.6g}"
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        "transformer.wte.weight", "320×64", "bfloat16", norm, "no", "wte", "320×64", "float32", norm, "loaded",
    ]  # fmt: skip
    assert params["wte"].dtype == np.float32


def test_names_under_torch_compile_are_the_same_names(head):
    _, _, tensors, like = head
    params, _ = import_nanochat({f"_orig_mod.{name}": tensor for name, tensor in tensors.items()}, like)
    np.testing.assert_array_equal(params["layers"]["2"]["mlp"]["c_fc"], tensors["transformer.h.2.mlp.c_fc.weight"])


def without(name):
    return lambda tensors: tensors.pop(name)


def put(name, value):
    return lambda tensors: tensors.update({name: value(tensors) if callable(value) else value})


Q0, Q1 = "transformer.h.0.attn.c_q.weight", "transformer.h.1.attn.c_q.weight"
K0 = "transformer.h.0.attn.c_k.weight"


@pytest.mark.parametrize(
    ("spoil", "kind", "names"),
    [
        (without(Q0), "missing", [Q0]),
        (without("smear_gate.weight"), "missing", ["smear_gate.weight"]),
        (put("transformer.h.9.mlp.c_fc.weight", np.ones((256, 64))), "left over", ["transformer.h.9.mlp.c_fc.weight"]),
        (put("value_embeds.0.weight", np.ones((320, 32))), "left over", ["value_embeds.0.weight"]),
        (put("cos", np.ones((1, 2560, 1, 8))), "non-parameter", ["cos"]),
        (put("transformer.h.0.attn.rotary.inv_freq", np.ones(8)), "non-parameter", ["inv_freq"]),
        (put(f"_orig_mod.{Q0}", lambda tensors: tensors[Q0] + 1), "duplicated", [f"_orig_mod.{Q0}"]),
        (put(Q1, lambda tensors: tensors[Q0]), "duplicated", [Q1, Q0]),
        (put("lm_head.weight", lambda tensors: tensors["transformer.wte.weight"]), "duplicated", ["lm_head.weight"]),
        (put(Q0, lambda tensors: np.full((64, 64), np.nan)), "NaN or infinite", [Q0]),
        (put(K0, lambda tensors: np.where(tensors[K0] > 0, np.inf, 0)), "NaN or infinite", [K0]),
        (put(K0, lambda tensors: tensors[K0] * 1e300), "NaN or infinite", [K0]),
        (put(K0, lambda tensors: tensors[K0].T), "wrong shape", [K0, "64×32", "32×64"]),
        (put("lm_head.weight", lambda tensors: tensors["lm_head.weight"][:300]), "wrong shape", ["lm_head.weight"]),
        (put(K0, lambda tensors: np.ones((32, 64), np.int64)), "wrong dtype", [K0, "int64"]),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_a_set_of_tensors_that_is_not_the_model_is_refused_by_name(head, spoil, kind, names):
    _, _, tensors, like = head
    tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    spoil(tensors)
    with pytest.raises(WeightsError) as refused:
        import_nanochat(tensors, like)
    assert list(refused.value.audit.problems) == [kind]
    assert all(name in str(refused.value) for name in names)
    first = refused.value.audit.to_markdown().splitlines()[2]
    assert kind in first  # problems lead the table


def test_constant_tensors_may_repeat(head):
    """A fresh model has many: output projections start at zero."""
    _, _, tensors, like = head
    for i in range(4):
        tensors[f"transformer.h.{i}.attn.c_proj.weight"] = np.zeros((64, 64), np.float32)
    import_nanochat(tensors, like)
