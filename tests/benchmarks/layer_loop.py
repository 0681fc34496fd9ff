"""What each way of walking the layers costs: processor seconds to compile and to run a step, scratch memory.

    python tests/benchmarks/layer_loop.py [--layers 12] [--steps 3]

The choices are compute.layer_loop and compute.remat; steps of all of them take turns.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import yaml

from model.recipe import Compute, GPTConfig, Recipe
from model.step import Training, init_state, make_train_step

ROWS, SEQ_LEN, VOCAB = 2, 256, 2048
CHOICES = [("unrolled", "none"), ("scan", "none"), ("unrolled", "dots"), ("unrolled", "full"), ("scan", "full")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    text = (Path(__file__).resolve().parents[2] / "conf/recipe/r4.yaml").read_text()
    config = GPTConfig(Recipe.from_dict(yaml.safe_load(text)), VOCAB, SEQ_LEN, args.layers, 4, 4, 256)
    training = Training(iterations=100, schedule=config.recipe.schedule, weight_decay=0.1)
    rows = jax.random.randint(jax.random.key(0), (1, ROWS, SEQ_LEN + 1), 0, VOCAB, jnp.int32)
    programs, states, seconds, compiling = {}, {}, {}, {}
    for choice in CHOICES:
        compute = Compute(attention="xla", layer_loop=choice[0], remat=choice[1])
        states[choice] = init_state(config, training, seed=0)
        lowered = make_train_step(config, compute, training).lower(states[choice], rows)
        start = time.process_time()
        programs[choice] = lowered.compile()
        compiling[choice], seconds[choice] = time.process_time() - start, []
    for _ in range(args.steps):
        for choice, program in programs.items():
            start = time.process_time()
            states[choice], metrics = program(states[choice], rows)
            jax.block_until_ready((states[choice], metrics))
            seconds[choice].append(time.process_time() - start)
    print(f"{'layer_loop':12}{'remat':8}{'compile s':>10}{'step s':>8}{'scratch MB':>12}   {args.layers} layers")
    for choice, program in programs.items():
        scratch = program.memory_analysis().temp_size_in_bytes / 2**20
        print(f"{choice[0]:12}{choice[1]:8}{compiling[choice]:10.1f}{min(seconds[choice]):8.2f}{scratch:12.0f}")


if __name__ == "__main__":
    main()
