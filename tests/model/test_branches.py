"""Scoring in batches gives each option the losses of a plain forward pass over it alone."""

import subprocess
import sys
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from model.branches import device_arrays, reach, score
from model.buckets import ROOMS, pack, plan, room, rows_of
from model.gpt import hidden, logits
from model.recipe import Compute
from model.score import Question, common_prefix, truncate_left
from tests.model.engines import ROOT, quick_compilation, random_params, tiny

COMPUTE = Compute()


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_compilation():
        yield


@cache
def questions(vocab: int) -> tuple[Question, ...]:
    """Choices behind long and short prefixes, schemas, single continuations, a prompt of BOS alone, cut ones."""
    rng = np.random.default_rng(0)

    def draw(n):
        return tuple(rng.integers(1, vocab, n).tolist())

    found: list[Question] = []
    for length, endings in [(200, (1, 3, 2, 5)), (129, (4, 4)), (30, (1, 1, 1)), (1, (6, 2)), (700, (2, 1))]:
        prefix, tails = (0, *draw(length)), [draw(n) for n in endings]
        options = tuple((*prefix, *tail) for tail in tails)
        starts = (common_prefix(options),) * len(options)
        found.append(Question(len(found), options, starts, tuple(map(len, options)), gold=0))
    for length in (1, 40, 300):
        ids = (0, *draw(length + 4))
        found.append(Question(len(found), (ids,), (length + 1,), (len(ids),), gold=None))
    shared, tail = (0, *draw(20)), draw(6)
    options = tuple((*shared, *draw(n), *tail) for n in (3, 7))
    found.append(Question(len(found), options, tuple(len(o) - 6 for o in options), tuple(map(len, options)), gold=1))
    found.append(truncate_left(found[0], 64))
    return tuple(found)


def in_batches(params, config, batch_tokens):
    """Mean loss and exactness of each option of `questions`, and how many shapes there were."""
    losses, hits, shapes = {}, {}, set()
    for batch in plan(questions(config.vocab_size), batch_tokens, reach(config)):
        shapes.add(batch.shape)
        nats, hit = (np.asarray(x) for x in score(params, device_arrays(batch, None), config, COMPUTE))
        for row, number, option, columns in batch.spans():
            losses[number, option] = nats[row, columns].mean()
            hits[number, option] = hit[row, columns].all()
    return losses, hits, shapes


@pytest.mark.parametrize(("name", "seq_len"), [("head", 256), ("r4", 64)])
def test_losses_are_those_of_each_option_on_its_own(name, seq_len):
    # Prompts have up to 703 tokens. head reaches back 641 of them, past the room of the smallest shape; r4 161.
    config = tiny(name, seq_len=seq_len, n_kv_head=1)
    params = random_params(config)
    losses, hits, shapes = in_batches(params, config, batch_tokens=2000)
    assert len(shapes) == (2 if reach(config) > ROOMS[0][0] else 1)
    whole = jax.jit(lambda tokens: logits(params, hidden(params, tokens, config, COMPUTE), config))
    checked = 0
    for number, question in enumerate(questions(config.vocab_size)):
        for option, (ids, start, end) in enumerate(zip(question.options, question.starts, question.ends, strict=True)):
            padded = np.zeros((1, 704), np.int32)
            padded[0, : len(ids)] = ids
            z = np.asarray(whole(padded))[0, start - 1 : end - 1].astype(np.float64)
            aimed = np.array(ids[start:end])
            expected = (np.log(np.exp(z).sum(-1)) - z[np.arange(len(aimed)), aimed]).mean()
            assert losses[number, option] == pytest.approx(expected, rel=2e-5)
            assert hits[number, option] == bool((z.argmax(-1) == aimed).all())
            checked += 1
    assert checked == len(losses) == 22


def test_a_model_that_finds_everything_equally_likely_predicts_the_first_token_only():
    config = tiny(seq_len=64)
    params = random_params(config) | {"lm_head": jnp.zeros((config.padded_vocab_size, config.n_embd))}
    ids = (0, 5, 0, 7)
    question = Question(0, (ids,), (1,), (4,), gold=None)
    (batch,) = plan([question], 100, reach(config))
    losses, hits = score(params, device_arrays(batch, None), config, COMPUTE)
    assert np.asarray(hits)[0, :3].tolist() == [False, True, False]
    np.testing.assert_allclose(np.asarray(losses)[0, :3], np.log(config.vocab_size), rtol=1e-6)


def test_no_array_of_logits_for_all_tokens_exists():
    config = tiny(vocab_size=5000)
    batch = device_arrays(pack([], 16, 512, 256), None)
    traced = score.trace(jax.eval_shape(lambda: random_params(config)), batch, config, COMPUTE)
    sizes = [v.aval.size for eqn in walk(traced.jaxpr.jaxpr) for v in eqn.outvars if 5000 in v.aval.shape]
    assert max(sizes) == 64 * 5000
    assert max(sizes) < 16 * 256 * 5000 / 10


def walk(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from walk(inner)


def test_every_option_is_in_exactly_one_row_and_shared_tokens_are_there_once():
    for number, question in enumerate(questions(97)):
        rows = rows_of(number, question, reach=10_000)
        placed = {k: (*row.prefix, *tokens) for row in rows for k, tokens, _ in row.options}
        assert placed == dict(enumerate(question.options))
        if not question.truncated:
            assert len(rows) == 1
            assert len(rows[0].prefix) == min(common_prefix(question.options), min(question.starts) - 1)


def test_lengths_share_shapes():
    rng = np.random.default_rng(1)
    found = set()
    for length in rng.integers(2, 9000, 300).tolist():
        ids = tuple(range(length))
        (row,) = rows_of(0, Question(0, (ids,), (length - 1,), (length,), gold=None), reach=10_000)
        width, behind = room(row)
        assert len(row.prefix) <= width
        assert row.branch_tokens <= behind
        found.add((width, behind))
    assert len(found) <= 4


def test_batches_fill_the_devices_evenly():
    for batch in plan(questions(97), 2000, reach=10_000, row_multiple=4):
        assert batch.shape[0] % 4 == 0
        assert batch.shape[0] >= len(batch.rows)


def test_rows_spread_over_a_mesh_give_the_same_losses():
    """A process of its own, because the number of emulated devices is fixed when JAX starts."""
    command = [sys.executable, "-m", "tests.model.branches_on_mesh"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert finished.returncode == 0, finished.stderr
    assert float(finished.stdout) < 1e-5
