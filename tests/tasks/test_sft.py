"""SFT: base's model, only the assistant's words, the same loop and the same promises."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from tasks import sft
from tasks.stage import InputError, Preempted, StopSignal
from tasks.store import run_inline
from tasks.training.weights_io import load_model
from tests.tasks.training.tiny import SFT_INPUTS, config


def distance(one, other):
    """‖one − other‖ / ‖other‖ over all parameters."""
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    moved, size = (
        sum(float(np.square(x).sum()) for x in xs) for xs in ([a - b for a, b in pairs], [b for _, b in pairs])
    )
    return (moved / size) ** 0.5


@pytest.fixture
def inputs(tiny, tiny_base):
    made = tiny[1] | {"base": tiny_base}
    return {role: made[role] for role in SFT_INPUTS}


def test_sft_moves_bases_weights_and_its_bpb_falls_also_when_it_is_stopped(inputs, store, tiny_base):
    stop, told = StopSignal(), []

    def listen(event):
        told.append(event)
        if event.get("step") == 4:
            stop.request("SIGTERM")

    with pytest.raises(Preempted):
        run_inline("sft", config(), inputs, store, stop=stop, on_event=listen)
    made = run_inline("sft", config(), inputs, store)
    history = [json.loads(line) for line in made.path("history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in history] == list(range(7))
    assert history[6]["val_bpb"] < history[0]["val_bpb"]
    assert [line["lr_mult"] for line in history[1:]] == pytest.approx([1, 1, 1, 1, 2 / 3, 1 / 3])

    (after, shape), (before, base_shape) = load_model(made), load_model(tiny_base)
    assert shape == base_shape
    assert 0 < distance(after, before) < 0.1  # from base on, not from random weights
    (sample,) = json.loads(made.path("samples.json").read_text())
    assert all(text["prompt"].endswith("<|assistant_start|>") for text in sample["texts"])


def test_sft_starts_from_bases_weights_and_from_its_moments_if_asked(inputs, tiny_base):
    plan = sft.plan_run(config(), inputs)
    warm, cold = (sft.start(plan, tiny_base, warm_optimizer=warm) for warm in (True, False))
    weights, _ = load_model(tiny_base)
    for state in (warm, cold):
        assert int(state.step) == 0
        assert all(map(np.array_equal, jax.tree.leaves(state.params), jax.tree.leaves(weights)))
    assert jax.tree.structure(warm) == jax.tree.structure(cold)
    moments = [
        [float(np.abs(np.asarray(leaf)).sum()) for leaf in jax.tree.leaves(state.opt_state)] for state in (warm, cold)
    ]
    assert sum(moments[0]) > 0
    assert sum(moments[1]) == 0


def test_batch_steps_and_rates_follow_from_base_and_the_packed_rows(inputs, tiny_base):
    plan = sft.plan_run(config("sft.total_batch_tokens=null", "sft.steps=null", "sft.epochs=2.0"), inputs)
    assert plan.loader.batch_rows * 32 == tiny_base.manifest.metrics["total_batch_tokens"]
    assert plan.steps == -(-2 * len(plan.loader.rows) // plan.loader.batch_rows)
    assert plan.training.weight_decay == 0
    assert plan.training.lr_scale == 0.8
    assert plan.training.batch_lr_scale == pytest.approx((256 / 524_288) ** 0.5)


def test_a_tokenizer_that_is_not_bases_is_refused(inputs, monkeypatch):
    weights, shape = load_model(inputs["base"])
    monkeypatch.setattr(sft, "load_model", lambda base: (weights, replace(shape, vocab_size=500)))
    with pytest.raises(InputError, match="has 400 tokens and base was trained with 500"):
        sft.plan_run(config(), inputs)
