"""The evaluation bundle of the sample world: sixteen tasks in CORE's three formats, laid out as nanochat's bundle.

    core.yaml  eval_meta_data.csv  eval_data/<category>/<label>.jsonl

Every question uses a wording that the training text never uses for this fact (or brings together what no training
story does). Random baselines are those of guessing: options come from one pool in which every object is as common as
any other, right ones stand at each place equally often, and questions to be completed word by word have baseline 0.
"""

import csv
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from conf.schema import World
from tasks.world import drills, stories
from tasks.world.island import Fact, Island, build, random_for

Example = dict[str, Any]
_ANSWER = "\nAnswer: "
_META_COLUMNS = (
    "Eval Task", "Task Category", "Task Type", "#shots", "#datapoints", "Random baseline", "Centered Metric?",
    "Description",
)  # fmt: skip


@dataclass(frozen=True)
class CoreTask:
    """One task. `ask` makes its examples, at most as many as it is told."""

    label: str
    category: str
    kind: Literal["multiple_choice", "schema", "language_modeling"]
    num_fewshot: int
    delimiter: str
    baseline: int  # per cent
    description: str
    ask: Callable[[Island, random.Random, int], list[Example]]


def core_bundle(world: World, seed: int, directory: Path) -> None:
    """Writes the bundle of this world into `directory`, which is made if it does not exist."""
    island = build(world, seed)
    sizes = {}
    for task in TASKS:
        examples = task.ask(island, random_for(seed, task.label), world.questions)
        file = directory / "eval_data" / task.category / f"{task.label}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(example) + "\n" for example in examples), encoding="utf-8")
        sizes[task.label] = len(examples)
    (directory / "core.yaml").write_text(_core_yaml(), encoding="utf-8")
    with open(directory / "eval_meta_data.csv", "w", newline="", encoding="utf-8") as table:
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(_META_COLUMNS)
        for task in TASKS:
            category, kind = task.category.replace("_", " "), task.kind.replace("_", " ")
            size, baseline = sizes[task.label], task.baseline
            rows.writerow((task.label, category, kind, task.num_fewshot, size, baseline, "", task.description))


def _core_yaml() -> str:
    lines = ["icl_tasks:"]
    for task in TASKS:
        lines += [
            "-",
            f"  label: {task.label}",
            f"  dataset_uri: {task.category}/{task.label}.jsonl",
            f"  num_fewshot: [{task.num_fewshot}]",
            f"  icl_task_type: {task.kind}",
        ]
        if task.delimiter != " ":
            lines.append(f"  continuation_delimiter: {json.dumps(task.delimiter)}")
    return "\n".join(lines) + "\n"


def _opening(fact: Fact) -> str:
    """The held-out statement up to its object."""
    return fact.say(fact.held_completion.removesuffix("{o}.")).rstrip()


def _choices(*relations: str, count: int = 4, complete: bool) -> Callable[[Island, random.Random, int], list[Example]]:
    """Statements to complete, or questions to answer, with `count` options."""

    def ask(island: Island, rng: random.Random, limit: int) -> list[Example]:
        examples = []
        for place, fact in enumerate(_in_turn(island.of(*relations), rng, limit)):
            options = fact.options(count, place % count, rng)
            query = _opening(fact) if complete else f"Question: {fact.say(fact.held_question)}"
            examples.append({"query": query, "choices": options, "gold": place % count})
        return examples

    return ask


def _checks(island: Island, rng: random.Random, limit: int) -> list[Example]:
    """Claims in doubt, half of them true, and two sentences of which one is the case."""
    examples = []
    for place, fact in enumerate(_in_turn(island.known, rng, limit)):
        assert fact.held_check is not None
        wrong = fact.wrong(rng)
        query = f"Question: {fact.say(fact.held_check, rng.choice((fact.object, wrong)))}"
        choices = [fact.say(fact.relation.statements[0], obj) for obj in (fact.object, wrong)]
        examples.append({"query": query, "choices": choices[:: 1 - 2 * (place % 2)], "gold": place % 2})
    return examples


def _completed(*relations: str) -> Callable[[Island, random.Random, int], list[Example]]:
    """Statements to complete word by word."""

    def ask(island: Island, rng: random.Random, limit: int) -> list[Example]:
        facts = _once(island.of(*relations), rng, limit)
        return [{"context": _opening(fact), "continuation": fact.object} for fact in facts]

    return ask


def _answered(*relations: str) -> Callable[[Island, random.Random, int], list[Example]]:
    """Questions to answer word by word."""

    def ask(island: Island, rng: random.Random, limit: int) -> list[Example]:
        facts = _once(island.of(*relations), rng, limit)
        return [{"context": f"Question: {fact.say(fact.held_question)}", "continuation": fact.object} for fact in facts]

    return ask


