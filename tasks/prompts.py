"""Stage `prompts`: a few questions, answered by base and by SFT side by side, greedily, and judged.

Scores say how much a model knows; these show whether it answers at all. A wrong template, a lost mask or a
buffer that was not loaded leaves losses and token counts as they should be and answers that are gibberish.

Fills results.json (per prompt: both texts, whether they stopped, the judges' verdicts) and prompts.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from conf import prompt_sets
from tasks import tokenizer as tokenizers
from tasks import world
from tasks.answering import Answerer
from tasks.judges import judge
from tasks.stage import Stage

if TYPE_CHECKING:
    from conf.schema import Config
    from tasks.store.artifact import Artifact
    from tasks.store.workspace import Workspace

STAGE = Stage(
    name="prompts",
    version=1,
    reads=("prompts", "data.world", "compute.compute_dtype"),
    runtime=("compute",),
    inputs=("base", "sft", "tokenizer"),
    accelerator=True,
)

MODELS = ("base", "sft")


def run(config: Config, inputs: Mapping[str, Artifact], out: Workspace) -> dict[str, Any]:
    """Answer and judge all prompts; returns the share of judges that each model satisfies."""
    asked = gather(config)
    tokenizer = tokenizers.load(inputs["tokenizer"].path())
    entries = [{"id": p["id"], "prompt": last_words(p), "messages": p["messages"]} for p in asked]
    for name in MODELS:
        answerer = Answerer.of(inputs[name], tokenizer, config.compute)
        prompts = [answerer.prompt(p) for p in asked]
        answers = answerer.texts(prompts, max_new_tokens=config.prompts.max_new_tokens, between=out.stop.check)
        for entry, prompt, [(answer, tokens)] in zip(entries, asked, answers, strict=True):
            entry[name] = {
                "text": answer.text,
                "stopped": answer.stopped,
                "tokens": tokens,
                "judges": judge(prompt["judges"], last_words(prompt), answer),
            }
        out.progress(step=MODELS.index(name) + 1, total=len(MODELS), unit="models")
    shares = {name: passed_share(entries, name) for name in MODELS}
    results = {"prompts": entries, "passed": shares}
    (out.path / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (out.path / "prompts.md").write_text(to_markdown(entries), encoding="utf-8")
    return {"prompts": len(entries), **{f"{name}_judges_passed": share for name, share in shares.items()}}


def gather(config: Config) -> list[dict[str, Any]]:
    """The prompts of all sets in `prompts.sets`, each `id` led by the name of its set."""
    return [prompt | {"id": f"{name}/{prompt['id']}"} for name in config.prompts.sets for prompt in _read(name, config)]


def _read(name: str, config: Config) -> list[dict[str, Any]]:
    if name == prompt_sets.WORLD:
        return world.prompts(config.data.world, config.data.world.seed or 0)
    return prompt_sets.read(name)


def last_words(prompt: Mapping[str, Any]) -> str:
    """What the user said last."""
    return prompt["messages"][-1]["content"]


def passed_share(entries: Sequence[Mapping[str, Any]], name: str) -> float:
    """Share of all judges that the model satisfies."""
    verdicts = [verdict["passed"] for entry in entries for verdict in entry[name]["judges"]]
    return sum(verdicts) / len(verdicts) if verdicts else 1.0


def to_markdown(entries: Sequence[Mapping[str, Any]]) -> str:
    """A table of prompt, base and SFT; below each answer the judges that it fails."""

    def cell(text: str) -> str:
        return " ".join(text.replace("|", "\\|").split()) or "(nothing)"

    lines = ["| prompt | base | SFT |", "|---|---|---|"]
    for entry in entries:
        sides = []
        for name in MODELS:
            failed = [verdict["name"] for verdict in entry[name]["judges"] if not verdict["passed"]]
            sides.append(cell(entry[name]["text"]) + (f"<br>✗ {', '.join(failed)}" if failed else "<br>✓"))
        lines.append(f"| {cell(entry['prompt'])} | {' | '.join(sides)} |")
    return "\n".join(lines) + "\n"
