"""Examples per second of CORE scoring beside one example at a time, the same untrained model, in one run.

    PYTHONPATH=. python tests/benchmarks/core_eval.py --bundle DIRECTORY --text 'DIRECTORY/*.jsonl.gz'

"One at a time" is nanochat's way: every example is a forward pass of its own over all its options, with logits of the
whole vocabulary at every position. It is given every advantage: compiled, lengths padded by at most 63 tokens, and no
compilation counted. Tasks take turns, so that other load on the machine meets both alike; where there is much of it,
believe the ratio of CPU seconds. Losses must agree.
"""

import argparse
import glob
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import yaml

from conf.schema import Mesh as MeshConfig
from model.gpt import Params, hidden, init, logits
from model.recipe import Compute, GPTConfig, Recipe
from model.score import Question
from tasks import tokenizer as tokenizers
from tasks.evaluation.bundle import open_bundle
from tasks.evaluation.scorer import Scorer, make_questions
from tasks.reading import read_documents
from tasks.stage import StopSignal
from tasks.training.placement import Placement

COMPUTE = Compute()
PAD = 64


@partial(jax.jit, static_argnames="config")
def whole(params: Params, tokens: jax.Array, config: GPTConfig) -> tuple[jax.Array, jax.Array]:
    """Losses and predictions at every position of tokens [options, seq]."""
    z = logits(params, hidden(params, tokens, config, COMPUTE), config)
    targets = jnp.roll(tokens, -1, axis=1)
    losses = jax.nn.logsumexp(z, axis=-1) - jnp.take_along_axis(z, targets[..., None], axis=-1)[..., 0]
    return losses, jnp.argmax(z, axis=-1)


def clocks() -> np.ndarray:
    """Wall and CPU seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def one_at_a_time(params: Params, question: Question, config: GPTConfig) -> tuple[list[float], np.ndarray]:
    """Mean loss of each option, and the wall and CPU seconds it took once compiled."""
    width = -(-max(question.ends) // PAD) * PAD
    tokens = np.zeros((len(question.options), width), np.int32)
    for row, ids in zip(tokens, question.options, strict=True):
        row[: len(ids)] = ids
    jax.block_until_ready(whole(params, tokens, config))
    started = clocks()
    losses, _ = (np.asarray(x) for x in whole(params, tokens, config))
    means = [
        float(losses[k, s - 1 : e - 1].mean())
        for k, (s, e) in enumerate(zip(question.starts, question.ends, strict=True))
    ]
    return means, clocks() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", required=True)
    parser.add_argument(
        "--text", required=True, help="glob of .jsonl(.gz) or .txt files that the tokenizer learns from"
    )
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--examples", type=int, default=20, help="of each task, scored in batches")
    parser.add_argument("--naive-examples", type=int, default=2, help="of each task, scored one at a time")
    parser.add_argument("--batch-tokens", type=int, help="room of one call")
    parser.add_argument("--tasks", nargs="*")
    arguments = parser.parse_args()

    texts = (text for name in sorted(glob.glob(arguments.text)) for text in read_documents(Path(name), name, "text"))
    tokenizer = tokenizers.train(tokenizers.training_texts(texts, 10_000_000, 10_000), arguments.vocab)
    recipe = Recipe.from_dict(yaml.safe_load((Path(__file__).parents[2] / "conf/recipe/r4.yaml").read_text()))
    config = GPTConfig(recipe, arguments.vocab, seq_len=512, n_layer=4, n_head=4, n_kv_head=4, n_embd=256)
    like = jax.eval_shape(lambda: init(config, 0))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.asarray(0.05 * rng.standard_normal(x.shape), jnp.float32), like)
    scorer = Scorer(params, config, COMPUTE, Placement.choose(config, MeshConfig(1, 1, 1)), arguments.batch_tokens)

    started = time.perf_counter()
    tasks = {
        source.task.label: make_questions(source.task, source.examples(), arguments.examples, tokenizer)
        for source in open_bundle(arguments.bundle, arguments.tasks, Path("."), StopSignal())
    }
    n = sum(map(len, tasks.values()))
    print(f"{n} examples of {len(tasks)} tasks rendered and tokenized in {time.perf_counter() - started:.1f} s")
    started = time.perf_counter()
    scorer.verdicts([question for questions in tasks.values() for question in questions])
    print(f"first pass in batches, compilation included: {time.perf_counter() - started:.1f} s")

    print(f"{'task':34}{'batched':>10}{'one by one':>12}  examples/s{'ratio':>8}{'of CPU seconds':>16}")
    spent, worst = np.zeros((2, 2)), 0.0
    for label, questions in tasks.items():
        started = clocks()
        verdicts = scorer.verdicts(questions)
        batched = (clocks() - started) / len(questions)
        seconds = []
        for question, verdict in list(zip(questions, verdicts, strict=True))[: arguments.naive_examples]:
            means, took = one_at_a_time(params, question, config)
            seconds.append(took)
            worst = max(worst, *(abs(a / b - 1) for a, b in zip(means, verdict.losses, strict=True)))
        pair = np.stack([batched, np.mean(seconds, axis=0)])
        spent += pair
        show(label, pair)
    show("all, equally many of each task", spent / len(tasks))
    print(f"largest relative difference of a loss: {worst:.1e}")


def show(label: str, seconds: np.ndarray) -> None:
    """One line; seconds [batched and one by one, wall and CPU] of an example."""
    batched, single = seconds
    ratios = single / batched
    print(f"{label:34}{1 / batched[0]:10.2f}{1 / single[0]:12.2f}{ratios[0]:20.1f}{ratios[1]:16.1f}", flush=True)


if __name__ == "__main__":
    main()
