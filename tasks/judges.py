"""What an answer to a qualitative prompt is judged by. A judge is data: its name and its parameters; passed
is good."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from tasks.stage import InputError

ECHO = 0.8  # share of the question that an answer may begin with
LOOP_WORDS, LOOP_TIMES = 20, 3  # a block of up to so many words, so many times in a row, …
LOOP_LENGTH = 8  # … and so many words in all: "no, no, no" is no loop


@dataclass(frozen=True)
class Answer:
    """What a model said, and whether it stopped by itself."""

    text: str
    stopped: bool


def judge(judges: list[Mapping[str, Any]], question: str, answer: Answer) -> list[dict[str, Any]]:
    """`{"name", "passed"}` for each of the judges `{"judge": name, …parameters}`; InputError for an unknown
    one."""
    verdicts = []
    for entry in judges:
        parameters = {key: value for key, value in entry.items() if key != "judge"}
        name = entry.get("judge")
        if name not in JUDGES:
            raise InputError(f"A prompt has the judge {name!r}: the judges are {', '.join(JUDGES)}.")
        try:
            passed = JUDGES[name](question, answer, **parameters)
        except TypeError as error:
            raise InputError(f"The judge {name!r} of a prompt has wrong parameters {parameters}: {error}.") from error
        verdicts.append({"name": name, "passed": passed})
    return verdicts


def not_empty(question: str, answer: Answer) -> bool:
    """It says something."""
    return bool(answer.text.strip())


def stops(question: str, answer: Answer) -> bool:
    """It ends by itself, and not because it ran out of tokens."""
    return answer.stopped


def no_echo(question: str, answer: Answer) -> bool:
    """It does not begin by giving the question back."""
    asked, said = _words(question), _words(answer.text)
    if len(asked) < 3:
        return not asked or said != asked
    return SequenceMatcher(None, asked, said[: len(asked)], autojunk=False).ratio() < ECHO


def no_repeat(question: str, answer: Answer) -> bool:
    """It is not caught in a loop: no block of words comes several times in a row."""
    words = answer.text.split()
    for size in range(1, LOOP_WORDS + 1):
        run = 0  # how many words in a row equal the one a block earlier
        for before, word in zip(words, words[size:], strict=False):
            run = run + 1 if word == before else 0
            if run + size >= max(LOOP_LENGTH, LOOP_TIMES * size):
                return False
    return not re.search(r"(\S{1,20}?)\1{19,}", answer.text)  # a loop without spaces


def contains(question: str, answer: Answer, any_of: list[str]) -> bool:
    """One of the texts occurs, in any case of letters."""
    return any(text.casefold() in answer.text.casefold() for text in any_of)


def spells(question: str, answer: Answer, word: str) -> bool:
    """The word is spelled out, letter by letter."""
    return spells_out(word, answer.text)


def number(question: str, answer: Answer, value: float) -> bool:
    """The last number of the answer is `value`."""
    found = re.findall(r"-?\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", answer.text))
    return bool(found) and float(found[-1]) == value


JUDGES: dict[str, Callable[..., bool]] = {
    f.__name__: f for f in (not_empty, stops, no_echo, no_repeat, contains, spells, number)
}


def spells_out(word: str, text: str) -> bool:
    """Whether the letters of `word`, and no others, stand one by one in a row: `a, p, p, l, e` or
    `A-p-p-l-e`.

    Words before and after the row make no difference: `apple: a p p l e` spells apple.
    """
    pieces = re.findall(r"[^\W\d_]+", text.casefold())
    rows = "".join(piece if len(piece) == 1 else " " for piece in pieces).split()
    return word.casefold() in rows


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
