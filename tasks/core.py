"""Stage `core`: the CORE score of a model, by the rules of `model.score`, on the tasks of a bundle.

Fills results.json and records/<task>.jsonl. Each task's records are published as soon as the task is scored, so an
evaluation that was killed loses one task at most. Scores are nanochat's, example by example, up to rounding.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tasks.world
from model.score import Question
from tasks import tokenizer as tokenizers
from tasks.evaluation import records
from tasks.evaluation.bundle import Source, open_bundle
from tasks.evaluation.scorer import Scorer, make_questions
from tasks.stage import InputError, Stage
from tasks.training.placement import Placement
from tasks.training.planning import make_compute
from tasks.training.weights_io import load_model

if TYPE_CHECKING:
    from conf.schema import Config
    from tasks.store.artifact import Artifact
    from tasks.store.workspace import Workspace

STAGE = Stage(
    name="core",
    version=1,
    reads=("data.world", "eval", "compute.compute_dtype"),
    runtime=("compute", "eval.batch_tokens"),
    files=("eval.bundle",),
    inputs=("model", "tokenizer"),
    resumable=True,
    accelerator=True,
)


def run(config: Config, inputs: Mapping[str, Artifact], out: Workspace) -> dict[str, Any]:
    """Score every task; returns CORE with its interval, and the speed of what was scored in this attempt.

    Raises InputError where the bundle, the model or the tokenizer cannot be used.
    """
    tokenizer = tokenizers.load(inputs["tokenizer"].path())
    params, shape = load_model(inputs["model"])
    if tokenizer.vocab_size != shape.vocab_size:
        raise InputError(
            f"{inputs['model']!r} has a vocabulary of {shape.vocab_size}, {inputs['tokenizer']!r} one of "
            f"{tokenizer.vocab_size}: evaluate a model with the tokenizer that it was trained with."
        )
    sources = _bundle(config, out)
    scorer = Scorer(
        params,
        shape,
        make_compute(config.compute),
        Placement.choose(shape, config.compute.mesh),
        config.eval.batch_tokens,
    )
    context = shape.seq_len if config.eval.truncation == "left" else None
    finished = out.finished()
    todo = [source for source in sources if records.file_name(source.task.label) not in finished]
    if len(todo) < len(sources):
        out.log(f"{len(sources) - len(todo)} of {len(sources)} tasks are there from an earlier attempt")

    def prepare(source: Source) -> list[Question]:
        return make_questions(source.task, source.examples(), config.eval.max_per_task, tokenizer, context)

    examples, started = 0, time.monotonic()
    with ThreadPoolExecutor(1, thread_name_prefix="tokenize") as ahead:
        following: Future[list[Question]] | None = ahead.submit(prepare, todo[0]) if todo else None
        for number, source in enumerate(todo, 1):
            assert following is not None
            questions = following.result()
            following = ahead.submit(prepare, todo[number]) if number < len(todo) else None
            _score(source, questions, scorer, shape.seq_len, number, len(todo), out)
            examples += len(questions)
    seconds = time.monotonic() - started
    metrics = _finish(config, sources, shape.seq_len, out)
    return metrics | {"seconds": round(seconds, 1), "examples_per_s": examples / seconds if examples else None}


def _bundle(config: Config, out: Workspace) -> list[Source]:
    """The tasks that are asked for; the sample world's bundle is written first."""
    location = config.eval.bundle
    if location == "world":
        location = str(out.scratch() / "world")
        tasks.world.core_bundle(config.data.world, config.data.world.seed or 0, Path(location))
    return open_bundle(location, config.eval.tasks, out.scratch(), out.stop)


def _score(
    source: Source,
    questions: Sequence[Question],
    scorer: Scorer,
    context: int,
    number: int,
    total: int,
    out: Workspace,
) -> None:
    """Score one task, and publish its records."""
    label, started, tokens = source.task.label, time.monotonic(), 0

    def on_batch(rows: int, batch_tokens: int) -> None:
        nonlocal tokens
        tokens += batch_tokens
        rate = tokens / max(time.monotonic() - started, 1e-9)
        out.progress(step=number, total=total, unit="tasks", task=label, tokens_per_s=rate)
        out.stop.check()

    verdicts = scorer.verdicts(questions, on_batch)
    found = [records.record(*pair, context) for pair in zip(questions, verdicts, strict=True)]
    name = records.file_name(label)
    records.write(out.path / name, found)
    out.publish(name)


def _finish(config: Config, sources: Sequence[Source], context: int, out: Workspace) -> dict[str, Any]:
    """Write results.json from the records of all tasks."""
    samples = config.eval.bootstrap_samples
    found = {source.task.label: records.read(out.path / records.file_name(source.task.label)) for source in sources}
    outcomes = {s.task.label: records.outcome(found[s.task.label], s.task.baseline) for s in sources}
    results = records.results(
        {source.task.label: records.summarize(source, found[source.task.label], samples) for source in sources},
        outcomes,
        samples,
        bundle=config.eval.bundle,
        context=context,
        truncation=config.eval.truncation,
        max_per_task=config.eval.max_per_task,
    )
    (out.path / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    out.log(f"CORE {results['core']:.4f}, 95 % interval {results['ci95'][0]:.4f} to {results['ci95'][1]:.4f}")
    names = ("n", "truncated", "over_context")
    sums = {name: sum(task[name] for task in results["tasks"].values()) for name in names}
    return {"core": results["core"], "ci95": results["ci95"], "examples": sums.pop("n"), **sums}
