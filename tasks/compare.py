"""Two CORE results side by side: which differences are more than luck with the examples.

    python -m tasks.report compare A B [--store runs] [--samples 10000] [--json]

A and B are artifacts of the stage `core`: a directory, `core/<key>` or the beginning of a key in the store. Examples
are paired, since two models that stumble over the same hard ones differ less than their intervals suggest. A task
counts only if both runs read the same file, byte for byte.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tasks.evaluation import records
from tasks.stage import InputError
from tasks.statistics import Difference, Outcome, compare_core, compare_task
from tasks.store import Store
from tasks.store.manifest import NAME as MANIFEST
from tasks.store.manifest import Damaged

KEY_CHARACTERS = 12  # of a key, as the report shows it
FILE_WIDTH = 120  # columns of the table where it goes into a file or a pipe


@dataclass(frozen=True)
class Run:
    """The CORE results of one side."""

    name: str
    results: dict[str, Any]
    file: Callable[[str], Path]  # a name in the artifact → a local file

    def outcome(self, label: str) -> Outcome:
        """The verdicts of a task, from its records."""
        return records.outcome(
            records.read(self.file(records.file_name(label))), self.results["tasks"][label]["baseline"]
        )


@dataclass(frozen=True)
class Comparison:
    """B minus A by task and for CORE over `tasks`; what could not be compared, and why."""

    tasks: dict[str, Difference]
    core: Difference
    left_out: dict[str, str]
    notes: list[str]


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status: 0, or 2 with a sentence on stderr."""
    parser = argparse.ArgumentParser(prog="python -m tasks.report compare", description="Compare two CORE results.")
    parser.add_argument("a", metavar="A", help="directory, core/<key> or beginning of a key")
    parser.add_argument("b", metavar="B", help="what is compared with A: differences are B − A")
    parser.add_argument("--store", default="runs", help="root of the store: a directory or gs://bucket/prefix")
    parser.add_argument("--samples", type=int, default=10_000, help="bootstrap samples")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    try:
        sides = [open_run(text, arguments.store) for text in (arguments.a, arguments.b)]
        comparison = compare(sides[0], sides[1], arguments.samples)
    except (InputError, Damaged) as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(to_json(comparison), indent=1))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = FILE_WIDTH
        show(comparison, sides[0].name, sides[1].name, console)
    return 0


def open_run(text: str, store: str) -> Run:
    """A CORE result by directory or key; InputError if there is none or more than one."""
    folder = Path(text).expanduser()
    file: Callable[[str], Path]
    if (folder / MANIFEST).is_file():  # a file's stored name may be another than its name
        artifact = Store(folder.absolute().parents[1]).artifact(folder.absolute().parent.name, folder.absolute().name)
        name, file = text, artifact.path
    elif (folder / "results.json").is_file():
        name, file = text, folder.joinpath
    else:
        opened, prefix = Store(store), text.removeprefix("core/")
        keys = [key for key in opened.keys("core") if key.startswith(prefix)]
        if len(keys) != 1:
            found = "no" if not keys else f"{len(keys)}"
            raise InputError(
                f"'{text}': {store} holds {found} CORE results of that key; `python -m tasks.store ls` lists them."
            )
        artifact = opened.artifact("core", keys[0])
        name, file = artifact.key[:KEY_CHARACTERS], artifact.path
    try:
        results = json.loads(file("results.json").read_text(encoding="utf-8"))
    except KeyError:  # an artifact of another stage
        results = {}
    if "core" not in results:
        raise InputError(f"'{text}' is not a CORE result: give an artifact of the stage core.")
    return Run(name, results, file)


def compare(a: Run, b: Run, samples: int) -> Comparison:
    """Paired bootstrap over the tasks that both runs have; InputError if there are none."""
    mine, theirs = a.results["tasks"], b.results["tasks"]
    left_out = {label: "only in A" for label in mine if label not in theirs}
    left_out |= {label: "only in B" for label in theirs if label not in mine}
    for label in mine:
        if label in theirs and mine[label]["sha256"] != theirs[label]["sha256"]:
            left_out[label] = "different data files"
    shared = [label for label in mine if label not in left_out]
    if not shared:
        raise InputError(f"{a.name} and {b.name} have no task in common: compare runs on the same bundle.")
    outcomes = [{label: run.outcome(label) for label in shared} for run in (a, b)]
    return Comparison(
        tasks={label: compare_task(outcomes[0][label], outcomes[1][label], samples, label) for label in shared},
        core=compare_core(outcomes[0], outcomes[1], samples),
        left_out=left_out,
        notes=[
            f"{name} differs: {a.results.get(name)} in A, {b.results.get(name)} in B"
            for name in ("truncation", "context", "max_per_task")
            if a.results.get(name) != b.results.get(name)
        ],
    )


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Plain data, for scripts."""

    def plain(difference: Difference) -> dict[str, Any]:
        return asdict(difference) | {"difference": difference.difference}

    return {
        "core": plain(comparison.core),
        "tasks": {label: plain(difference) for label, difference in comparison.tasks.items()},
        "left_out": comparison.left_out,
        "notes": comparison.notes,
    }


def show(comparison: Comparison, a: str, b: str, console: Console) -> None:
    """A table: accuracy by task, CORE last; differences whose interval leaves out 0 are bold."""
    table = Table(title=f"A = {a}, B = {b}")
    table.add_column("task", no_wrap=True, min_width=max(map(len, comparison.tasks)))
    for heading in ("n", "A", "B", "B − A", "95 % interval", "p"):
        table.add_column(heading, justify="right")
    for label, d in comparison.tasks.items():
        table.add_row(*_cells(label, d))
    table.add_section()
    table.add_row(*_cells("CORE (centred)", comparison.core))
    console.print(table)
    for label, reason in comparison.left_out.items():
        console.print(f"left out: {label} ({reason})", highlight=False)
    for note in comparison.notes:
        console.print(note, highlight=False)


def _cells(label: str, d: Difference) -> list[str]:
    low, high = d.ci95
    change = f"{d.difference:+.4f}"
    sure = low > 0 or high < 0
    return [
        label,
        f"{d.n:,}",
        f"{d.a:.4f}",
        f"{d.b:.4f}",
        f"[bold]{change}[/bold]" if sure else change,
        f"{low:+.4f} to {high:+.4f}",
        f"{d.p_value:.3f}",
    ]
