"""Keys: the same in every process, equal for equal meaning, and loud about what has no canonical form."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.stage import InputError, Stage
from tasks.store import keys
from tasks.store.sources import PROJECT

STAGE = Stage("toy", 1, reads=("seed", "data", "name"), runtime=("data.paths",), inputs=("corpus",))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(JSON)
def test_canonical_form_is_stable_under_a_round_trip_and_reordering(value):
    def reordered(item):
        if isinstance(item, dict):
            return {name: reordered(item[name]) for name in reversed(item)}
        return [reordered(i) for i in item] if isinstance(item, list) else item

    text = keys.dumps(value)
    assert text == keys.dumps(json.loads(text)) == keys.dumps(reordered(value))


@settings(max_examples=30, deadline=None)
@given(JSON, JSON)
def test_different_values_have_different_keys(one, other):
    assert (keys.digest(one) == keys.digest(other)) == (keys.dumps(one) == keys.dumps(other))
    assert keys.digest([one]) != keys.digest({"value": one})


def test_a_key_is_the_same_in_other_processes_and_as_written_down(config):
    code = (
        "from conf.compose import compose; from tasks.stage import Stage; from tasks.store import keys; "
        f"stage = {STAGE!r}; "
        "print(keys.digest(keys.payload(stage, compose(['name=other']), {'corpus': 'k'})))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=environment, capture_output=True, text=True, check=True
    )
    here = keys.digest(keys.payload(STAGE, replace(config(), name="other"), {"corpus": "k"}))
    assert run.stdout.strip() == here
    # Written down once, so that a change by another Python version or in the canonical form shows.
    content = {"b": [1, 2.5, None, True, 0.1], "a": {"ü": "x", "n": 1e22}}
    assert keys.digest(content) == "4de43441384142cd4f8c85941bbeec83bfa11e8892d3fc560c91bfd88568266a"


def test_what_cannot_change_the_bytes_stays_out_of_the_key(config):
    def key(made):
        return keys.digest(keys.payload(STAGE, made, {"corpus": "k"}))

    assert key(config(words=["a"])) == key(config(words=["b"]))
    assert key(config(seed=1)) != key(config(seed=2))
    changed = replace(config(), data=replace(config().data, val_shards=2))
    assert key(changed) != key(config())


def test_the_stage_its_version_and_its_inputs_are_in_the_key(config):
    key = keys.digest(keys.payload(STAGE, config(), {"corpus": "k"}))
    assert key != keys.digest(keys.payload(replace(STAGE, name="other"), config(), {"corpus": "k"}))
    assert key != keys.digest(keys.payload(replace(STAGE, version=2), config(), {"corpus": "k"}))
    assert key != keys.digest(keys.payload(STAGE, config(), {"corpus": "l"}))


@pytest.mark.parametrize("inputs", [{}, {"corpus": "k", "tokenizer": "t"}])
def test_missing_and_foreign_inputs_are_refused(config, inputs):
    with pytest.raises(InputError, match="takes the inputs corpus"):
        keys.payload(STAGE, config(), inputs)


@pytest.mark.parametrize(
    "address", ["https://me:pass@host/x", "gs://b/x?X-Goog-Signature=abc", "https://h/f?token=abc"]
)
def test_secrets_in_addresses_do_not_reach_the_key(address):
    text = keys.dumps({"path": address})
    assert "pass" not in text
    assert "abc" not in text
    other = address.replace("pass", "word").replace("abc", "def")
    assert keys.digest({"path": address}) == keys.digest({"path": other})
