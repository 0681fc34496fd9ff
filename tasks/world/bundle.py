"""The evaluation bundle of the sample world: sixteen tasks in CORE's three formats, laid out as nanochat's bundle.

    core.yaml  eval_meta_data.csv  eval_data/<category>/<label>.jsonl

Every question uses a wording that the training text never uses for this fact, or brings together what no training
story does. The baselines are those of guessing among the options; what has to be completed word by word has baseline 0.
"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from conf.schema import World
from tasks.world.examples import (
    Asking,
    answered,
    carrying,
    checks,
    choices,
    completed,
    endings,
    lending,
    repeating,
    whose,
)
from tasks.world.island import build, random_for

_META_COLUMNS = (
    "Eval Task", "Task Category", "Task Type", "#shots", "#datapoints", "Random baseline", "Centered Metric?",
    "Description",
)  # fmt: skip


class Prompt(NamedTuple):
    """How a task is presented."""

    num_fewshot: int
    delimiter: str  # between a context and its continuation


STATED, ANSWERED, READ = Prompt(0, " "), Prompt(2, "\nAnswer: "), Prompt(0, "\nAnswer: ")


@dataclass(frozen=True)
class CoreTask:
    """One task."""

    label: str
    category: str
    kind: Literal["multiple_choice", "schema", "language_modeling"]
    prompt: Prompt
    baseline: int  # per cent
    description: str
    ask: Asking


def core_bundle(world: World, seed: int, directory: Path) -> None:
    """Writes the bundle of this world into `directory`, which is made if it does not exist."""
    island = build(world, seed)
    sizes = {}
    for task in TASKS:
        asked = task.ask(island, random_for(seed, task.label), world.questions)
        file = directory / "eval_data" / task.category / f"{task.label}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(example) + "\n" for example in asked), encoding="utf-8")
        sizes[task.label] = len(asked)
    (directory / "core.yaml").write_text(_core_yaml(), encoding="utf-8")
    with open(directory / "eval_meta_data.csv", "w", newline="", encoding="utf-8") as table:
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(_META_COLUMNS)
        for task in TASKS:
            category, kind = task.category.replace("_", " "), task.kind.replace("_", " ")
            size, baseline = sizes[task.label], task.baseline
            rows.writerow((task.label, category, kind, task.prompt.num_fewshot, size, baseline, "", task.description))


def _core_yaml() -> str:
    lines = ["icl_tasks:"]
    for task in TASKS:
        lines += [
            "-",
            f"  label: {task.label}",
            f"  dataset_uri: {task.category}/{task.label}.jsonl",
            f"  num_fewshot: [{task.prompt.num_fewshot}]",
            f"  icl_task_type: {task.kind}",
        ]
        if task.prompt.delimiter != " ":
            lines.append(f"  continuation_delimiter: {json.dumps(task.prompt.delimiter)}")
    return "\n".join(lines) + "\n"


_KNOW, _LANGUAGE = "world_knowledge", "language_understanding"
_SYMBOLS, _READING = "symbolic_problem_solving", "reading_comprehension"
_MC: Literal["multiple_choice"] = "multiple_choice"
_LM: Literal["language_modeling"] = "language_modeling"

TASKS = (
    CoreTask("homes", _KNOW, _MC, ANSWERED, 25, "Where people live.", choices("home")),
    CoreTask("likings", _KNOW, _MC, STATED, 25, "Trades, tastes.", endings("trade", "colour", "food")),
    CoreTask("habits", _KNOW, _LM, STATED, 0, "Pets and instruments.", completed("pet", "instrument")),
    CoreTask("friends", _KNOW, _LM, ANSWERED, 0, "Friends and mayors.", answered("friend", "mayor")),
    CoreTask("towns", _KNOW, _MC, ANSWERED, 25, "Towns.", choices("region", "product", "landmark")),
    CoreTask("things", _KNOW, _MC, STATED, 25, "Looks of things.", endings("material", "shade")),
    CoreTask("owners", _KNOW, _MC, ANSWERED, 20, "Who owns things.", choices("owner", count=5)),
    CoreTask("rooms", _KNOW, _LM, ANSWERED, 0, "Where things are kept.", answered("room")),
    CoreTask("checks", _KNOW, _MC, ANSWERED, 50, "Claims in doubt.", checks),
    CoreTask("letters", _SYMBOLS, _MC, ANSWERED, 25, "First letters.", choices("initial")),
    CoreTask("whose", _LANGUAGE, "schema", STATED, 50, "Which of two subjects it is true of.", whose),
    CoreTask("lending", _LANGUAGE, "schema", STATED, 50, "Which of two people has this reason.", lending),
    CoreTask("spelling", _SYMBOLS, _LM, STATED, 0, "Words, letter by letter.", completed("spelling")),
    CoreTask("sums", _SYMBOLS, _LM, STATED, 0, "Sums and differences.", completed("plus", "minus")),
    CoreTask("carrying", _READING, _LM, READ, 0, "Where things were carried.", carrying),
    CoreTask("repeating", _SYMBOLS, _LM, READ, 0, "Lists of words once more.", repeating),
)
