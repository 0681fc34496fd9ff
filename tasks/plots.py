"""Curves of a training run as a PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

SIZE = (9.0, 3.4)  # inches
INK = {"loss": "#3566a8", "val": "#c2511f"}


def training_curves(histories: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """One panel a run: training loss (nats per token, left axis) and validation bits per byte (right axis) by step."""
    figure = Figure(figsize=SIZE, layout="constrained")
    for panel, (name, history) in zip(
        figure.subplots(1, len(histories), squeeze=False)[0], histories.items(), strict=True
    ):
        loss = [(row["step"], row["loss"]) for row in history if row.get("loss") is not None]
        val = [(row["step"], row["val_bpb"]) for row in history if row.get("val_bpb") is not None]
        panel.set_title(name)
        panel.set_xlabel("step")
        panel.set_ylabel("training loss (nats/token)", color=INK["loss"])
        panel.grid(alpha=0.25)
        if loss:
            panel.plot(*zip(*loss, strict=True), color=INK["loss"], linewidth=1)
        if val:
            right = panel.twinx()
            right.set_ylabel("validation bits per byte", color=INK["val"])
            right.plot(*zip(*val, strict=True), color=INK["val"], marker="o", markersize=3, linewidth=1)
    figure.savefig(path, dpi=130)
