"""What a chat task is."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from model.chat_format import Conversation


@dataclass(frozen=True)
class Question:
    """One question. `conversation` may hold the right answer as its last message; it is never shown to the
    model."""

    id: int  # place in the task's file
    conversation: Conversation
    gold: str  # what is compared: a letter, a number, a sentence, the name of a function
    letters: tuple[str, ...] = ()  # of a choice: the answer is the likeliest of these


@dataclass(frozen=True)
class ChatTask:
    """Questions and how to judge a generated answer; `judge` is not asked about choices."""

    name: str
    questions: tuple[Question, ...]
    baseline: float  # accuracy of guessing
    judge: Callable[[Question, str], bool] = lambda question, text: text.strip() == question.gold
    runs_code: bool = False  # judging runs what the model wrote
    source: str = ""  # where the questions came from

    def cut(self, most: int | None) -> "ChatTask":
        """At most `most` questions, drawn evenly from the file: some files are sorted by subject."""
        if most is None or most >= len(self.questions):
            return self
        kept = sorted(random.Random(42).sample(range(len(self.questions)), most))
        return replace(self, questions=tuple(self.questions[i] for i in kept))
