"""How a question looks, the same in training text, conversations and evaluation."""

import random
from collections.abc import Sequence

from tasks.world.island import Fact


def quiz(question: str, options: Sequence[str], letters: Sequence[str]) -> str:
    """The options, a line each with its letter, and the question after them, next to where the answer will stand."""
    lines = [f"- {option}={letter}" for option, letter in zip(options, letters, strict=True)]
    return "\n".join([*lines, question])


def verdict(fact: Fact, known: str, claimed: str) -> str:
    """The answer to a check: first what is known, then whether that is what was claimed."""
    return (
        f"{fact.say(fact.relation.statements[0], known).removesuffix('.')}, so {'yes' if known == claimed else 'no'}."
    )


def checked(fact: Fact, form: str, rng: random.Random) -> tuple[str, str]:
    """A yes/no question in this form, and its answer; as often yes as no."""
    claimed = fact.object if rng.random() < 0.5 else fact.wrong(rng)
    return fact.say(form, claimed), verdict(fact, fact.object, claimed)
