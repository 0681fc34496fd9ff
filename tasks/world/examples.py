"""Examples of the evaluation's tasks, made from held-out wordings and held-out meetings.

Guessing gains nothing: the options of a question come from a pool in which every object is as common as any other, and
right ones stand at each place equally often. `limit` is how many examples a task may have.
"""

import random
from collections.abc import Callable
from typing import Any

from tasks.world import stories
from tasks.world.island import Fact, Island

Example = dict[str, Any]  # with the keys of its format in nanochat's bundle
Asking = Callable[[Island, random.Random, int], list[Example]]


def endings(*relations: str) -> Asking:
    """Statements to complete by one of four options."""
    return _with_options(relations, 4, _opening)


def choices(*relations: str, count: int = 4) -> Asking:
    """Questions to answer by one of `count` options."""
    return _with_options(relations, count, _question)


def checks(island: Island, rng: random.Random, limit: int) -> list[Example]:
    """Claims in doubt, half of them true, and two sentences of which one is the case."""
    examples = []
    for place, fact in enumerate(_in_turn(island.known, rng, limit)):
        assert fact.held_check is not None
        wrong = fact.wrong(rng)
        query = f"Question: {fact.say(fact.held_check, rng.choice((fact.object, wrong)))}"
        choices = [fact.say(fact.relation.statements[0], obj) for obj in (fact.object, wrong)]
        examples.append({"query": query, "choices": _placed(choices, place), "gold": place % 2})
    return examples


def completed(*relations: str) -> Asking:
    """Statements to complete word by word."""

    def ask(island: Island, rng: random.Random, limit: int) -> list[Example]:
        facts = _once(island.of(*relations), rng, limit)
        return [{"context": _opening(fact), "continuation": fact.object} for fact in facts]

    return ask


def answered(*relations: str) -> Asking:
    """Questions to answer word by word."""

    def ask(island: Island, rng: random.Random, limit: int) -> list[Example]:
        facts = _once(island.of(*relations), rng, limit)
        return [{"context": _question(fact), "continuation": fact.object} for fact in facts]

    return ask


def whose(island: Island, rng: random.Random, limit: int) -> list[Example]:
    """Two subjects in the same words; the object belongs to one of them."""
    examples = []
    for place, fact in enumerate(_in_turn(island.known, rng, limit)):
        other = rng.choice([f for f in island.by_relation[fact.relation.name] if f.object != fact.object])
        options = [_opening(fact), other.say(_cut(fact.held_completion))]
        examples.append({"context_options": _placed(options, place), "continuation": fact.object, "gold": place % 2})
    return examples


def lending(island: Island, rng: random.Random, limit: int) -> list[Example]:
    """Who "because" speaks of: the one who gives or the one who takes."""
    examples = []
    for place in range(limit):
        story = stories.lending(island, rng, held_out=True)
        options = [f"{story.opening} {who}" for who in (story.who, story.other)]
        examples.append({"context_options": _placed(options, place), "continuation": story.reason, "gold": place % 2})
    return examples


def carrying(island: Island, rng: random.Random, limit: int) -> list[Example]:
    """Where the thing of a story is now."""
    told = [stories.carrying(island, rng, held_out=True) for _ in range(limit)]
    return [{"context": f"Story: {s.text}\nQuestion: {s.question}", "continuation": s.answer} for s in told]


def repeating(island: Island, rng: random.Random, limit: int) -> list[Example]:
    """A list of words once more."""
    lists = [stories.repeating(island, rng) for _ in range(limit)]
    return [{"context": task, "continuation": answer} for task, answer in lists]


def _with_options(relations: tuple[str, ...], count: int, query: Callable[[Fact], str]) -> Asking:
    def ask(island: Island, rng: random.Random, limit: int) -> list[Example]:
        examples = []
        for place, fact in enumerate(_in_turn(island.of(*relations), rng, limit)):
            gold = place % count
            examples.append({"query": query(fact), "choices": fact.options(count, gold, rng), "gold": gold})
        return examples

    return ask


def _once(facts: list[Fact], rng: random.Random, limit: int) -> list[Fact]:
    return rng.sample(facts, min(limit, len(facts)))


def _in_turn(facts: list[Fact], rng: random.Random, limit: int) -> list[Fact]:
    """`limit` facts; where there are fewer they come again, to be asked with other options."""
    rounds = [rng.sample(facts, len(facts)) for _ in range(-(-limit // len(facts)))]
    return [fact for deck in rounds for fact in deck][:limit]


def _placed(options: list[str], place: int) -> list[str]:
    """Two options of which the first is right, so that the right one is number `place % 2`."""
    return options[::-1] if place % 2 else options


def _question(fact: Fact) -> str:
    return f"Question: {fact.say(fact.held_question)}"


def _opening(fact: Fact) -> str:
    """The held-out statement up to its object."""
    return fact.say(_cut(fact.held_completion))


def _cut(form: str) -> str:
    return form.removesuffix("{o}.").rstrip()
