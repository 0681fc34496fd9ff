"""The rules of CORE: what a model is asked, which tokens are scored, what counts as right.

CORE is the centred accuracy over 22 tasks of DCLM [arXiv 2406.11794]; prompts, few-shot draws, spans and verdicts are
those of nanochat's `core_eval.py`, so that scores compare. Three kinds of task:

* multiple_choice:    one context, several choices; the choice whose tokens have the lowest mean loss is taken.
* schema:             several contexts, one continuation; the context that gives it the lowest mean loss is taken.
* language_modeling:  right if the most likely token is the next one all along the continuation.

Every sequence starts with BOS, and a span is `[start, end)` in token positions. Where nanochat stops with an error or
averages nothing, an example is scored all the same by one of the rules below, and says so in `Question.rules`:

* `boundary`  the prompt's tokens are no prefix of those of prompt + continuation (a merge across the boundary, or
              trailing space): the span starts after the longest common prefix of token ids.
* `span`      nothing would be scored (an option is a prefix of another one, or equal to it): the span starts one token
              before the end of the shortest option, and never before the first token after BOS.
* `cut`       truncation reached into the span: what is left of the span is scored, from the second token on, since the
              first one has nothing before it.
* `shots`     the file has fewer other examples than the task wants as few-shot examples: all of them are used.

Pure Python on purpose: the model is in `model.branches`, batching in `model.buckets`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal["multiple_choice", "schema", "language_modeling"]
KINDS: tuple[Kind, ...] = ("multiple_choice", "schema", "language_modeling")

SHUFFLE_SEED = 1337  # of the order of a task's file (nanochat)
FEWSHOT_SEED = 1234  # plus the index of the example (nanochat)


@dataclass(frozen=True)
class Task:
    """One task of the bundle. `baseline` is the accuracy of guessing, a share between 0 and 1."""

    label: str
    kind: Kind
    num_fewshot: int
    delimiter: str  # between a context and its continuation
    baseline: float


@dataclass(frozen=True)
class Question:
    """One example, tokenized: `options[k]` are ids with BOS in front, scored on positions `[starts[k], ends[k])`."""

    index: int  # position in the shuffled file
    options: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    gold: int | None = None  # right option; None for language_modeling
    truncated: bool = False
    rules: tuple[str, ...] = ()  # where nanochat's own rules did not suffice


@dataclass(frozen=True)
class Verdict:
    """What became of a question. `choice` is None for language_modeling."""

    correct: bool
    choice: int | None
    losses: tuple[float, ...]  # mean over the span, nats per token, one for each option


# --- prompts


def shuffled(examples: Sequence[Any]) -> list[Any]:
    """The examples of a task's file in the order that CORE indexes them by."""
    order = list(examples)
    random.Random(SHUFFLE_SEED).shuffle(order)
    return order


def draw_shots(index: int, n_examples: int, num_fewshot: int) -> list[int]:
    """Indices of the few-shot examples of example `index`, in prompt order; fewer if there are not that many others."""
    if num_fewshot == 0:
        return []
    others = [i for i in range(n_examples) if i != index]
    return random.Random(FEWSHOT_SEED + index).sample(others, min(num_fewshot, len(others)))


def render(task: Task, item: Mapping[str, Any], shots: Sequence[Mapping[str, Any]]) -> list[str]:
    """The texts of an example that are to be tokenized, few-shot examples in front, separated by an empty line.

    One text an option; for language_modeling two: the prompt alone, stripped, and the prompt with its continuation.
    """
    preamble = "".join(f"{_solved(task, shot)}\n\n" for shot in shots)
    if task.kind == "multiple_choice":
        return [f"{preamble}{item['query']}{task.delimiter}{choice}" for choice in item["choices"]]
    if task.kind == "schema":
        return [f"{preamble}{c}{task.delimiter}{item['continuation']}" for c in item["context_options"]]
    prompt = f"{preamble}{str(item['context']).strip()}{task.delimiter}"
    return [prompt.strip(), f"{prompt}{item['continuation']}"]


