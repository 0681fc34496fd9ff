"""What a run has recorded: one line a step in history.jsonl, and the samples it wrote.

Kept in memory and written whole, aside and renamed, when a checkpoint takes a copy of it and at the end. A resumed
run begins with the copy of its checkpoint, so no line is missing, doubled, or of a step that was lost.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

HISTORY = "history.jsonl"
SAMPLES = "samples.json"


class History:
    """Lines by step and samples by step, below one directory.

    A line holds step, tokens (trained on so far), loss (mean nats a target), lr_mult, grad_norm, tokens_per_s, mfu;
    at evaluated steps also val_bpb and val_loss. Line 0 is the model before its first step.
    """

    def __init__(self, directory: Path) -> None:
        """Continues from the files in `directory` if they are there."""
        self._directory = directory
        history, samples = directory / HISTORY, directory / SAMPLES
        lines = history.read_text().splitlines() if history.exists() else []
        self._lines: dict[int, dict[str, Any]] = {line["step"]: line for line in map(json.loads, lines)}
        self.samples: list[dict[str, Any]] = json.loads(samples.read_text()) if samples.exists() else []

    def add(self, step: int, **fields: Any) -> None:
        """Record fields of a step, beside those it has; floats with 9 digits, which a float32 survives."""
        line = self._lines.setdefault(step, {"step": step})
        line.update({name: _short(value) for name, value in fields.items() if value is not None})

    def add_samples(self, step: int, texts: list[dict[str, str]]) -> None:
        """Record what the model wrote after `step` steps."""
        self.samples.append({"step": step, "texts": texts})

    def get(self, step: int, field: str) -> Any:
        """A field of a step's line, or None."""
        return self._lines.get(step, {}).get(field)

    def sampled(self, step: int) -> bool:
        """Whether samples of this step are there."""
        return any(sample["step"] == step for sample in self.samples)

    def last(self, field: str) -> Any:
        """The newest value of a field, or None."""
        return next((self._lines[s][field] for s in sorted(self._lines, reverse=True) if field in self._lines[s]), None)

    def write(self) -> list[Path]:
        """Write both files and return their paths."""
        lines = "".join(json.dumps(self._lines[step]) + "\n" for step in sorted(self._lines))
        samples = json.dumps(self.samples, indent=1, ensure_ascii=False)
        return [_replace(self._directory / HISTORY, lines), _replace(self._directory / SAMPLES, samples)]


def _replace(path: Path, text: str) -> Path:
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
    return path


def _short(value: Any) -> Any:
    return float(f"{value:.9g}") if isinstance(value, float) else value
