"""Stage `chat`: what a model knows when it is asked in the chat template that it was trained with.

Choices are read off the logits of their letters; other answers are generated, with the calculator, and
judged by the task. Fills results.json (accuracy, centred accuracy and 95 % interval of each task, and
ChatCORE) and records/<task>.jsonl. Records are published while a task is running, so a killed evaluation
loses half a minute.

HumanEval runs programs that a model wrote: only if `chat.allow_code_execution` says so and `tasks.sandbox`
works here. Otherwise it is skipped, the result says why, and a run that asked for it has no ChatCORE.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tasks import chat_tasks, sandbox
from tasks import tokenizer as tokenizers
from tasks.answering import Answerer
from tasks.chat_tasks.asking import Asker, Record
from tasks.chat_tasks.task import ChatTask
from tasks.chat_tasks.task_data import TaskData
from tasks.evaluation import records
from tasks.stage import Stage
from tasks.statistics import Outcome, accuracy_interval, core_interval

if TYPE_CHECKING:
    from conf.schema import ChatConfig, Config
    from tasks.store.artifact import Artifact
    from tasks.store.workspace import Workspace

STAGE = Stage(
    name="chat",
    version=1,
    reads=("chat", "data.world", "compute.compute_dtype", "seed"),
    runtime=("compute", "chat.batch_rows"),
    files=("chat.data_dir", "chat.word_list"),
    inputs=("model", "tokenizer"),
    resumable=True,
    accelerator=True,
)

PUBLISH_SECONDS = 30.0  # of answers are lost at most when an evaluation is killed


def run(config: Config, inputs: Mapping[str, Artifact], out: Workspace) -> dict[str, Any]:
    """Ask and judge every question of `chat.tasks`; returns ChatCORE and the accuracies.

    Raises InputError where the model, the tokenizer or the task files cannot be used.
    """
    chat = config.chat
    data = TaskData(chat.data_dir, chat.word_list, out.scratch() / "data", out.stop)
    wanted = chat_tasks.load(chat, config.data.world, data)
    skipped = {task.name: reason for task in wanted if (reason := _reason_to_skip(task, chat))}
    for name, reason in skipped.items():
        out.log(f"{name} is not run: {reason}")
    todo = [task for task in wanted if task.name not in skipped]
    tokenizer = tokenizers.load(inputs["tokenizer"].path())
    answerer = Answerer.of(inputs["model"], tokenizer, config.compute)
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="judge") as judging:
        asker = Asker(answerer, chat, config.seed, judging, between=out.stop.check)
        for number, task in enumerate(todo, 1):
            if records.file_name(task.name) not in out.finished():
                _evaluate(task, asker, out, f"{task.name} ({number} of {len(todo)})")
    results = _results(todo, skipped, chat, out)
    (out.path / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    accuracies = {f"{name}_accuracy": task["accuracy"] for name, task in results["tasks"].items()}
    return {"chatcore": results["chatcore"], "ci95": results["ci95"], **accuracies}


def _reason_to_skip(task: ChatTask, chat: ChatConfig) -> str | None:
    if not task.runs_code:
        return None
    if not chat.allow_code_execution:
        return "it executes programs written by the model; chat.allow_code_execution=true allows that"
    return sandbox.unavailable()


def _evaluate(task: ChatTask, asker: Asker, out: Workspace, label: str) -> None:
    """Ask what an earlier attempt has not asked yet, a part file at a time, and publish the task's
    records."""
    parts = _Parts(task.name, out)
    open_questions = [question for question in task.questions if question.id not in parts.done]
    started, tokens, answered = time.monotonic(), 0, 0
    try:
        for batch in asker.batches(open_questions):
            out.stop.check()
            found = asker.ask(task, batch)
            parts.add(found)
            answered += len(found)
            tokens += sum(sum(record.get("new_tokens", ())) for record in found)
            seconds = max(time.monotonic() - started, 1e-9)
            out.progress(
                step=len(parts.done),
                total=len(task.questions),
                unit="questions",
                task=label,
                questions_per_s=answered / seconds,
                **({"tokens_per_s": tokens / seconds} if tokens else {}),
            )
    finally:
        parts.publish()
    by_id = {record["id"]: record for record in parts.records}
    records.write(out.path / records.file_name(task.name), [by_id[q.id] for q in task.questions])
    out.publish(records.file_name(task.name))


class _Parts:
    """The records of an unfinished task, in files that are published as they come and are not part of the
    artifact."""

    def __init__(self, name: str, out: Workspace) -> None:
        self._prefix, self._out = f"scratch/parts/{name}-", out
        self._published_at = time.monotonic()
        self._waiting: list[Record] = []
        known = sorted(file for file in out.finished() if file.startswith(self._prefix))
        self._count = len(known)
        self.records = [record for file in known for record in records.read(out.path / file)]
        self.done = {record["id"] for record in self.records}

    def add(self, found: Sequence[Record]) -> None:
        """Keep records; publish those that wait when the last time was long enough ago."""
        self.records += found
        self._waiting += found
        self.done |= {record["id"] for record in found}
        if time.monotonic() - self._published_at >= PUBLISH_SECONDS:
            self.publish()

    def publish(self) -> None:
        """Write what waits to a part file of its own and publish it."""
        if self._waiting:
            name = f"{self._prefix}{self._count:05d}.jsonl"
            records.write(self._out.path / name, self._waiting)
            self._out.publish(name)
            self._count, self._waiting = self._count + 1, []
        self._published_at = time.monotonic()


def _results(todo: Sequence[ChatTask], skipped: Mapping[str, str], chat: ChatConfig, out: Workspace) -> dict[str, Any]:
    """What results.json says. ChatCORE averages nanochat's six tasks if all ran, else all that were asked
    for."""
    found = {task.name: records.read(out.path / records.file_name(task.name)) for task in todo}
    outcomes = {task.name: records.outcome(found[task.name], task.baseline) for task in todo}
    complete = set(chat_tasks.CHATCORE) <= outcomes.keys()
    counted = {name: o for name, o in outcomes.items() if not complete or name in chat_tasks.CHATCORE}
    whole = bool(counted) and not skipped
    return {
        "chatcore": sum(o.centred for o in counted.values()) / len(counted) if whole else None,
        "ci95": list(core_interval(counted, chat.bootstrap_samples)) if whole else None,
        "complete": complete,  # whether ChatCORE is nanochat's, over its six tasks
        "tasks": {t.name: _summary(t, found[t.name], outcomes[t.name], chat.bootstrap_samples) for t in todo},
        "skipped": dict(skipped),
        "num_samples": chat.num_samples,
        "temperature": chat.temperature,
        "max_new_tokens": chat.max_new_tokens,
        "max_per_task": chat.max_per_task,
    }


def _summary(task: ChatTask, found: Sequence[Record], outcome: Outcome, samples: int) -> dict[str, Any]:
    stopped = [ended for record in found for ended in record.get("stopped", ())]
    return {
        "accuracy": outcome.accuracy,
        "centered": outcome.centred,
        "ci95": list(accuracy_interval(outcome, samples, task.name)),
        "n": len(found),
        "baseline": task.baseline,
        "stopped": sum(stopped) / len(stopped) if stopped else None,  # share of answers that ended by themselves
        "over_context": sum(record["over_context"] for record in found),
        "source": task.source,
    }
