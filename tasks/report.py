"""The report of a run: what it scored, what it cost, what the model says; one HTML file and the same as Markdown.

Inputs are the artifacts of the cycle; nothing is computed here that a stage has not measured. `python -m tasks.report
compare A B` compares two runs' CORE results by paired bootstrap (`tasks.compare`).
"""

import base64
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from conf.schema import Config
from tasks.plots import training_curves
from tasks.report_data import Page, collect
from tasks.stage import Stage
from tasks.store import Artifact, Workspace

STAGE = Stage(
    name="report",
    version=1,
    reads=("name", "report", "hardware"),
    inputs=(
        "corpus",
        "tokenizer",
        "shards",
        "base",
        "conversations",
        "sft",
        "core_base",
        "core_sft",
        "chat_base",
        "chat_sft",
        "prompts",
    ),
)

TEMPLATES = Path(__file__).parent / "templates"


def run(config: Config, inputs: Mapping[str, Artifact], out: Workspace) -> dict[str, Any]:
    """Writes report.html (self-contained), report.md and curves.png; the metrics repeat the headline numbers."""
    page = collect(config, inputs, out.run_info)
    curves = out.path / "curves.png"
    training_curves({name: page.histories[name] for name in ("base", "sft")}, curves)
    write(page, curves, out.path)
    return {"headline": dict(page.headline), "cost": page.cost}


def write(page: Page, curves: Path, directory: Path) -> None:
    """Render both forms of `page` into `directory`; the HTML carries the picture inside."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "duration": duration, "cell": markdown_cell}
    picture = "data:image/png;base64," + base64.b64encode(curves.read_bytes()).decode()
    for name, image in (("report.html", picture), ("report.md", curves.name)):
        text = environment.get_template(f"{name}.j2").render(page=page, curves=image)
        (directory / name).write_text(text, encoding="utf-8")


def number(value: Any) -> str:
    """Four significant digits, thousands separated; an en dash where there is no value."""
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """`95.2` → `1 min 35 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def markdown_cell(text: str) -> str:
    """Text as it may stand inside a cell of a Markdown table."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return " ".join(escaped.split()) or "(nothing)"


if __name__ == "__main__":
    from tasks.compare import main

    if sys.argv[1:2] != ["compare"]:
        sys.exit("Usage: python -m tasks.report compare A B")
    sys.exit(main(sys.argv[2:]))
