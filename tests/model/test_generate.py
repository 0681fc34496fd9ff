"""Generation with a KV cache is the full forward pass, token for token, and a row does not depend on the
others."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.generate import SLICE, Completion, Engine, Tool
from model.gpt import init
from model.recipe import Compute, GPTConfig
from model.sampling import Sampling, choose
from tests.model.engines import COMPUTE, full_logits, quick_compilation, random_params, stepped_logits, tiny


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """test_generate_golden compiles as in earnest."""
    with quick_compilation():
        yield


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
    settings = {"max_new_tokens": 10, "stop": [], "temperature": 0.9, "top_k": 20, "seed": 7, "num_samples": 2}
    together = engine.generate(PROMPTS, **settings)
    assert [len(samples) for samples in together] == [2, 2, 2]
    for prompt, samples in zip(PROMPTS, together, strict=True):
        [alone] = engine.generate([prompt], **settings)
        assert alone == samples
    assert len({tuple(s.tokens) for samples in together for s in samples}) == 6
    assert engine.generate(PROMPTS, **(settings | {"seed": 8})) != together
    assert engine.generate(PROMPTS, **settings) == together


def test_sampling_draws_from_the_cut_distribution() -> None:
    row = jnp.log(jnp.array([0.05, 0.5, 0.15, 0.3]))
    columns = jnp.tile(row[:, None], (1, 4000))
    keys = jax.random.split(jax.random.key(0), 4000)

    def shares(temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0) -> np.ndarray:
        sampling = Sampling(False, top_k, top_p < 1)
        drawn = choose(columns, keys, jnp.float32(temperature), jnp.float32(top_p), sampling)
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
    greedy = choose(jnp.array([[1.0], [3.0], [3.0]]), keys[:1], jnp.float32(1), jnp.float32(1), Sampling())
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
    loose = engine.generate([[21]] * 3, tool=tool, **settings)
    assert [a.tokens for [a] in loose] == [[END, 60, 61, 62, 63, 64, 65]] * 3
    long = tool._replace(run=lambda ids: [30] * 1000)
    assert [a for [a] in engine.generate(prompts, tool=long, **settings)] == plain
    # A result that does not fit into max_new_tokens is cut like any other text.
    short = tool._replace(run=lambda ids: [30])
    cut = engine.generate([[10, 11]] * 3, tool=short, max_new_tokens=6, stop=[94])
    assert cut[1][0] == Completion([*call, OUT, 30], [False] * 4 + [True] * 2, False)


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
        engine.generate([[1]], max_new_tokens=3 * SLICE, stop=[], between=stop_now)


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
    settings = {"top_k": 20, "num_samples": 2, "tool": tool}
    engine.generate(PROMPTS, max_new_tokens=20, stop=[1, 2], temperature=0.8, seed=1, **settings)
    compilations.clear()
    others = [[5] * 20, [6] * 7, [7]]
    engine.generate(others, max_new_tokens=31, stop=[3, 4, 5], temperature=1.3, seed=2, **settings)
    assert compilations == []
    engine.generate([[5] * 40, *PROMPTS[:2]], max_new_tokens=20, stop=[], temperature=1.3, **settings)
    assert compilations, "a longer bucket is another program: otherwise the count would be blind"


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
