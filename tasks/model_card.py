"""The model card of an export: what the model is, what it scored, and which artifacts it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from model.recipe import GPTConfig
from model.weights import flatten, nanochat_config

if TYPE_CHECKING:
    from tasks.store.artifact import Artifact

TEMPLATES = Path(__file__).parent / "templates"
SUITES = (("core", "core", "CORE"), ("chat", "chatcore", "ChatCORE"))  # role, field of results.json, name


@dataclass(frozen=True)
class Score:
    """One task's line."""

    name: str
    accuracy: float
    n: int  # examples
    interval: tuple[float, float] | None  # 95 %


@dataclass(frozen=True)
class Suite:
    """An evaluation: its average and its tasks."""

    name: str
    score: float | None  # None: not all of its tasks ran
    interval: tuple[float, float] | None
    tasks: list[Score]


@dataclass(frozen=True)
class Origin:
    """An artifact that the export was made from, directly or one step away."""

    role: str
    stage: str
    key: str
    version: int | str


@dataclass(frozen=True)
class Card:
    """Everything the template needs."""

    title: str
    recipe: str
    parameters: int
    shape: dict[str, Any]  # nanochat's model_config
    suites: list[Suite]
    training: dict[str, str]
    lineage: list[Origin]


def collect(title: str, params: Any, shape: GPTConfig, inputs: Mapping[str, Artifact]) -> Card:
    """Scores, counts and lineage from the artifacts that the export reads."""
    return Card(
        title=title,
        recipe=shape.recipe.name,
        parameters=sum(leaf.size for leaf in flatten(params).values()),
        shape=nanochat_config(shape),
        suites=[
            suite(name, json.loads(inputs[role].path("results.json").read_text(encoding="utf-8")), field)
            for role, field, name in SUITES
            if role in inputs
        ],
        training={name: figure(value) for name, value in inputs["model"].manifest.metrics.items()},
        lineage=lineage(inputs),
    )


def suite(name: str, results: Mapping[str, Any], field: str) -> Suite:
    """A suite from a results.json whose average is called `field`."""
    tasks = [
        Score(task, found["accuracy"], found["n"], _interval(found)) for task, found in sorted(results["tasks"].items())
    ]
    return Suite(name, results[field], _interval(results), tasks)


def lineage(inputs: Mapping[str, Artifact]) -> list[Origin]:
    """The inputs, each followed by what it was itself made from."""
    origins = []
    for role, artifact in inputs.items():
        made = artifact.manifest
        origins.append(Origin(role, made.stage, made.key, made.version))
        origins += [
            Origin(f"{role} ← {source_role}", source["stage"], source["key"], "")
            for source_role, source in made.inputs.items()
        ]
    return origins


def render(card: Card) -> str:
    """Markdown."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown, from numbers and names of our own
    )
    environment.filters["score"] = lambda value: "–" if value is None else f"{value:.4f}"
    return environment.get_template("model_card.md.j2").render(card=card)


def figure(value: Any) -> str:
    """A metric for people: thousands separated, six significant digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _interval(found: Mapping[str, Any]) -> tuple[float, float] | None:
    bounds = found.get("ci95")
    return (bounds[0], bounds[1]) if bounds else None
