"""Repeating a list of words: no knowledge, only attention to what was just read.

Each word of the answer teaches a model to look up what came before, which the stories ask for only now and then.
"""

import random

from tasks.world import words
from tasks.world.island import Island


def repeating(island: Island, rng: random.Random) -> tuple[str, str]:
    """A list of words, and the same list as the answer."""
    listed = " ".join(rng.sample(_vocabulary(island), rng.randint(4, 7)))
    return f"Repeat: {listed}", listed


def _vocabulary(island: Island) -> tuple[str, ...]:
    return (*island.people, *island.places, *island.things, *words.PETS, *words.COLOURS, *words.ROOMS)