def _solved(task: Task, item: Mapping[str, Any]) -> str:
    """An example with its right answer, as it stands in front of the question."""
    if task.kind == "multiple_choice":
        return f"{item['query']}{task.delimiter}{item['choices'][item['gold']]}"
    if task.kind == "schema":
        return f"{item['context_options'][item['gold']]}{task.delimiter}{item['continuation']}"
    return f"{str(item['context']).strip()}{task.delimiter}{item['continuation']}"


# --- spans


def common_prefix(sequences: Sequence[tuple[int, ...]]) -> int:
    """Number of leading items that all sequences share."""
    first, last = min(sequences), max(sequences)  # whatever these two share, the ones between them share too
    shortest = min(len(first), len(last))
    return next((i for i in range(shortest) if first[i] != last[i]), shortest)


def common_suffix(sequences: Sequence[tuple[int, ...]]) -> int:
    """Number of trailing items that all sequences share."""
    return common_prefix([s[::-1] for s in sequences])


def make_question(
    task: Task, index: int, gold: int | None, sequences: Sequence[Sequence[int]], rules: Sequence[str] = ()
) -> Question:
    """Find the scored spans in the token ids of an example's texts.

    sequences: ids of what `render` returned, in that order, each with BOS in front. rules: those applied before.
    """
    ids = tuple(tuple(s) for s in sequences)
    applied = list(rules)
    if task.kind == "language_modeling":
        prompt, full = ids
        start = common_prefix(ids)
        if start < len(prompt):
            applied.append("boundary")
        ids, starts, gold = (full,), [start], None
    elif task.kind == "multiple_choice":
        starts = [common_prefix(ids)] * len(ids)
    else:
        shared = common_suffix(ids)
        starts = [len(s) - shared for s in ids]
    repaired = _repair(starts, [len(s) for s in ids], same_start=task.kind == "multiple_choice")
    if repaired != starts:
        applied.append("span")
    return Question(index, ids, tuple(repaired), tuple(len(s) for s in ids), gold, rules=tuple(applied))


def _repair(starts: list[int], ends: list[int], same_start: bool) -> list[int]:
    """Give every span at least one token, and none before the first one that has something before it."""
    if same_start:
        return [max(1, min(starts[0], min(ends) - 1))] * len(starts)
    return [max(1, min(start, end - 1)) for start, end in zip(starts, ends, strict=True)]


def longest(question: Question) -> int:
    """Tokens of the longest option."""
    return max(question.ends)


def truncate_left(question: Question, limit: int) -> Question:
    """Keep the last `limit` tokens of every option (BOS goes too, as in nanochat) and move the spans along."""
    if longest(question) <= limit:
        return question
    crops = [max(0, end - limit) for end in question.ends]
    moved = [start - crop for start, crop in zip(question.starts, crops, strict=True)]
    starts = tuple(max(1, start) for start in moved)
    return replace(
        question,
        options=tuple(ids[crop:] for ids, crop in zip(question.options, crops, strict=True)),
        starts=starts,
        ends=tuple(end - crop for end, crop in zip(question.ends, crops, strict=True)),
        truncated=True,
        rules=question.rules + (("cut",) if list(starts) != moved else ()),
    )


# --- verdicts


def judge(question: Question, losses: Sequence[float], exact: bool) -> Verdict:
    """Decide from the mean loss of each option and, for language_modeling, from whether every token was predicted.

    The first of equally good options is taken. A loss that is not a number never wins.
    """
    if question.gold is None:
        return Verdict(exact, None, tuple(losses))
    finite = [loss if math.isfinite(loss) else math.inf for loss in losses]
    best = min(finite)
    choice = finite.index(best) if math.isfinite(best) else None
    return Verdict(choice == question.gold, choice, tuple(losses))


def centre(accuracy: float, baseline: float) -> float:
    """Accuracy on the scale where guessing is 0 and everything right is 1."""
    return (accuracy - baseline) / (1.0 - baseline)


def core(centred: Sequence[float]) -> float:
    """CORE: the plain mean of the tasks' centred accuracies."""
    return sum(centred) / len(centred)
