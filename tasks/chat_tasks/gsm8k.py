"""GSM8K: word problems, answered with the calculator; right is the right number after `####`."""

import re

from tasks.chat_records import from_gsm8k
from tasks.chat_tasks.task import ChatTask, Question
from tasks.chat_tasks.task_data import TaskData

_FINAL = re.compile(r"#### (-?[0-9.,]+)")  # of grade-school-math's own scorer


def final_number(text: str) -> str | None:
    """The number after the first `####`, without thousands separators, or None."""
    match = _FINAL.search(text)
    return match.group(1).replace(",", "") if match else None


def is_final_number(question: Question, text: str) -> bool:
    return final_number(text) == question.gold


def gsm8k(data: TaskData) -> ChatTask:
    questions = tuple(
        Question(index, conversation, str(final_number(record["answer"])))
        for index, conversation, record in data.conversations("gsm8k_test", from_gsm8k)
    )
    return ChatTask("gsm8k", questions, 0.0, is_final_number, source="gsm8k_test")
