"""Texts that must be read, not remembered: who lent what to whom and why, who carried what where, lists to repeat.

Unlike facts they are new each time. The evaluation's stories bring together people, or a person and a thing, whom no
training story of that kind brings together.
"""

import random
from dataclasses import dataclass

from tasks.world import words
from tasks.world.island import Island

# (what the giver's side explains, what the taker's side explains); "because {name}" stands before.
_REASONS = (
    ("owned two of them", "needed one"),
    ("likes to give", "had asked for it"),
)
_LENDING = ("{giver} lent a {thing} to {taker} because", "{giver} gave {taker} a {thing} because")
_CARRYING = ("{person} carried the {thing} to {place}.", "{person} took the {thing} to {place}.")
_QUESTIONS = ("Where is the {thing} now?", "To which town did {person} bring the {thing}?")


@dataclass(frozen=True)
class Lending:
    """`opening` ends in "because"; `reason` fits the person `who` and does not fit `other`."""

    opening: str
    who: str
    other: str
    reason: str

    @property
    def text(self) -> str:
        """The whole story."""
        return f"{self.opening} {self.who} {self.reason}."


@dataclass(frozen=True)
class Carrying:
    """Two or three things are carried to different towns, and one of them is asked for."""

    text: str
    question: str
    answer: str


def lending(island: Island, rng: random.Random, held_out: bool) -> Lending:
    """A lending story about a pair of people that is held out, or is not."""
    while True:
        giver, taker = rng.sample(island.people, 2)
        if ((giver, taker) in island.held_pairs) == held_out:
            break
    side = rng.randrange(2)
    who, other = ((giver, taker), (taker, giver))[side]
    opening = rng.choice(_LENDING).format(giver=giver, taker=taker, thing=rng.choice(island.things))
    return Lending(opening, who, other, rng.choice(_REASONS)[side])


def carrying(island: Island, rng: random.Random, held_out: bool) -> Carrying:
    """A carrying story that asks for a person and thing of a pair that is held out, or holds no such pair at all."""
    count = rng.choice((2, 2, 3))
    while True:
        people, things = rng.sample(island.people, count), rng.sample(island.things, count)
        asked = rng.randrange(count)
        held = [pair in island.held_pairs for pair in zip(people, things, strict=True)]
        if held[asked] if held_out else not any(held):
            break
    places = rng.sample(island.places, count)
    legs = zip(people, things, places, strict=True)
    told = [rng.choice(_CARRYING).format(person=who, thing=what, place=where) for who, what, where in legs]
    question = rng.choice(_QUESTIONS).format(person=people[asked], thing=things[asked])
    return Carrying(" ".join(told), question, places[asked])


def repeating(island: Island, rng: random.Random) -> tuple[str, str]:
    """A list of words and the same list as the answer: each word trains the look-up that stories need only once."""
    nouns = (*island.people, *island.places, *island.things, *words.PETS, *words.COLOURS, *words.ROOMS)
    listed = " ".join(rng.sample(nouns, rng.randint(4, 7)))
    return f"Repeat: {listed}", listed
