"""Tokens per second of the engine at batch 16 beside two plain loops of the same model, in one run.

    python -m tests.benchmarks.generate [--new 128] [--temperature 0.8]

The model is d4 of nanochat: width 256, 4 heads of 64, vocabulary 32,768. The plain loops work as nanochat's Engine
does: one call of the model a token over a KV cache, the sampled tokens brought to Python, and there a state machine
row by row. Their model step is compiled here, which the original's is not, so they are the harder mark. nanochat's
Engine takes one prompt a call and batches its samples, hence two of them: 16 samples of one prompt, and 16 prompts
one after the other, as its chat evaluation asks them.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import yaml

from model.decode import extend, prefill
from model.generate import Engine, draw
from model.gpt import Params, init
from model.recipe import Compute, GPTConfig, Recipe
from model.sampling import Sampling

ROWS = 16
RECIPES = Path(__file__).parents[2] / "conf/recipe"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="r4")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens to write")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy; above, top_k is 50")
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts")
    options = parser.parse_args()
    recipe = Recipe.from_dict(yaml.safe_load((RECIPES / f"{options.recipe}.yaml").read_text()))
    config = GPTConfig(recipe, 32_768, seq_len=512, n_layer=4, n_head=4, n_kv_head=4, n_embd=256)
    params, compute = init(config, 0), Compute()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, config.vocab_size, options.prompt).tolist() for _ in range(ROWS)]
    engine = Engine(params, config, compute)
    plain = PlainEngine(params, config, compute, options.temperature)
    settings = {
        "max_new_tokens": options.new,
        "stop": [],
        "temperature": options.temperature,
        "top_k": 50 if options.temperature else None,
    }
    contestants: dict[str, Callable[[], object]] = {
        "engine, 16 prompts": lambda: engine.generate(prompts, **settings),
        "engine, 16 samples of one prompt": lambda: engine.generate(prompts[:1], num_samples=ROWS, **settings),
        "plain loop, 16 samples of one prompt": lambda: plain.generate(prompts[0], ROWS, options.new),
        "plain loop, 16 prompts in turn": lambda: [plain.generate(p, 1, options.new) for p in prompts],
    }
    seconds = race(contestants, options.rounds)
    tokens = ROWS * options.new
    for name, best in seconds.items():
        print(f"{name:40s} {tokens / best:9.0f} tokens/s")
    first, second, third, fourth = seconds.values()
    print(f"engine against plain loop: {third / second:.2f} on one prompt, {fourth / first:.2f} on 16 prompts")


def race(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Best seconds of each, in turn so that all meet the same company; the first round compiles and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, work in contestants.items():
            start = time.perf_counter()
            work()
            if number:
                times[name].append(time.perf_counter() - start)
    return {name: min(found) for name, found in times.items()}


class PlainEngine:
    """One prompt a call, one model step a token, one pass over the rows in Python a token."""

    def __init__(self, params: Params, config: GPTConfig, compute: Compute, temperature: float):
        sampling = Sampling(greedy=not temperature, top_k=50 if temperature else None)

        def sample(stream: jax.Array, number: jax.Array) -> jax.Array:
            keys = jax.random.split(jax.random.fold_in(jax.random.key(0), number), stream.shape[0])
            heat = jnp.float32(max(temperature, 1e-6))
            return draw(params, stream, config, keys, heat, jnp.float32(1), sampling)

        def step(cache, token, before, position, number):
            rows = jnp.full(token.shape, position)
            stream, cache = extend(params, cache, token, before, rows, config, compute)
            return sample(stream, number), cache

        def begin(tokens, rows, capacity):
            stream, cache = prefill(params, tokens, jnp.array([tokens.shape[1]]), capacity, config, compute)
            cache = jax.tree.map(lambda leaf: jnp.repeat(leaf, rows, axis=0), cache)
            return sample(jnp.repeat(stream, rows, axis=0), 0), cache

        self.begin = jax.jit(begin, static_argnames=("rows", "capacity"))
        self.step = jax.jit(step, donate_argnums=0)
        self.stop = -1

    def generate(self, prompt: Sequence[int], rows: int, new: int) -> list[list[int]]:
        sampled, cache = self.begin(jnp.array([prompt]), rows, len(prompt) + new)
        written: list[list[int]] = [list(prompt) for _ in range(rows)]
        forced: list[list[int]] = [[] for _ in range(rows)]
        done = [False] * rows
        for number in range(new):
            column = []
            for row, token in enumerate(np.asarray(sampled).tolist()):
                chosen = forced[row].pop(0) if forced[row] else token
                written[row].append(chosen)
                done[row] = done[row] or chosen == self.stop
                column.append(chosen)
            if all(done) or number + 1 == new:
                break
            before = np.array([row[-2] for row in written], np.int32)
            position = np.int32(len(prompt) + number)
            sampled, cache = self.step(cache, np.array(column, np.int32), before, position, np.int32(number + 1))
        return written


if __name__ == "__main__":
    main()
