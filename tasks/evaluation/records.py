"""What is kept of a task: one JSON line an example, and the numbers made from them.

A record says what was asked (id, tokens of each option), what came out (losses, choice, verdict) and what was special
(truncated, rules). Results are computed from records alone, so that a task that an earlier attempt finished counts
the same as one that was just scored.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model.score import Question, Task, Verdict, core
from tasks.evaluation.bundle import Source
from tasks.statistics import Outcome, accuracy_interval, core_interval

FOLDER = "records"
Record = dict[str, Any]


def file_name(label: str) -> str:
    """Where the records of a task lie in the artifact."""
    return f"{FOLDER}/{label}.jsonl"


def record(question: Question, verdict: Verdict, context: int) -> Record:
    """The record of one example. `id` is its place in the shuffled file; losses are nats per token, null for none."""
    return {
        "id": question.index,
        "correct": verdict.correct,
        "choice": verdict.choice,
        "gold": question.gold,
        "losses": [loss if loss == loss else None for loss in verdict.losses],
        "tokens": list(question.ends),
        "scored": [end - start for start, end in zip(question.starts, question.ends, strict=True)],
        "truncated": question.truncated,
        "over_context": question.truncated or max(question.ends) > context,
        "rules": list(question.rules),
    }


def write(path: Path, records: Sequence[Record]) -> None:
    """One line a record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in records), encoding="utf-8")


def read(path: Path) -> list[Record]:
    """The inverse of `write`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def outcome(records: Sequence[Record], baseline: float) -> Outcome:
    """The verdicts of a task as statistics take them."""
    return Outcome({item["id"]: item["correct"] for item in records}, baseline)


def summarize(source: Source, records: Sequence[Record], samples: int) -> dict[str, Any]:
    """The entry of a task in results.json."""
    task: Task = source.task
    judged = outcome(records, task.baseline)
    return {
        "accuracy": judged.accuracy,
        "centered": judged.centred,
        "ci95": list(accuracy_interval(judged, samples, task.label)),
        "n": len(records),
        "truncated": sum(item["truncated"] for item in records),
        "over_context": sum(item["over_context"] for item in records),
        "rules": dict(sorted(Counter(rule for item in records for rule in item["rules"]).items())),
        "kind": task.kind,
        "num_fewshot": task.num_fewshot,
        "baseline": task.baseline,
        "sha256": source.digest(),
    }


def results(
    tasks: Mapping[str, dict[str, Any]], outcomes: Mapping[str, Outcome], samples: int, **facts: Any
) -> dict[str, Any]:
    """The content of results.json; `facts` say how it was measured."""
    return {
        "core": core([task["centered"] for task in tasks.values()]),
        "ci95": list(core_interval(outcomes, samples)),
        "tasks": dict(tasks),
        **facts,
    }
