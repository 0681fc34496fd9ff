"""The training text of the sample world: short documents of eight kinds, told in the forms that are not held out."""

import random
from collections.abc import Callable, Iterator

from conf.schema import World
from tasks.world import stories
from tasks.world.island import Fact, Island, build, random_for
from tasks.world.questions import checked, quiz

_LETTERS = "ABCD"


def documents(world: World, seed: int) -> dict[str, Iterator[str]]:
    """`train` and `val`: `world.documents` and `world.val_documents` texts, made as they are asked for."""
    island = build(world, seed)
    return {
        "train": _written(island, random_for(seed, "train documents"), world.documents),
        "val": _written(island, random_for(seed, "val documents"), world.val_documents),
    }


def _written(island: Island, rng: random.Random, count: int) -> Iterator[str]:
    writers, weights = zip(*_KINDS.items(), strict=True)
    for _ in range(count):
        (write,) = rng.choices(writers, weights)
        yield write(island, rng)


def _portrait(island: Island, rng: random.Random) -> str:
    """Most of what is known of one subject, in running text."""
    known = island.by_subject[rng.choice(tuple(island.by_subject))]
    told = rng.sample(known, rng.randint(max(1, len(known) - 3), len(known)))
    return " ".join(fact.say(rng.choice(fact.told)) for fact in told)


def _list(island: Island, rng: random.Random) -> str:
    """Unconnected statements, a blank line between them."""
    return "\n\n".join(fact.say(rng.choice(fact.told)) for fact in _some_facts(island, rng))


def _questions(island: Island, rng: random.Random) -> str:
    """Questions with short answers."""
    facts = _some_facts(island, rng)
    return "\n\n".join(f"Question: {fact.say(rng.choice(fact.asked))}\nAnswer: {fact.object}" for fact in facts)


def _checks(island: Island, rng: random.Random) -> str:
    """Questions answered by what is known and yes or no."""
    asked = [checked(fact, rng.choice(fact.checked), rng) for fact in _some_facts(island, rng)[:3]]
    return "\n\n".join(f"Question: {question}\nAnswer: {verdict}" for question, verdict in asked)


def _quiz(island: Island, rng: random.Random) -> str:
    """Questions about lettered options, answered by the letter."""
    rounds = []
    for fact in rng.sample(island.known, 3):
        gold = rng.randrange(len(_LETTERS))
        options = fact.options(len(_LETTERS), gold, rng)
        question = f"Question: {fact.say(rng.choice(fact.asked))}"
        rounds.append(f"{quiz(question, options, _LETTERS)}\nAnswer: {_LETTERS[gold]}")
    return "\n\n".join(rounds)


def _puzzles(island: Island, rng: random.Random) -> str:
    """Spelling and sums, told or asked."""
    told = []
    for fact in rng.sample(island.puzzles, rng.randint(3, 5)):
        asking = f"Question: {fact.say(rng.choice(fact.asked))}\nAnswer: {fact.object}"
        told.append(asking if rng.random() < 0.4 else fact.say(rng.choice(fact.told)))
    return "\n\n".join(told)


def _lending(island: Island, rng: random.Random) -> str:
    """Stories of lending."""
    return "\n\n".join(stories.lending(island, rng, held_out=False).text for _ in range(rng.randint(2, 4)))


def _carrying(island: Island, rng: random.Random) -> str:
    """Stories of carrying, each with a question about it."""
    told = [stories.carrying(island, rng, held_out=False) for _ in range(rng.randint(1, 2))]
    return "\n\n".join(f"Story: {story.text}\nQuestion: {story.question}\nAnswer: {story.answer}" for story in told)


def _some_facts(island: Island, rng: random.Random) -> list[Fact]:
    """Three to six facts, half of the time of one relation, as in the few-shot prompts of an evaluation."""
    count = rng.randint(3, 6)
    facts = island.known
    if rng.random() < 0.5:
        facts = island.by_relation[rng.choice(tuple(island.by_relation))]
    return rng.sample(facts, min(count, len(facts)))


_KINDS: dict[Callable[[Island, random.Random], str], int] = {
    _portrait: 22,
    _list: 10,
    _questions: 14,
    _checks: 8,
    _quiz: 14,
    _puzzles: 14,
    _lending: 8,
    _carrying: 10,
}
