"""Generation with a KV cache is the full forward pass, token for token, and does not depend on the company.

The golden models are nanochat's (`$ENCORE_GOLDEN`, default tests/golden); `head` has smear, backout and other
windows than `r4`. A prompt of more than `S` tokens puts the sliding windows to work.
"""

import json
import os
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from model.decode import extend, prefill
from model.generate import SLICE, Completion, Engine, Tool
from model.gpt import hidden, init, logits
from model.recipe import Compute, GPTConfig, Recipe
from model.sampling import Sampling, choose
from model.weights import import_nanochat

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = sorted(Path(os.environ.get("ENCORE_GOLDEN", ROOT / "tests/golden")).glob("*.npz"))
COMPUTE = Compute()

begin = jax.jit(prefill, static_argnames=("capacity", "config", "compute"))
step = jax.jit(extend, static_argnames=("config", "compute"))
read_out = jax.jit(logits, static_argnames="config")


@cache
def recipe(name: str) -> Recipe:
    return Recipe.from_dict(yaml.safe_load((ROOT / f"conf/recipe/{name}.yaml").read_text()))


def tiny(name: str = "head", **changes: int | str) -> GPTConfig:
    shape = {"vocab_size": 97, "seq_len": 32, "n_layer": 4, "n_head": 2, "n_kv_head": 2, "n_embd": 32}
    return GPTConfig(recipe=recipe(name), **(shape | changes))  # type: ignore[arg-type]


def random_params(config: GPTConfig, seed: int = 0) -> dict:
    """Every tensor random and large enough to matter: at the recipe's start many are zero."""
    rng = np.random.default_rng(seed)
    like = jax.eval_shape(lambda: init(config, 0))
    return jax.tree.map(lambda x: jnp.asarray(0.3 * rng.normal(size=x.shape), jnp.float32), like)


@partial(jax.jit, static_argnames="config")
def _full(params: dict, tokens: jax.Array, config: GPTConfig) -> jax.Array:
    return logits(params, hidden(params, tokens, config, COMPUTE), config)


