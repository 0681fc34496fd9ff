"""The facts of one sample world, and which wording of each fact is kept for the evaluation.

A world is an island: people, places and things with properties and relations to each other, besides the spelling of
its words and sums of small numbers. Everything is a function of the sizes and the seed. Each fact holds out one
completion, one question and one check; the training text tells and asks that same fact in all other ways, and other
facts in this way. So a held-out question needs what a language model should do: connect a known wording with a known
fact that it has never seen together.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from conf.schema import World
from tasks.world import words
from tasks.world.forms import RELATIONS, Relation

MAX_TERM = 5  # of a sum: one digit, so that no sum can be read in another one, and few enough to be learnt by heart


@dataclass(frozen=True)
class Fact:
    """`subject` has `object` by `relation`; `pool` are the objects that it could have had."""

    relation: Relation
    subject: str  # a name or noun; of a sum "3 and 4"
    object: str
    pool: tuple[str, ...]
    held_completion: str  # forms that the training text never uses for this fact
    held_question: str
    held_check: str | None

    def say(self, form: str, obj: str | None = None) -> str:
        """The form filled in, with the true object or another one."""
        first, _, second = self.subject.partition(" and ")
        return form.format(s=self.subject, o=self.object if obj is None else obj, a=first, b=second)

    @property
    def answer(self) -> str:
        """The sentence that states this fact in a conversation."""
        return self.say(self.relation.statements[0])

    @cached_property
    def told(self) -> tuple[str, ...]:
        """Statements that the training text may use."""
        return tuple(form for form in self.relation.statements if form != self.held_completion)

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """Questions that the training text and conversations may use."""
        return tuple(form for form in self.relation.questions if form != self.held_question)

    @cached_property
    def checked(self) -> tuple[str, ...]:
        """Yes/no questions that the training text and conversations may use."""
        return tuple(form for form in self.relation.checks if form != self.held_check)

    def options(self, count: int, gold: int, rng: random.Random) -> list[str]:
        """`count` different objects, the true one at index `gold`."""
        wrong = rng.sample([obj for obj in self.pool if obj != self.object], count - 1)
        return [*wrong[:gold], self.object, *wrong[gold:]]

    def claim(self, form: str, rng: random.Random) -> str:
        """A yes/no question in this form, about the true object as often as about another one."""
        return self.say(form, self.object if rng.random() < 0.5 else self.wrong(rng))

    def wrong(self, rng: random.Random) -> str:
        """An object that this fact does not have."""
        return rng.choice([obj for obj in self.pool if obj != self.object])


@dataclass(frozen=True)
class Island:
    """One world: its names, its facts, and the pairs that only the evaluation puts together."""

    name: str
    people: tuple[str, ...]
    places: tuple[str, ...]
    things: tuple[str, ...]
    facts: tuple[Fact, ...]
    held_pairs: frozenset[tuple[str, str]]  # (person, person) of lending and (person, thing) of carrying stories

    def of(self, *relations: str) -> list[Fact]:
        """The facts of these relations, in their order in the world."""
        return [fact for fact in self.facts if fact.relation.name in relations]

    @cached_property
    def known(self) -> list[Fact]:
        """The facts about people, places and things, which only this world's texts can teach."""
        return [fact for fact in self.facts if fact.relation.kind in ("person", "place", "thing")]

    @cached_property
    def puzzles(self) -> list[Fact]:
        """Spelling, first letters and sums."""
        return [fact for fact in self.facts if fact.relation.kind in ("word", "sum")]

    @cached_property
    def by_subject(self) -> dict[str, list[Fact]]:
        """What is known of each person, place and thing."""
        return _grouped(self.known, lambda fact: fact.subject)

    @cached_property
    def by_relation(self) -> dict[str, list[Fact]]:
        """All facts, by the name of the relation."""
        return _grouped(self.facts, lambda fact: fact.relation.name)


def random_for(seed: int, purpose: str) -> random.Random:
    """A generator for one purpose. Seeded by a string, which Python maps to a state the same way in every process."""
    return random.Random(f"sample world {seed}: {purpose}")


def build(world: World, seed: int) -> Island:
    """The island of these sizes and this seed."""
    rng = random_for(seed, "facts")
    people = tuple(words.people_names(world.people, rng))
    places = tuple(words.place_names(world.places, rng))
    things = words.THINGS[: world.things]
    facts: list[Fact] = []

    def add(relation: str, subjects: Sequence[str], objects: Sequence[str], pool: Sequence[str]) -> None:
        for subject, obj in zip(subjects, objects, strict=True):
            facts.append(_hold_out(RELATIONS[relation], subject, obj, tuple(pool), rng))

    def deal(relation: str, subjects: Sequence[str], pool: Sequence[str]) -> None:
        add(relation, subjects, _dealt(pool, len(subjects), rng), pool)

    deal("home", people, places)
    deal("trade", people, words.TRADES)
    deal("pet", people, words.PETS)
    deal("colour", people, words.COLOURS)
    deal("food", people, words.FOODS)
    deal("instrument", people, words.INSTRUMENTS)
    add("friend", people, people[1:] + people[:1], people)  # a ring, so that nobody is their own friend
    deal("region", places, words.REGIONS)
    deal("product", places, words.PRODUCTS)
    deal("landmark", places, words.LANDMARKS)
    deal("mayor", places, people)
    deal("material", things, words.MATERIALS)
    deal("shade", things, words.COLOURS)
    deal("owner", things, people)
    deal("room", things, words.ROOMS)

    nouns = (*things, *words.PETS)
    letters = [words.spelled(noun) for noun in nouns]
    add("spelling", nouns, letters, letters)
    for nouns in (people, places, things):
        letters = [noun[0].upper() for noun in nouns]
        add("initial", nouns, letters, sorted(set(letters)))
    numbers = [str(number) for number in range(2 * MAX_TERM + 1)]
    pairs = [(a, b) for a in range(1, MAX_TERM + 1) for b in range(1, MAX_TERM + 1)]
    add("plus", [f"{a} and {b}" for a, b in pairs], [str(a + b) for a, b in pairs], numbers)
    pairs = [(a, b) for a, b in pairs if a >= b]
    add("minus", [f"{a} and {b}" for a, b in pairs], [str(a - b) for a, b in pairs], numbers)

    meetings = [(a, b) for a in people for b in (*people, *things) if a != b]
    return Island(
        name=words.island_name(rng),
        people=people,
        places=places,
        things=things,
        facts=tuple(facts),
        held_pairs=frozenset(rng.sample(meetings, len(meetings) // 5)),
    )


def _grouped(facts: Sequence[Fact], key: Callable[[Fact], str]) -> dict[str, list[Fact]]:
    groups: dict[str, list[Fact]] = {}
    for fact in facts:
        groups.setdefault(key(fact), []).append(fact)
    return groups


def _dealt(pool: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """`count` objects, each of the pool as often as any other (give or take one): a guess by frequency wins nothing."""
    rounds = [rng.sample(pool, len(pool)) for _ in range(-(-count // len(pool)))]
    dealt = [obj for deck in rounds for obj in deck][:count]
    rng.shuffle(dealt)
    return dealt


def _hold_out(relation: Relation, subject: str, obj: str, pool: tuple[str, ...], rng: random.Random) -> Fact:
    return Fact(
        relation=relation,
        subject=subject,
        object=obj,
        pool=pool,
        held_completion=rng.choice(relation.completions),
        held_question=rng.choice(relation.questions),
        held_check=rng.choice(relation.checks) if relation.checks else None,
    )
