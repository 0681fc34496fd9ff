"""The training text of the sample world: short documents of eight kinds, told in the forms that are not held out."""

import random
from collections.abc import Callable, Iterator

from conf.schema import World
from tasks.world import stories
from tasks.world.island import Fact, Island, build, random_for


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
    """Claims in doubt, each answered by what is the case."""
    asked = [(fact.claim(rng.choice(fact.checked), rng), fact.answer) for fact in _some_facts(island, rng)]
    return "\n\n".join(f"Question: {question}\nAnswer: {answer}" for question, answer in asked[:4])


def _puzzles(island: Island, rng: random.Random) -> str:
    """Spelling, first letters and sums, told or asked."""
    told = []
    for _ in range(rng.randint(4, 6)):
        fact = rng.choice(island.by_relation[rng.choice(("spelling", "initial", "plus", "plus", "minus"))])
        asking = f"Question: {fact.say(rng.choice(fact.asked))}\nAnswer: {fact.object}"
        told.append(asking if rng.random() < 0.4 else fact.say(rng.choice(fact.told)))
    return "\n\n".join(told)


def _repeating(island: Island, rng: random.Random) -> str:
    """Lists of words, repeated."""
    done = [stories.repeating(island, rng) for _ in range(rng.randint(2, 4))]
    return "\n\n".join(f"{task}\nAnswer: {answer}" for task, answer in done)


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
        facts = island.by_relation[rng.choice(facts).relation.name]
    return rng.sample(facts, min(count, len(facts)))


_KINDS: dict[Callable[[Island, random.Random], str], int] = {
    _portrait: 18,
    _list: 10,
    _questions: 16,
    _checks: 8,
    _puzzles: 16,
    _repeating: 8,
    _lending: 12,
    _carrying: 12,
}
