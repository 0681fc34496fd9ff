"""How a question looks, the same in training text, conversations and evaluation."""

import random

from tasks.world.island import Fact


def claim(fact: Fact, form: str, rng: random.Random) -> str:
    """A yes/no question in this form, about the true object as often as about another one."""
    return fact.say(form, fact.object if rng.random() < 0.5 else fact.wrong(rng))