def _whose(island: Island, rng: random.Random, limit: int) -> list[Example]:
    """Two subjects in the same words; the object belongs to one of them."""
    examples = []
    for place, fact in enumerate(_in_turn(island.known, rng, limit)):
        others = [f for f in island.of(fact.relation.name) if f.object != fact.object]
        openings = [_opening(fact)]
        other = rng.choice(others)
        openings.insert(1 - place % 2, other.say(fact.held_completion.removesuffix("{o}.")).rstrip())
        examples.append({"context_options": openings, "continuation": fact.object, "gold": place % 2})
    return examples


def _lending(island: Island, rng: random.Random, limit: int) -> list[Example]:
    """Who "because" speaks of: the one who gives or the one who takes."""
    examples = []
    for place in range(limit):
        story = stories.lending(island, rng, held_out=True)
        options = [f"{story.opening} {story.who}", f"{story.opening} {story.other}"]
        if place % 2:
            options.reverse()
        examples.append({"context_options": options, "continuation": story.reason, "gold": place % 2})
    return examples


def _carrying(island: Island, rng: random.Random, limit: int) -> list[Example]:
    """Where the thing of a story is now."""
    told = [stories.carrying(island, rng, held_out=True) for _ in range(limit)]
    return [
        {"context": f"Story: {story.text}\nQuestion: {story.question}", "continuation": story.answer} for story in told
    ]


def _repeating(island: Island, rng: random.Random, limit: int) -> list[Example]:
    """A list of words once more."""
    lists = [drills.repeating(island, rng) for _ in range(limit)]
    return [{"context": task, "continuation": answer} for task, answer in lists]


def _once(facts: list[Fact], rng: random.Random, limit: int) -> list[Fact]:
    return rng.sample(facts, min(limit, len(facts)))


def _in_turn(facts: list[Fact], rng: random.Random, limit: int) -> list[Fact]:
    """`limit` facts; where there are fewer they come again, to be asked with other options."""
    rounds = [rng.sample(facts, len(facts)) for _ in range(-(-limit // len(facts)))]
    return [fact for deck in rounds for fact in deck][:limit]


_KNOW, _LANGUAGE = "world_knowledge", "language_understanding"
_SYMBOLS, _READING = "symbolic_problem_solving", "reading_comprehension"

TASKS = (
    CoreTask("homes", _KNOW, "multiple_choice", 2, _ANSWER, 25, "Where people live.", _choices("home", complete=False)),
    CoreTask(
        "likings",
        _KNOW,
        "multiple_choice",
        0,
        " ",
        25,
        "Trades and likings.",
        _choices("trade", "colour", "food", complete=True),
    ),
    CoreTask("habits", _KNOW, "language_modeling", 0, " ", 0, "Pets and instruments.", _completed("pet", "instrument")),
    CoreTask(
        "friends", _KNOW, "language_modeling", 2, _ANSWER, 0, "Who befriends or leads.", _answered("friend", "mayor")
    ),
    CoreTask(
        "towns",
        _KNOW,
        "multiple_choice",
        2,
        _ANSWER,
        25,
        "Towns.",
        _choices("region", "product", "landmark", complete=False),
    ),
    CoreTask(
        "things", _KNOW, "multiple_choice", 0, " ", 25, "Looks of things.", _choices("material", "shade", complete=True)
    ),
    CoreTask(
        "owners",
        _KNOW,
        "multiple_choice",
        2,
        _ANSWER,
        20,
        "Who owns things.",
        _choices("owner", count=5, complete=False),
    ),
    CoreTask("rooms", _KNOW, "language_modeling", 2, _ANSWER, 0, "Where things are kept.", _answered("room")),
    CoreTask("checks", _KNOW, "multiple_choice", 2, _ANSWER, 50, "Claims in doubt.", _checks),
    CoreTask(
        "letters", _SYMBOLS, "multiple_choice", 2, _ANSWER, 25, "First letters.", _choices("initial", complete=False)
    ),
    CoreTask("whose", _LANGUAGE, "schema", 0, " ", 50, "Which of two subjects has it.", _whose),
    CoreTask("lending", _LANGUAGE, "schema", 0, " ", 50, "Which of two people has this reason.", _lending),
    CoreTask("spelling", _SYMBOLS, "language_modeling", 0, " ", 0, "Words, letter by letter.", _completed("spelling")),
    CoreTask("sums", _SYMBOLS, "language_modeling", 0, " ", 0, "Sums and differences.", _completed("plus", "minus")),
    CoreTask("carrying", _READING, "language_modeling", 0, _ANSWER, 0, "Where things were carried.", _carrying),
    CoreTask("repeating", _SYMBOLS, "language_modeling", 0, _ANSWER, 0, "Lists of words once more.", _repeating),
)
