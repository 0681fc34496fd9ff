"""What the answers to the qualitative prompts say differently from those of an earlier run."""

from collections.abc import Mapping
from typing import Any


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What changed from one run's results.json to another's, prompt by prompt and model by model.

    Each change is `{"id", "model", "change", "before", "after", "broken", "mended"}`: `change` is new, gone
    or answer, `before` and `after` are the texts (None where there is none), `broken` and `mended` the
    judges whose verdict turned.
    """
    old, new = ({entry["id"]: entry for entry in results["prompts"]} for results in (before, after))
    changes = []
    for prompt in [*new, *(gone for gone in old if gone not in new)]:
        for name in ("base", "sft"):
            a, b = (side.get(prompt, {}).get(name) for side in (old, new))
            if a == b:
                continue
            was, now = ({v["name"]: v["passed"] for v in side["judges"]} if side else {} for side in (a, b))
            changes.append(
                {
                    "id": prompt,
                    "model": name,
                    "change": "answer" if a and b else "new" if b else "gone",
                    "before": a and a["text"],
                    "after": b and b["text"],
                    "broken": [judge for judge in was if was[judge] and now.get(judge) is False],
                    "mended": [judge for judge in now if now[judge] and was.get(judge) is False],
                }
            )
    return changes
