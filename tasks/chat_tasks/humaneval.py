"""HumanEval: a function to complete; right is a program that passes the task's tests in the sandbox."""

import re
from typing import Any

from model.chat_format import Conversation, FormatError
from tasks import sandbox
from tasks.chat_tasks.task import ChatTask, Question
from tasks.chat_tasks.task_data import TaskData

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
FIELDS = ("prompt", "canonical_solution", "test", "entry_point")


def humaneval(data: TaskData) -> ChatTask:
    """A question's gold is the canonical solution; its tests run the answer."""
    found = list(data.conversations("HumanEval", _conversation))
    questions = tuple(Question(index, conversation, record["entry_point"]) for index, conversation, record in found)
    records = {index: record for index, _, record in found}

    def judge(question: Question, text: str) -> bool:
        return sandbox.run(program(records[question.id], text)).passed

    return ChatTask("humaneval", questions, 0.0, judge, runs_code=True, source="HumanEval")


def program(record: dict[str, Any], answer: str) -> str:
    """What is run: the imports of the prompt, the code of the answer, the tests and the call that starts
    them.

    The answer may be the whole function, also inside a Markdown block among other text, or only the body.
    """
    code = extract_code(answer)
    if f"def {record['entry_point']}" not in code:
        code = record["prompt"] + code
    return "\n\n".join([_imports(record["prompt"]), code, record["test"], f"check({record['entry_point']})\n"])


def extract_code(answer: str) -> str:
    """The first Markdown code block of an answer, or all of it where there is none."""
    block = _BLOCK.search(answer)
    return block.group(1) if block else answer.rstrip()


def _imports(prompt: str) -> str:
    """The import lines at the head of a prompt: an answer often repeats the function without them."""
    head = prompt.split("def ")[0].splitlines()
    return "\n".join(line for line in head if line.startswith(("import ", "from ")))


def _conversation(record: Any) -> Conversation:
    if not isinstance(record, dict) or any(not isinstance(record.get(name), str) for name in FIELDS):
        raise FormatError(f"the record lacks one of the texts {', '.join(FIELDS)}")
    solution = record["prompt"] + record["canonical_solution"]
    return {"messages": [{"role": "user", "content": record["prompt"]}, {"role": "assistant", "content": solution}]}
