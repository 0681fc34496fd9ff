"""Records of public data sets as conversations: what training and evaluation alike make of a question.

A conversation is `{"messages": [{"role", "content"}, …]}` as `model.chat_format` renders it. Every function raises
FormatError with what is wrong with the record.
"""

import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from model.chat_format import Conversation, FormatError

_TOOL_CALL = re.compile(r"<<([^>]+)>>")


def from_messages(record: Any) -> Conversation:
    """`{"messages": […]}` or a bare list of messages."""
    messages = record.get("messages") if isinstance(record, Mapping) else record
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        raise FormatError("the record is neither a list of messages nor an object with one as 'messages'")
    return {"messages": messages}


def from_gsm8k(record: Any) -> Conversation:
    """`{"question", "answer"}`; a mark `<<48/2=24>>` in the answer becomes a tool call and its result."""
    answer = _text(record, "answer")
    parts: list[dict[str, str]] = []
    for position, piece in enumerate(_TOOL_CALL.split(answer)):
        if position % 2 == 0:
            parts += [{"type": "text", "text": piece}] if piece else []
        else:
            expression, _, result = piece.rpartition("=") if "=" in piece else (piece, "", "")
            parts += [{"type": "python", "text": expression}, {"type": "python_output", "text": result}]
    return _question_and_answer(_text(record, "question"), parts)


def from_multiple_choice(record: Any) -> Conversation:
    """`{"question", "choices", "answer"}` as MMLU has it (index or letter of the answer), or as ARC has it:
    choices `{"text", "label"}` and `answerKey`. A record wrapped as `{"train": record}` is unwrapped."""
    if isinstance(record, Mapping) and set(record) == {"train"}:
        record = record["train"]  # so MMLU's auxiliary_train is published
    question = _text(record, "question")
    choices = record.get("choices")
    labels: Sequence[str] = string.ascii_uppercase
    if isinstance(choices, Mapping):
        labels, choices = choices.get("label", labels), choices.get("text")
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(string.ascii_uppercase):
        raise FormatError("'choices' is not a list of 2 to 26 texts")
    gold = record.get("answer", record.get("answerKey"))
    index = list(labels).index(gold) if isinstance(gold, str) and gold in labels else gold
    if not isinstance(index, int) or not 0 <= index < len(choices):
        raise FormatError(f"the answer {gold!r} is none of the {len(choices)} choices")
    letters = string.ascii_uppercase[: len(choices)]
    return _question_and_answer(multiple_choice_prompt(question, letters, choices), letters[index])


def multiple_choice_prompt(question: str, letters: Sequence[str], choices: Sequence[str]) -> str:
    """The user's turn of a multiple-choice question, as nanochat asks it.

    The letter stands after its choice and directly after `=`, so that it is the very token that answers.
    """
    lines = "".join(f"- {choice}={letter}\n" for letter, choice in zip(letters, choices, strict=True))
    return f"Multiple Choice question: {question}\n{lines}\nRespond only with the letter of the correct answer."


FORMATS: dict[str, Callable[[Any], Conversation]] = {
    "messages": from_messages,
    "gsm8k": from_gsm8k,
    "multiple_choice": from_multiple_choice,
}


def check_trainable(conversation: Conversation) -> None:
    """FormatError unless there is something to learn: an assistant's turn, and no empty message."""
    for number, message in enumerate(conversation["messages"]):
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
        if not any(isinstance(text, str) and text.strip() for text in texts):
            raise FormatError(f"message {number} of the {message.get('role')} has no text")
    if not any(message.get("role") == "assistant" for message in conversation["messages"]):
        raise FormatError("no message is from the assistant: there is nothing to learn")


def _text(record: Any, name: str) -> str:
    value = record.get(name) if isinstance(record, Mapping) else None
    if not isinstance(value, str):
        there = ", ".join(map(repr, record)) if isinstance(record, Mapping) else type(record).__name__
        raise FormatError(f"no text '{name}' in the record ({there})")
    return value


def _question_and_answer(question: str, answer: str | list[dict[str, str]]) -> Conversation:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
