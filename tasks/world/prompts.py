"""Qualitative prompts about the sample world, with judges as data: the forms of `conf/prompts/*.yaml`."""

from typing import Any

from conf.schema import World
from tasks.world.island import Fact, build, random_for


def prompts(world: World, seed: int) -> list[dict[str, Any]]:
    """One prompt for each of a few things a fine-tuned model should manage; facts are asked in held-out words."""
    island = build(world, seed)
    rng = random_for(seed, "prompts")

    def some(*relations: str) -> Fact:
        return rng.choice(island.of(*relations))

    asked = {"home": some("home"), "pet": some("pet"), "thing": some("material", "shade"), "mayor": some("mayor")}
    sheet = [
        _prompt(name, [fact.say(fact.held_question)], {"judge": "contains", "any_of": [fact.object]})
        for name, fact in asked.items()
    ]
    word, total = some("spelling"), some("plus")
    trade, food = rng.sample(island.by_subject[rng.choice(island.people)], 2)
    return [
        *sheet,
        _prompt("spelling", [word.say(word.held_question)], {"judge": "spells", "word": word.subject}),
        _prompt("sum", [total.say(total.held_question)], {"judge": "contains", "any_of": [f" {total.object}."]}),
        _prompt(
            "second turn",
            [trade.say(trade.asked[0]), trade.answer, food.say(food.held_question)],
            {"judge": "contains", "any_of": [food.object]},
        ),
        _prompt("identity", ["Who are you?"], {"judge": "contains", "any_of": [island.name]}),
        _prompt("greeting", ["Hello!"], {"judge": "contains", "any_of": ["Hello", island.name]}),
    ]


def _prompt(name: str, turns: list[str], *judges: dict[str, Any]) -> dict[str, Any]:
    """A prompt of user and assistant in alternation; every answer is also judged for stopping and for not echoing."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    always = [{"judge": judge} for judge in ("not_empty", "stops", "no_echo", "no_repeat")]
    return {"id": name, "messages": messages, "judges": [*always, *judges]}
