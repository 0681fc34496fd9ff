"""What the report shows, gathered from the artifacts of a run."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from conf.schema import Config
from tasks.prompt_changes import diff
from tasks.store import Artifact

REFERENCES = Path(__file__).parent.parent / "conf" / "references" / "core.yaml"


@dataclass(frozen=True)
class StageRow:
    """One line of the stage table."""

    label: str
    key: str
    how: str  # "run" or "reused" in the run that wrote this report
    wall_seconds: float  # of the attempt that finished the artifact
    attempts: int
    size: int  # bytes
    dollars: float  # wall time at the price of all chips


@dataclass(frozen=True)
class Page:
    """Everything the two templates need."""

    title: str
    name: str
    headline: Mapping[str, Any]
    stages: list[StageRow]
    cost: float
    price: str
    facts: Mapping[str, Mapping[str, Any]]
    histories: Mapping[str, list[dict[str, Any]]]
    core: list[dict[str, Any]]
    references: list[str]
    chat: list[dict[str, Any]]
    prompts: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    previous: str | None = None  # key of the prompts that `changes` compares with; None for a first run
    changes: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def collect(config: Config, inputs: Mapping[str, Artifact], run_info: Mapping[str, Any]) -> Page:
    """Read results, metrics and manifests of all inputs."""
    results = {
        role: load(inputs[role], "results.json")
        for role in ("core_base", "core_sft", "chat_base", "chat_sft", "prompts")
    }
    histories = {role: lines(inputs[role], "history.jsonl") for role in ("base", "sft")}
    stages = [stage_row(role, artifact, config, run_info) for role, artifact in inputs.items()]
    references = comparable(reference_columns(), results["core_base"]["tasks"])
    return Page(
        title=config.report.title,
        name=config.name,
        headline=headline(inputs, results, histories),
        stages=stages,
        cost=sum(row.dollars for row in stages),
        price=price_line(config),
        facts={role: scalars(inputs[role].manifest.metrics) for role in inputs if role in FACTS},
        histories=histories,
        core=core_rows(results["core_base"], results["core_sft"], references),
        references=list(references),
        chat=chat_rows(results["chat_base"], results["chat_sft"]),
        prompts=results["prompts"]["prompts"],
        samples=[
            {"step": entry["step"], **text} for entry in load(inputs["base"], "samples.json") for text in entry["texts"]
        ],
        notes=notes(config, inputs, run_info),
        **changes(results["prompts"], run_info.get("previous_prompts")),
    )


FACTS = ("corpus", "tokenizer", "shards", "base", "conversations", "sft")
"""Stages whose metrics the report lists one by one."""


def headline(
    inputs: Mapping[str, Artifact], results: Mapping[str, Any], histories: Mapping[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """The numbers of the first screen."""
    bpb = [row["val_bpb"] for row in histories["base"] if row.get("val_bpb") is not None]
    return {
        "CORE, base": results["core_base"]["core"],
        "CORE, SFT": results["core_sft"]["core"],
        "ChatCORE, base": results["chat_base"]["chatcore"],
        "ChatCORE, SFT": results["chat_sft"]["chatcore"],
        "answers right, base": answered_right(results["chat_base"]),
        "answers right, SFT": answered_right(results["chat_sft"]),
        "first val bpb": bpb[0] if bpb else None,
        "last val bpb": bpb[-1] if bpb else None,
    }


def answered_right(chat: Mapping[str, Any]) -> float | None:
    """Share of all questions in chat form that were answered right, over all tasks."""
    asked = sum(task["n"] for task in chat["tasks"].values())
    return sum(task["accuracy"] * task["n"] for task in chat["tasks"].values()) / asked if asked else None


def stage_row(role: str, artifact: Artifact, config: Config, run_info: Mapping[str, Any]) -> StageRow:
    """Time, attempts and cost of one artifact, and whether the present run made it."""
    manifest, hardware = artifact.manifest, config.hardware
    price = hardware.spot_price if config.report.spot else hardware.on_demand_price
    return StageRow(
        label=role,
        key=artifact.key[:12],
        how=run_info.get("stages", {}).get(role, "run"),
        wall_seconds=manifest.wall_seconds,
        attempts=manifest.attempts,
        size=manifest.size,
        dollars=manifest.wall_seconds / 3600 * price * hardware.chips,
    )


def price_line(config: Config) -> str:
    """What the dollars in the stage table are made from."""
    hardware = config.hardware
    kind, price = ("spot", hardware.spot_price) if config.report.spot else ("on demand", hardware.on_demand_price)
    return (
        f"{hardware.name}: {hardware.chips} × US$ {price:.2f} per chip-hour, {kind}, price of {hardware.price_date}; "
        "wall time of the attempts that finished"
    )


def core_rows(
    base: Mapping[str, Any], sft: Mapping[str, Any], references: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """One row a task, and CORE last: accuracy, centred score with its interval, reference models."""
    rows = []
    for task, before in base["tasks"].items():
        rows.append(
            {
                "task": task,
                "base": before,
                "sft": sft["tasks"].get(task, {}),
                "references": [column.get(task) for column in references.values()],
            }
        )
    rows.append(
        {
            "task": "CORE",
            "base": {"centered": base["core"], "ci95": base["ci95"]},
            "sft": {"centered": sft["core"], "ci95": sft["ci95"]},
            "references": [column.get("core") for column in references.values()],
        }
    )
    return rows


def chat_rows(base: Mapping[str, Any], sft: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a chat task: base beside SFT, in chat form."""
    return [{"task": task, "base": base["tasks"].get(task, {}), "sft": after} for task, after in sft["tasks"].items()]


