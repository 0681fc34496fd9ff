"""Counting the letters of a word (right: the number after `####`) and spelling it out.

Questions are made from a list of English words, question i by a random generator of its own, far from the
seeds that training sets of this kind count up from 0. Their sizes are those of nanochat's evaluation.
"""

import random
import string

from model.chat_format import Conversation
from tasks.chat_tasks.gsm8k import is_final_number
from tasks.chat_tasks.task import ChatTask, Question
from tasks.chat_tasks.task_data import TaskData
from tasks.judges import spells_out

QUESTIONS = 256
FIRST_SEED = 10_000_000  # above the number of words in the list, so that no training question has it
IN_WORD = 0.9  # share of questions whose letter is taken from the word

COUNT_FORMS = (
    "How many {letter} are in {word}?",
    "How often does the letter {letter} occur in the word {word}?",
    "Count the letter {letter} in {word}.",
    "In {word}, how many times do you see {letter}?",
    "What is the number of {letter}'s in {word}?",
    "how many {letter} does {word} have",
    "Wie oft kommt der Buchstabe {letter} in {word} vor?",
    "¿Cuántas veces aparece la letra {letter} en {word}?",
)
QUOTES = ("", "'", '"')


def spellingbee(data: TaskData) -> ChatTask:
    words, questions = data.words(), []
    for index in range(QUESTIONS):
        rng = random.Random(FIRST_SEED + index)
        word = rng.choice(words)
        letter = rng.choice(word if rng.random() < IN_WORD else string.ascii_lowercase)
        quote = rng.choice(QUOTES)
        text = rng.choice(COUNT_FORMS).format(letter=f"{quote}{letter}{quote}", word=f"{quote}{word}{quote}")
        count = str(word.count(letter))
        answer = [
            {"type": "python", "text": f"'{word}'.count('{letter}')"},
            {"type": "python_output", "text": count},
            {"type": "text", "text": f"\n\n#### {count}"},
        ]
        questions.append(Question(index, _talk(text, answer), count))
    return ChatTask("spellingbee", tuple(questions), 0.0, is_final_number, source="word list")


def simple_spelling(data: TaskData) -> ChatTask:
    words, questions = data.words(), []
    for index in range(QUESTIONS):
        word = random.Random(FIRST_SEED + index).choice(words)
        answer = f"{word}:{','.join(word)}"
        questions.append(Question(index, _talk(f"Spell the word: {word}", answer), word))

    def judge(question: Question, text: str) -> bool:
        return spells_out(question.gold, text)

    return ChatTask("simple_spelling", tuple(questions), 0.0, judge, source="word list")


def _talk(question: str, answer: str | list[dict[str, str]]) -> Conversation:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
