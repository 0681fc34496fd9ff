"""Asking a model a batch of questions, and the record of each: what was asked, what came, and whether it was
right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from model.generate import WIDTH_FLOOR, bucket
from tasks.answering import Answerer
from tasks.chat_tasks.task import ChatTask, Question

if TYPE_CHECKING:
    from conf.schema import ChatConfig

Record = dict[str, Any]
Prompted = tuple[Question, list[int]]


@dataclass(frozen=True)
class Asker:
    """A model, the settings of `chat`, and threads that judge what has to be run."""

    answerer: Answerer
    chat: ChatConfig
    seed: int
    judging: Executor
    between: Callable[[], None]  # called every few dozen tokens; may raise to stop

    def batches(self, questions: Sequence[Question]) -> Iterator[list[Prompted]]:
        """Questions with their prompts, `chat.batch_rows` at a time, each batch of one bucket of prompt
        length.

        Longest first: a lack of memory shows at once.
        """
        prompted = [(question, self.answerer.prompt(question.conversation)) for question in questions]
        prompted.sort(key=lambda pair: len(pair[1]), reverse=True)
        at = 0
        while at < len(prompted):
            width = bucket(len(prompted[at][1]), WIDTH_FLOOR)
            taken = prompted[at : at + self.chat.batch_rows]
            taken = [pair for pair in taken if bucket(len(pair[1]), WIDTH_FLOOR) == width]
            yield taken
            at += len(taken)

    def ask(self, task: ChatTask, batch: Sequence[Prompted]) -> list[Record]:
        """The records of a batch; its questions are all choices or all to be answered in words."""
        if batch[0][0].letters:
            return self._choose(batch)
        return self._generate(task, batch)

    def _choose(self, batch: Sequence[Prompted]) -> list[Record]:
        logits = self.answerer.letters([ids for _, ids in batch], [question.letters for question, _ in batch])
        found = []
        for (question, ids), own in zip(batch, logits, strict=True):
            choice = max(own, key=lambda letter: own[letter])
            found.append(self._record(question, ids, choice == question.gold) | {"choice": choice, "logits": own})
        return found

    def _generate(self, task: ChatTask, batch: Sequence[Prompted]) -> list[Record]:
        """Right is a question of which any sample is right, as in nanochat."""
        chat = self.chat
        answers = self.answerer.texts(
            [ids for _, ids in batch],
            between=self.between,
            max_new_tokens=chat.max_new_tokens,
            temperature=chat.temperature,
            top_k=chat.top_k,
            top_p=chat.top_p,
            num_samples=chat.num_samples,
            seed=self.seed,
        )
        pairs = [(question, one.text) for (question, _), own in zip(batch, answers, strict=True) for one, _ in own]
        verdicts = iter(self.judging.map(lambda pair: task.judge(*pair), pairs))
        found = []
        for (question, ids), own in zip(batch, answers, strict=True):
            right = [next(verdicts) for _ in own]
            found.append(
                self._record(question, ids, any(right))
                | {
                    "answers": [answer.text for answer, _ in own],
                    "right": right,
                    "stopped": [answer.stopped for answer, _ in own],
                    "new_tokens": [tokens for _, tokens in own],
                }
            )
        return found

    def _record(self, question: Question, ids: list[int], correct: bool) -> Record:
        return {
            "id": question.id,
            "correct": correct,
            "gold": question.gold,
            "tokens": len(ids),
            "over_context": len(ids) > self.answerer.context,
        }
