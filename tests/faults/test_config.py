"""Known failures of Hydra and OmegaConf (B16–B21)."""

import pytest
from hydra.core.global_hydra import GlobalHydra

from conf.compose import compose
from conf.errors import ConfigError


def test_b16_an_unquoted_url_with_an_equals_sign_names_its_quoted_form():
    with pytest.raises(ConfigError) as caught:
        compose(["store.root=gs://b/run=1/x"])
    assert "'store.root=\"gs://b/run=1/x\"'" in str(caught.value)


def test_b16_the_quoted_form_works():
    assert compose(['store.root="gs://b/run=1/x"']).store.root == "gs://b/run=1/x"


@pytest.mark.parametrize("word", ["name=d12#x", "~name=x", "name=[", "store.root='gs://b"])
def test_b16_what_the_lexer_refuses_is_one_sentence(word):
    with pytest.raises(ConfigError) as caught:
        compose([word])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["92063e4", "1e999", "1234e56", "007", "12:30"])
def test_b17_an_id_that_yaml_reads_as_a_number_is_refused(value):
    with pytest.raises(ConfigError, match="name"):
        compose([f"name={value}"])


def test_b18_a_typo_behind_plus_is_refused():
    with pytest.raises(ConfigError, match=r"no field 'base\.lrr'"):
        compose(["+base.lrr=1"])


@pytest.mark.parametrize("value", ["1e3", "nan", "inf", "-1", "0", "1.5", "true"])
def test_b19_a_step_count_is_a_positive_integer(value):
    with pytest.raises(ConfigError, match=r"base\.steps"):
        compose([f"base.steps={value}"])


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_b19_rates_are_finite(value):
    with pytest.raises(ConfigError):
        compose([f"recipe.optimizer.matrix_lr={value}"])


@pytest.mark.parametrize("word", ["seed=010", "name=no", "name=12:30", "data.text_key=yes"])
def test_b20_yaml_readings_that_surprise_are_refused_or_kept_as_text(word):
    key, _, value = word.partition("=")
    try:
        config = compose([word])
    except ConfigError:
        return
    section, _, leaf = key.rpartition(".")
    assert getattr(getattr(config, section) if section else config, leaf) == value


def test_b20_a_list_without_brackets_is_not_a_sweep():
    with pytest.raises(ConfigError, match="sweep"):
        compose(["data.paths=a,b"])


def test_b20_equal_numbers_make_equal_configs():
    assert compose(["sft.lr_scale=0.02"]) == compose(["sft.lr_scale=0.020"])
    assert compose(["hardware.hbm_gib=12"]) == compose(["hardware.hbm_gib=12.0"])


def test_b21_composing_leaves_no_hydra_state_and_nests():
    compose()
    assert not GlobalHydra.instance().is_initialized()
    GlobalHydra.instance().clear()
    assert compose() == compose()