def full_logits(params: dict, ids: list[int], config: GPTConfig) -> np.ndarray:
    """Logits [seq, vocab] at every position, without a cache. What follows a token does not change its
    logits."""
    padded = np.zeros((1, -(-len(ids) // 64) * 64), np.int32)
    padded[0, : len(ids)] = ids
    return np.asarray(_full(params, jnp.asarray(padded), config))[0, : len(ids)]


def stepped_logits(params: dict, rows: list[list[int]], read: int, config: GPTConfig) -> list[np.ndarray]:
    """Logits [seq − read + 1, vocab] of each row: `read` tokens at once, the others one at a time from the
    cache."""
    width, capacity = read + 3, max(map(len, rows)) + 1
    tokens = np.zeros((len(rows), width), np.int32)
    starts = np.array([min(read, len(row) - 1) for row in rows])
    for i, row in enumerate(rows):
        tokens[i, : starts[i]] = row[: starts[i]]
    stream, kept = begin(params, jnp.asarray(tokens), jnp.asarray(starts), capacity, config, COMPUTE)
    found = [[z] for z in np.asarray(read_out(params, stream, config))]
    for offset in range(max(len(row) - s for row, s in zip(rows, starts, strict=True))):
        at = np.minimum(starts + offset, [len(row) - 1 for row in rows])
        token, before = (np.array([row[p] for row, p in zip(rows, at - d, strict=True)]) for d in (0, 1))
        stream, kept = step(params, kept, *map(jnp.asarray, (token, before, at)), config, COMPUTE)
        for i, z in enumerate(np.asarray(read_out(params, stream, config))):
            if starts[i] + offset < len(rows[i]):
                found[i].append(z)
    return [np.stack(z) for z in found]


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
    [[answer]] = engine.generate([prompt], max_new_tokens=len(expected), stop=[])
    assert answer == Completion(expected, [False] * len(expected), False)
    # The same prompt among others of other lengths, and logits at every position, past the windows too.
    others = [golden["inputs"][0, row, : 7 + 11 * row].tolist() for row in range(3)]
    answers = engine.generate([others[0], prompt, *others[1:]], max_new_tokens=len(expected), stop=[])
    assert answers[1][0].tokens == expected
    long = golden["inputs"][0, :2].tolist()
    assert len(long[0]) > min(config.windows) + 8
    for row, stepped in zip(long, stepped_logits(params, long, len(long[0]) - 20, config), strict=True):
        full = full_logits(params, row, config)[-len(stepped) :]
        assert np.linalg.norm(stepped - full) <= 2e-5 * np.linalg.norm(full)


SHAPES = {
    "five layers, one KV head, odd vocabulary": tiny("head", n_layer=5, n_head=4, n_kv_head=1, vocab_size=67),
    "one layer": tiny("r4", n_layer=1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_position_has_the_logits_of_the_full_forward(name: str) -> None:
    """Rows of different lengths, all longer than the short window and one longer than seq_len, the long
    window."""
    config = SHAPES[name]
    params = random_params(config)
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, config.vocab_size, n).tolist() for n in (12, 25, 47)]
    for row, stepped in zip(rows, stepped_logits(params, rows, 5, config), strict=True):
        full = full_logits(params, row, config)[-len(stepped) :]
        assert np.linalg.norm(stepped - full) <= 2e-5 * np.linalg.norm(full)


def plain_greedy(params: dict, prompt: list[int], new: int, config: GPTConfig) -> list[int]:
    ids = list(prompt)
    for _ in range(new):
        ids.append(int(full_logits(params, ids, config)[-1].argmax()))
    return ids[len(prompt) :]


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = tiny("head", n_layer=2)
    return Engine(random_params(config, 3), config, COMPUTE)


PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16, 17]]


def test_greedy_is_the_plain_loop_and_stops_by_row(engine: Engine) -> None:
    plain = [plain_greedy(engine.params, prompt, 12, engine.config) for prompt in PROMPTS]
    answers = engine.generate(PROMPTS, max_new_tokens=12, stop=[])
    assert [a.tokens for [a] in answers] == plain
    assert not any(a.stopped for [a] in answers)
    stop = plain[0][4]
    for row, [answer] in zip(plain, engine.generate(PROMPTS, max_new_tokens=12, stop=[stop, 96]), strict=True):
        ends = [i for i, token in enumerate(row) if token in (stop, 96)]
        assert answer.tokens == (row[: ends[0]] if ends else row)
        assert answer.stopped == bool(ends)


def test_a_row_does_not_depend_on_its_company(engine: Engine) -> None:
    settings = {"max_new_tokens": 10, "stop": [], "temperature": 0.9, "top_k": 20, "seed": 7}
    together = engine.generate(PROMPTS, num_samples=3, **settings)
    assert [len(samples) for samples in together] == [3, 3, 3]
    for prompt, samples in zip(PROMPTS, together, strict=True):
        [alone] = engine.generate([prompt], num_samples=3, **settings)
        assert alone == samples
        assert engine.generate([prompt], num_samples=1, **settings)[0][0] == samples[0]
    assert len({tuple(s.tokens) for samples in together for s in samples}) == 9
    assert engine.generate(PROMPTS, num_samples=3, **(settings | {"seed": 8})) != together
    assert engine.generate(PROMPTS, num_samples=3, **settings) == together


def test_sampling_draws_from_the_cut_distribution() -> None:
    row = jnp.log(jnp.array([0.05, 0.5, 0.15, 0.3]))
    rows = jnp.tile(row, (4000, 1))
    keys = jax.random.split(jax.random.key(0), 4000)

    def shares(temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0) -> np.ndarray:
        sampling = Sampling(False, top_k, top_p < 1)
        drawn = choose(rows, keys, jnp.float32(temperature), jnp.float32(top_p), sampling)
        return np.bincount(np.asarray(drawn), minlength=4) / len(drawn)

    assert np.allclose(shares(), [0.05, 0.5, 0.15, 0.3], atol=0.03)
    assert np.allclose(shares(top_k=2), [0, 0.625, 0, 0.375], atol=0.03)
    assert np.allclose(shares(top_k=100), [0.05, 0.5, 0.15, 0.3], atol=0.03)
    assert np.allclose(shares(top_p=0.7), [0, 0.625, 0, 0.375], atol=0.03)  # 0.5 alone does not reach 0.7
    assert np.allclose(shares(top_p=0.4), [0, 1, 0, 0])
    assert np.allclose(shares(top_p=1e-9), [0, 1, 0, 0])
    assert np.allclose(shares(top_k=3, top_p=0.6), [0, 0.625, 0, 0.375], atol=0.03)  # of 0.95: 0.53 < 0.6
    half = np.array([0.05, 0.5, 0.15, 0.3]) ** 2
    assert np.allclose(shares(temperature=0.5), half / half.sum(), atol=0.03)
    greedy = choose(jnp.array([[1.0, 3.0, 3.0]]), keys[:1], jnp.float32(1), jnp.float32(1), Sampling())
    assert greedy.tolist() == [1]


START, END, OUT, OUT_END = 90, 91, 92, 93


def scripted(config: GPTConfig, successors: dict[int, int]) -> dict:
    """Parameters of a model whose next token is successors[token] (else token + 1): a Markov chain to test
    with."""
    like = jax.eval_shape(lambda: init(config, 0))
    params = jax.tree.map(lambda x: jnp.zeros(x.shape), like)
    eye = jnp.eye(config.padded_vocab_size, config.n_embd)
    following = np.array([successors.get(t, t + 1) % config.vocab_size for t in range(config.padded_vocab_size)])
    head = np.zeros((config.padded_vocab_size, config.n_embd), np.float32)
    for token in range(config.vocab_size):
        head[following[token], token] += 1
    ones = jnp.ones(config.n_layer)
    return params | {"wte": eye, "lm_head": jnp.asarray(head), "resid_lambdas": ones}


def test_the_tool_is_called_and_its_answer_forced() -> None:
    config = tiny("r4", n_embd=128, n_layer=1)
    # 10 11 START 20 21 END [OUT 30 OUT_END] 50 51 … ; without a result END is followed by 60.
    chain = {11: START, START: 20, 21: END, OUT_END: 50, END: 60, 55: 94, 65: 94}
    engine = Engine(scripted(config, chain), config, COMPUTE)
    heard: list[list[int]] = []

    def run(ids: list[int]) -> list[int] | None:
        heard.append(ids)
        return [30] * len(heard) if len(heard) < 3 else None

    tool = Tool(START, END, OUT, OUT_END, run)
    settings = {"max_new_tokens": 30, "stop": [94]}
    prompts = [[7, 8, 9], [9], [10, 11]]
    answers = [a for [a] in engine.generate(prompts, tool=tool, **settings)]
    call = [START, 20, 21, END]
    tail = [50, 51, 52, 53, 54, 55]
    # The third row asks first, as its prompt is further on; of the others the first has the lower number.
    assert answers[2].tokens == [*call, OUT, 30, OUT_END, *tail]
    assert answers[0].tokens == [10, 11, *call, OUT, 30, 30, OUT_END, *tail]
    assert answers[1].tokens == [10, 11, *call, 60, 61, 62, 63, 64, 65]
    assert heard == [[20, 21]] * 3
    assert all(a.stopped for a in answers)
    assert [t for t, f in zip(answers[0].tokens, answers[0].forced, strict=True) if f] == [OUT, 30, 30, OUT_END]
    # No tool: the markers are tokens like others. A marker without a start is no call. A long result is not given.
    plain = [a for [a] in engine.generate(prompts, **settings)]
    assert plain[1].tokens == answers[1].tokens
    assert [a.tokens for [a] in engine.generate([[21]], tool=tool, **settings)] == [[END, 60, 61, 62, 63, 64, 65]]
    long = tool._replace(run=lambda ids: [30] * 1000)
    assert [a for [a] in engine.generate(prompts, tool=long, **settings)] == plain
    # A result that does not fit into max_new_tokens is cut like any other text.
    [[cut]] = engine.generate([[10, 11]], tool=tool._replace(run=lambda ids: [30]), max_new_tokens=6, stop=[94])
    assert cut == Completion([*call, OUT, 30], [False] * 4 + [True] * 2, False)


def test_the_caller_can_stop_between_slices() -> None:
    config = tiny("r4", n_embd=128, n_layer=1)
    engine = Engine(scripted(config, {96: 0}), config, COMPUTE)
    seen = []
    engine.generate([[1]], max_new_tokens=3 * SLICE, stop=[], between=lambda: seen.append(1))
    assert len(seen) == 2

    class StopNow(Exception):
        pass

    def stop_now() -> None:
        raise StopNow

    with pytest.raises(StopNow):
        engine.generate([[1]], max_new_tokens=2 * SLICE, stop=[], between=stop_now)


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    events: list[str] = []

    def listen(event: str, duration: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


def test_calls_of_one_bucket_compile_nothing(engine: Engine, compilations: list[str]) -> None:
    tool = Tool(START, END, OUT, OUT_END, lambda ids: [30])
    settings = {"temperature": 0.8, "top_k": 10, "num_samples": 2, "tool": tool}
    first = {"max_new_tokens": 20, "stop": [1, 2], "top_p": 0.9, "seed": 1}
    engine.generate([[1, 2, 3], [4]], **first, **settings)
    assert compilations
    compilations.clear()
    other = {"max_new_tokens": 31, "stop": [3, 4], "top_p": 0.5, "seed": 2}
    engine.generate([[5] * 20, [6] * 7], **other, **(settings | {"temperature": 1.3}))
    assert compilations == []
    engine.generate([[5] * 40, [6] * 7], **other, **settings)
    assert compilations, "a longer bucket is another program: the count would be blind otherwise"


def test_wrong_arguments_are_refused(engine: Engine) -> None:
    for prompts in ([], [[]], [[1], []]):
        with pytest.raises(ValueError, match="at least one"):
            engine.generate(prompts, max_new_tokens=3, stop=[])
    with pytest.raises(ValueError, match="at least 1"):
        engine.generate([[1]], max_new_tokens=0, stop=[])


def test_next_logits_are_those_of_the_full_forward_also_in_bfloat16(engine: Engine) -> None:
    exact = np.stack([full_logits(engine.params, prompt, engine.config)[-1] for prompt in PROMPTS])
    assert np.allclose(engine.next_logits(PROMPTS), exact, rtol=1e-4, atol=1e-4)
    rough = Engine(engine.params, engine.config, Compute(compute_dtype="bfloat16")).next_logits(PROMPTS)
    assert np.linalg.norm(rough - exact) <= 0.1 * np.linalg.norm(exact)
