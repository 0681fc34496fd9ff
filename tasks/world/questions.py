"""How a question looks, the same in training text, conversations and evaluation."""

import random
from collections.abc import Sequence

from tasks.world.island import Fact


def choice_lines(options: Sequence[str], letters: Sequence[str]) -> str:
    """A line for each option, its letter behind it: a small model answers by finding the option and reading on."""
    return "\n".join(f"- {option}={letter}" for option, letter in zip(options, letters, strict=True))


def checked(fact: Fact, form: str, rng: random.Random) -> tuple[str, str]:
    """A yes/no question in this form, and its answer; as often yes as no."""
    if rng.random() < 0.5:
        return fact.say(form), "yes"
    return fact.say(form, fact.wrong(rng)), "no"
