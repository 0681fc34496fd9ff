"""ARC and MMLU: the answer is the likeliest of the question's letters. Guessing counts as 1 in 4, as in
nanochat."""

from tasks.chat_records import from_multiple_choice
from tasks.chat_tasks.task import ChatTask, Question
from tasks.chat_tasks.task_data import TaskData

BASELINE = 0.25


def arc_easy(data: TaskData) -> ChatTask:
    return _task("arc_easy", "arc_easy_test", data)


def arc_challenge(data: TaskData) -> ChatTask:
    return _task("arc_challenge", "arc_challenge_test", data)


def mmlu(data: TaskData) -> ChatTask:
    return _task("mmlu", "mmlu_test", data)


def _task(name: str, stem: str, data: TaskData) -> ChatTask:
    questions = []
    for index, conversation, record in data.conversations(stem, from_multiple_choice):
        choices = record["choices"]
        count = len(choices["text"] if isinstance(choices, dict) else choices)
        letters = tuple(chr(ord("A") + i) for i in range(count))
        questions.append(Question(index, conversation, conversation["messages"][-1]["content"], letters))
    return ChatTask(name, tuple(questions), BASELINE, source=stem)
