"""A task's examples to verdicts: tokenized ahead on the host, scored in batches on the devices."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from model.branches import device_arrays, reach, score
from model.buckets import ROOMS, Batch, plan
from model.recipe import Compute, GPTConfig
from model.score import Question, Task, Verdict, draw_shots, judge, longest, make_question, render, truncate_left
from tasks.stage import InputError

if TYPE_CHECKING:
    from tasks.tokenizer import Tokenizer
    from tasks.training.placement import Placement

DEVICE_TOKENS = {"cpu": 4096}  # room of one call and device, and elsewhere …
OTHER_DEVICE_TOKENS = 32_768  # … 4.8 GB of keys and values at d24 in bfloat16
AT_ONCE = 2  # batches
TEXTS_AT_ONCE = 4096  # tokenized in one call: enough for every core, little enough to stop soon


def make_questions(
    task: Task,
    examples: Sequence[Mapping[str, Any]],
    limit: int | None,
    tokenizer: Tokenizer,
    context: int | None = None,
) -> list[Question]:
    """Render and tokenize the first `limit` examples of a shuffled task; few-shot examples come from all of them.

    context: tokens that prompts are cut to from the left; None leaves them whole.
    """
    questions: list[Question] = []
    numbered = iter(enumerate(examples[:limit]))
    while chunk := list(islice(numbered, max(1, TEXTS_AT_ONCE // 4))):
        rendered = []
        for index, example in chunk:
            shots = draw_shots(index, len(examples), task.num_fewshot)
            rules = ("shots",) if len(shots) < task.num_fewshot else ()
            rendered.append((index, example, rules, render(task, example, [examples[i] for i in shots])))
        ids = iter(tokenizer.encode_batch([text for *_, texts in rendered for text in texts]))
        for index, example, rules, texts in rendered:
            sequences = [(tokenizer.bos, *next(ids)) for _ in texts]
            question = make_question(task, index, example.get("gold"), sequences, rules)
            questions.append(question if context is None else truncate_left(question, context))
    return questions


class Scorer:
    """A model on the devices, ready to judge questions."""

    def __init__(
        self, params: Any, config: GPTConfig, compute: Compute, placement: Placement, batch_tokens: int | None = None
    ) -> None:
        """params: the nested dict of `model.gpt`, on the host or on devices. batch_tokens: room of one call; None:
        what suits the devices."""
        self._params = jax.device_put(params) if placement.mesh is None else placement.put_state(params)
        self._config, self._compute, self._placement = config, compute, placement
        one = DEVICE_TOKENS.get(jax.default_backend(), OTHER_DEVICE_TOKENS)
        self._batch_tokens = batch_tokens or one * placement.row_shards

    def verdicts(
        self, questions: Sequence[Question], on_batch: Callable[[int, int], None] = lambda rows, tokens: None
    ) -> list[Verdict]:
        """One verdict a question, in order. `on_batch(rows, tokens)` is called after each batch with its real size.

        Raises InputError if a prompt is too long for any batch, and if the model's losses are not numbers: a score made
        of them would look like a bad model.
        """
        if too_long := [question for question in questions if longest(question) > ROOMS[-1][0]]:
            raise InputError(
                f"Example {too_long[0].index} has {longest(too_long[0]):,} tokens, more than the {ROOMS[-1][0]:,} that "
                "fit: set eval.truncation=left."
            )
        losses = [[math.nan] * len(question.options) for question in questions]
        exact = [False] * len(questions)
        for batch, nats, hits in self._scored(questions):
            for row, number, option, columns in batch.spans():
                losses[number][option] = loss = float(nats[row, columns].mean(dtype=np.float64))
                exact[number] = bool(hits[row, columns].all())
                if not math.isfinite(loss):
                    raise InputError(
                        f"The model's loss on example {questions[number].index} is {loss}: its weights are damaged, "
                        "or compute.compute_dtype is too narrow for them."
                    )
            on_batch(len(batch.rows), sum(len(row.prefix) + row.branch_tokens for row in batch.rows))
        return [judge(*judged) for judged in zip(questions, losses, exact, strict=True)]

    def _scored(self, questions: Sequence[Question]) -> Iterator[tuple[Batch, np.ndarray, np.ndarray]]:
        """Batches with their results, in order, AT_ONCE of them under way: the devices work on one while the host reads
        and packs another, and a CPU's cores compute two, which took 0.7 of the time of one after the other."""
        mesh = self._placement.mesh
        turn = nullcontext() if mesh is None else Lock()  # devices that wait for each other must agree on what is next

        def results(batch: Batch) -> tuple[Batch, np.ndarray, np.ndarray]:
            with turn:
                losses, hits = score(self._params, device_arrays(batch, mesh), self._config, self._compute, mesh)
            return batch, np.asarray(losses), np.asarray(hits)

        running: deque[Future[tuple[Batch, np.ndarray, np.ndarray]]] = deque()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for batch in plan(questions, self._batch_tokens, reach(self._config), self._placement.row_shards):
                running.append(pool.submit(results, batch))
                if len(running) > AT_ONCE:
                    yield running.popleft().result()
            yield from (future.result() for future in running)
