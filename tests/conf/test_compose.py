"""The config layer: every wrong word is one sentence with the nearest right one."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.compose import CONF, compose, field_paths, to_plain, validate
from conf.errors import ConfigError
from conf.schema import Config

SCALARS = {path: hint for path, hint in field_paths(Config).items() if hint in (int, float, bool, str)}


def test_defaults_are_the_rehearsal_on_the_sample_world():
    config = compose()
    assert (config.data.kind, config.hardware.name, config.recipe.name) == ("world", "cpu", "r4")


@pytest.mark.parametrize("group", ["recipe", "scale", "hardware"])
def test_every_choice_of_every_group_composes(group):
    for path in sorted((CONF / group).glob("*.yaml")):
        compose([f"{group}={path.stem}"])


def test_a_config_survives_json():
    config = compose(["scale=d24", "hardware=v6e-8", "recipe=head"])
    assert validate(to_plain(config)) == config


def test_a_field_left_to_its_default_can_be_overridden_with_and_without_plus():
    assert compose(["eval.max_per_task=20"]).eval.max_per_task == 20
    assert compose(["+eval.max_per_task=20"]).eval.max_per_task == 20


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("base.stepz=3", "There is no field 'base.stepz'. Did you mean 'base.steps'?"),
        ("steps=3", "There is no field 'steps'. Did you mean"),
        ("recipe.matrix_lr=0.1", "Did you mean 'recipe.optimizer.matrix_lr'?"),
        ("base.checkpoint={every_stepz: 3}", "Did you mean 'base.checkpoint.every_steps'?"),
        ("sft.mixture=[{path: x, wait: 3}]", "There is no field 'sft.mixture.0.wait'."),
        ("scale=d13", "scale=d13 does not exist: choose one of"),
        ("hardware=v6e8", "Did you mean 'v6e-8'?"),
        ("base.steps=-4", "base.steps=-4: should be greater than or equal to 1."),
        ("base=3", "base=3: should be an object."),
        ("store=gcs", "store.root is not set: give it as store.root=…"),
        ("foo", "cannot be read"),
        ("~base.steps", "cannot be deleted"),
        ("scale.n_kv_head=3", "scale gives no model: n_kv_head is 3: it must divide n_head ="),
        ("base.total_batch_tokens=1000", "total_batch_tokens=1000 is not a multiple of seq_len="),
        ("sft.total_batch_tokens=1000", "total_batch_tokens=1000 is not a multiple of seq_len="),
        ("compute.mesh.data=0", "an axis has at least one device"),
        ("compute.mesh.fsdp=-1", "only one axis can be -1"),
        ("chat.tasks=[nope]", "chat.tasks.0=nope: should be 'world', 'arc_easy'"),
        ("chat.tasks=[arc_eazy]", "Did you mean 'arc_easy'?"),
        ("store.root=", "store.root="),
    ],
)
def test_a_wrong_word_is_one_sentence(word, sentence):
    with pytest.raises(ConfigError) as caught:
        compose([word])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mesh_must_fit_the_hardware_before_it_is_rented():
    """A CPU can emulate any number of devices; there the stage itself refuses."""
    sizes = ["compute.mesh.data=1", "compute.mesh.fsdp=3"]
    compose(sizes)
    with pytest.raises(ConfigError, match=r"hardware=v6e-8: compute.mesh is data=1 fsdp=3 .* there are 8 devices"):
        compose([*sizes, "hardware=v6e-8"])
    compose(["compute.mesh.fsdp=4", "hardware=v6e-8"])


@settings(max_examples=40, deadline=None)
@given(path=st.sampled_from(sorted(SCALARS)), cut=st.integers(0, 30))
def test_a_misspelt_path_is_never_accepted(path, cut):
    section, _, word = path.rpartition(".")
    wrong = f"{section}.{word[: cut % len(word)]}_{word[cut % len(word) :]}x".lstrip(".")
    for word in (f"{wrong}=1", f"+{wrong}=1", f"++{wrong}=1"):
        with pytest.raises(ConfigError, match="There is no field"):
            compose([word])


@settings(max_examples=30, deadline=None)
@given(path=st.sampled_from(sorted(p for p, hint in SCALARS.items() if hint in (int, float))))
def test_text_where_a_number_belongs_is_refused(path):
    with pytest.raises(ConfigError):
        compose([f"{path}=many"])


def test_configs_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        compose().seed = 3  # type: ignore[misc]
