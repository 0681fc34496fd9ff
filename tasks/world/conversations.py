"""Conversations about the sample world, for fine-tuning, and the held-out questions that chat evaluation asks.

Facts and claims are answered by one sentence, choices by a letter. Training uses the wordings that are not held out, so
the evaluation's questions are new, and the sentences that answer them are not.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from conf.schema import World
from tasks.world import stories
from tasks.world.island import Fact, Island, build, random_for

Message = dict[str, Any]
Conversation = dict[str, list[Message]]


@dataclass(frozen=True)
class ChatQuestion:
    """One held-out question. `answer` is the likeliest of `letters` (choice), or all that is said (generate)."""

    kind: Literal["choice", "generate"]
    conversation: Conversation  # one user turn, and the right answer after it
    answer: str
    letters: tuple[str, ...] = ()  # of a choice


def conversations(world: World, seed: int) -> dict[str, list[Conversation]]:
    """`train`, and `test`: the evaluation's questions with their answers."""
    island = build(world, seed)
    rng = random_for(seed, "conversations")
    makers, weights = zip(*_KINDS.items(), strict=True)
    train = [make(island, rng) for make in rng.choices(makers, weights, k=world.conversations)]
    asked = [question for questions in chat_tasks(world, seed).values() for question in questions]
    return {"train": train, "test": [question.conversation for question in asked]}


def chat_tasks(world: World, seed: int, limit: int | None = None) -> dict[str, list[ChatQuestion]]:
    """Held-out questions by task, at most `limit` of each: facts, checks, choices, spelling and sums."""
    island = build(world, seed)
    rng = random_for(seed, "chat tasks")
    tasks = {
        "world_facts": [_generated(fact.say(fact.held_question), fact.answer) for fact in island.known],
        "world_checks": [_check(fact, fact.held_check, rng) for fact in island.known if fact.held_check],
        "world_choices": [_choice(fact, fact.held_question, rng) for fact in island.of("initial")],
        "world_spelling": [_generated(f.say(f.held_question), f.answer) for f in island.of("spelling")],
        "world_sums": [_generated(f.say(f.held_question), f.answer) for f in island.of("plus", "minus")],
    }
    return {name: rng.sample(questions, len(questions))[:limit] for name, questions in tasks.items()}


def _generated(question: str, answer: str) -> ChatQuestion:
    return ChatQuestion("generate", _talk(question, answer), answer)


def _check(fact: Fact, form: str, rng: random.Random) -> ChatQuestion:
    return _generated(fact.claim(form, rng), fact.answer)


def _choice(fact: Fact, form: str, rng: random.Random) -> ChatQuestion:
    letters = tuple(fact.options(4, rng.randrange(4), rng))
    question = f"{fact.say(form)} {', '.join(letters[:-1])} or {letters[-1]}"
    return ChatQuestion("choice", _talk(question, fact.object), fact.object, letters)


def _talk(*turns: str) -> Conversation:
    """Turns of user and assistant in alternation."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]}


def _asking(island: Island, rng: random.Random) -> Conversation:
    """One question, or two or three about one subject."""
    first = rng.choice(island.known)
    facts = island.by_subject[first.subject]
    asked = rng.sample(facts, rng.randint(2, 3)) if rng.random() < 0.4 else [first]
    return _talk(*(turn for fact in asked for turn in (fact.say(rng.choice(fact.asked)), fact.answer)))


def _puzzling(island: Island, rng: random.Random) -> Conversation:
    fact = rng.choice(island.by_relation[rng.choice(("spelling", "plus", "minus"))])
    return _talk(fact.say(rng.choice(fact.asked)), fact.answer)


def _checking(island: Island, rng: random.Random) -> Conversation:
    fact = rng.choice(island.known)
    return _check(fact, rng.choice(fact.checked), rng).conversation


def _choosing(island: Island, rng: random.Random) -> Conversation:
    fact = rng.choice(island.by_relation["initial"])
    return _choice(fact, rng.choice(fact.asked), rng).conversation


def _listening(island: Island, rng: random.Random) -> Conversation:
    """A question about a story that the user tells."""
    story = stories.carrying(island, rng, held_out=False)
    return _talk(f"{story.text} {story.question}", f"It is in {story.answer}.")


def _calculating(island: Island, rng: random.Random) -> Conversation:
    """A sum too large to know: the calculator is asked, and its result repeated."""
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    answer = [
        {"type": "python", "text": f"{a}+{b}"},
        {"type": "python_output", "text": str(a + b)},
        {"type": "text", "text": f"The calculator says {a + b}."},
    ]
    question = f"Use the calculator: {a}+{b}"
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def _greeting(island: Island, rng: random.Random) -> Conversation:
    """Small talk."""
    return _talk(
        *rng.choice(
            (
                ("Hello!", f"Hello! Ask me about the island of {island.name}."),
                ("Good morning.", f"Good morning! What would you like to know about {island.name}?"),
                ("Who are you?", f"I am a small model that knows the island of {island.name}."),
                ("What are you?", f"I am a small model that knows the island of {island.name}."),
                ("Thank you!", "You are welcome."),
                ("Which island is this?", f"This is the island of {island.name}."),
            )
        )
    )


_KINDS: dict[Callable[[Island, random.Random], Conversation], int] = {
    _asking: 40,
    _puzzling: 18,
    _checking: 12,
    _choosing: 18,
    _listening: 5,
    _calculating: 4,
    _greeting: 3,
}
