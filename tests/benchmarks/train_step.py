"""Tokens/s, first-step seconds and peak memory of the training step beside a plain one, in one run.

    python tests/benchmarks/train_step.py [--dtype float32|bfloat16] [--cores 1] [--plain plain|plain-loss]

The plain step is as one would first write it: the logits of the whole batch in float32, JAX's own attention, nothing
donated, memory as the system gives it. `plain-loss` differs from Encore's step in logits and donation alone: it has
its layers, optimizer and kept memory. They take turns, and while one runs the other's process is gone: beside one that
keeps its memory, a step that takes it anew needed 1.7 times its time here. Seconds are of the clock. The plain steps
move several times Encore's bytes, so they vary most with what else uses the machine's memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS, SEQ_LEN, VOCAB = 8, 512, 32768  # a d4: width 256, 4 heads of 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--cores", type=int, help="default: all")
    parser.add_argument("--plain", default="plain", choices=["plain", "plain-loss"], help="what to compare with")
    parser.add_argument("--variant", choices=["plain", "plain-loss", "encore"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.variant:
        take(args.variant, args.dtype, args.steps)
        return
    cores = set(sorted(os.sched_getaffinity(0))[: args.cores])
    head = ("s/step", "tokens/s", "first step s", "peak MB", "last loss")
    print(f"{'':12}", *(f"{name:>12}" for name in head), f"  {args.dtype}, medians; cores: {len(cores)}", flush=True)
    seconds: dict[str, list[float]] = {args.plain: [], "encore": []}
    for variant in [*seconds] * args.turns:
        taken = run(variant, args.dtype, cores, args.steps)
        first, *rest = taken["seconds"]
        seconds[variant] += rest
        median = statistics.median(rest)
        row = (median, ROWS * SEQ_LEN / median, first, taken["peak_mb"])
        print(f"{variant:12}", *(f"{value:12.2f}" for value in row), f"{taken['loss']:12.5f}", flush=True)
    print(f"ratio {statistics.median(seconds['encore']) / statistics.median(seconds[args.plain]):.3f}")


def run(variant: str, dtype: str, cores: set[int], steps: int) -> dict:
    """What `take` prints, in a process of its own on `cores`."""
    command = [sys.executable, __file__, "--variant", variant, "--dtype", dtype, "--steps", str(steps)]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENBLAS", "OMP", "XLA_FLAGS"))}
    env |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(process.pid, cores)
    return json.loads(process.communicate(timeout=600)[0])


def take(variant: str, dtype: str, steps: int) -> None:
    """The child: build the step, take one more than `steps`, print seconds, last loss and peak memory as JSON."""
    import jax
    import jax.numpy as jnp

    from model.gpt import hidden
    from model.recipe import Compute
    from model.step import Training, init_state, make_train_step
    from tasks.store.memory import keep_freed

    if variant != "plain":
        keep_freed()  # as in Encore's stages
    config = d4()
    compute = Compute(compute_dtype=dtype, attention="xla")
    training = Training(iterations=1000, schedule=config.recipe.schedule, weight_decay=0.2)
    state = jax.block_until_ready(init_state(config, training, seed=0))
    make = {
        "encore": make_train_step,
        "plain": partial(plain_step, plain_hidden),
        "plain-loss": partial(plain_step, hidden),
    }
    step = make[variant](config, compute, training)
    rows = jax.random.randint(jax.random.key(0), (1, ROWS, SEQ_LEN + 1), 0, VOCAB, jnp.int32)
    seconds = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        state, metrics = jax.block_until_ready(step(state, rows))
        seconds.append(time.perf_counter() - start)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "loss": float(metrics["loss"]), "peak_mb": peak_mb}))


def plain_step(hidden, config, compute, training):
    """The step with every logit at once, log-softmax by the library, no donation."""
    import jax
    import jax.numpy as jnp

    from model.gpt import logits
    from model.schedules import dials
    from model.step import TrainState, apply_gradients, optimizer

    def mean_loss(params, tokens, targets):
        log_probs = jax.nn.log_softmax(logits(params, hidden(params, tokens, config, compute), config))
        return -jnp.mean(jnp.take_along_axis(log_probs, targets[..., None], axis=-1))

    @jax.jit
    def step(state, rows):
        loss, grads = jax.value_and_grad(mean_loss)(state.params, rows[0, :, :-1], rows[0, :, 1:])
        settings = dials(training.schedule, training.iterations, training.weight_decay, state.step)
        transform = optimizer(config, training, compute)
        params, opt_state = apply_gradients(transform, state.params, grads, state.opt_state, settings)
        return TrainState(state.step + 1, params, opt_state), {"loss": loss}

    return step


def plain_hidden(params, tokens, config, compute):
    """model.gpt.hidden with the library's attention: every score of the sequence, and a mask."""
    import jax
    import jax.numpy as jnp

    from model.gpt import bind, rotary

    def attend(layer, q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(config.windows[layer], 0))

    gpt = bind(params, config)
    x = gpt.smear_all(gpt.embed(tokens, compute))
    return gpt.walk(x, tokens, rotary(jnp.arange(tokens.shape[1]), config), compute, attend)


def d4():
    """The model of the comparison, under today's recipe."""
    import yaml

    from model.recipe import GPTConfig, Recipe

    recipe = Recipe.from_dict(yaml.safe_load((ROOT / "conf/recipe/head.yaml").read_text()))
    return GPTConfig(recipe, VOCAB, SEQ_LEN, n_layer=4, n_head=4, n_kv_head=4, n_embd=256, window_pattern="SSSL")


if __name__ == "__main__":
    main()