def changes(prompts: Mapping[str, Any], previous: Mapping[str, str] | None) -> dict[str, Any]:
    """The answers that differ from those of the previous run: `previous` has its key and the path of its results."""
    if not previous:
        return {}
    before = json.loads(Path(previous["results"]).read_text(encoding="utf-8"))
    return {"previous": previous["key"][:12], "changes": diff(before, prompts)}


def comparable(columns: Mapping[str, Mapping[str, float]], tasks: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The published scores of tasks that the run has; the mean `core` only beside a mean over the same tasks."""
    shown = {
        model: {task: score for task, score in scores.items() if task in tasks or (task == "core" and same)}
        for model, scores in columns.items()
        for same in [scores.keys() - {"core"} == tasks.keys()]
    }
    return {model: scores for model, scores in shown.items() if scores}


def reference_columns() -> dict[str, dict[str, float]]:
    """Published centred scores by model: `{"gpt2-xl": {"core": 0.2565, "hellaswag": …}}`."""
    return yaml.safe_load(REFERENCES.read_text(encoding="utf-8"))["models"] if REFERENCES.exists() else {}


def notes(config: Config, inputs: Mapping[str, Artifact], run_info: Mapping[str, Any]) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = list(run_info.get("notes", []))
    for role in ("core_base", "core_sft"):
        found += length_notes(role, load(inputs[role], "results.json")["tasks"].values())
    return found


def length_notes(role: str, tasks: Iterable[Mapping[str, Any]]) -> list[str]:
    """How many prompts of an evaluation did not fit into the model's context, and what became of them."""
    counts = Counter[str]()
    for task in tasks:
        counts.update({name: task.get(name, 0) for name in ("n", "truncated", "over_context")})
    fates = {
        "cut on the left": counts["truncated"],
        "scored whole, past what it was trained on": counts["over_context"] - counts["truncated"],
    }
    return [
        f"{role}: {number:,} of {counts['n']:,} prompts were longer than the model's context and {fate}."
        for fate, number in fates.items()
        if number > 0
    ]


def scalars(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and short texts among a stage's metrics."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float | str | None)}


def load(artifact: Artifact, name: str) -> Any:
    """A JSON file of an artifact."""
    return json.loads(artifact.path(name).read_text(encoding="utf-8"))


def lines(artifact: Artifact, name: str) -> list[dict[str, Any]]:
    """A JSON-lines file of an artifact."""
    return [json.loads(line) for line in artifact.path(name).read_text(encoding="utf-8").splitlines() if line]
