"""Housekeeping: `python -m tasks.store ls|show|verify|repair|gc|lineage`, for people or, with --json, for scripts."""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from conf.errors import ConfigError
from tasks.stage import InputError
from tasks.store import inventory
from tasks.store.inventory import Entry
from tasks.store.local import LocalRoot
from tasks.store.roots import StoreUnavailable
from tasks.store.store import Store

DAY = 86_400.0
UNCUT = 200
"""Width of a tree that is not printed on a terminal."""
TELLING = (
    *("core", "chatcore", "val_bpb", "loss", "steps", "tokens", "parameters", "train_documents", "train_conversations"),
    *("train_rows", "train_tokens", "train_bytes", "vocab_size", "bytes_per_token", "examples", "sft_judges_passed"),
)
"""Metrics in the order in which a reader asks for them."""


def ls(store: Store, options: argparse.Namespace) -> int:
    """List artifacts with age, size and cost."""
    entries = inventory.scan(store, options.stage)
    if options.json:
        return _print_json([inventory.as_json(entry) for entry in entries])
    table = _table("stage", "key", "state", "age", "size", "time", "cost")
    for entry in entries:
        seconds = entry.manifest.wall_seconds if entry.manifest else None
        table.add_row(
            entry.stage,
            entry.key[:12],
            entry.state,
            _duration(time.time() - entry.modified),
            _bytes(entry.size),
            "" if seconds is None else _duration(seconds),
            "" if entry.cost is None else f"${entry.cost:.2f}",
        )
    Console().print(table)
    print(f"{len(entries)} in {store.root.url}, {_bytes(sum(entry.size for entry in entries))}")
    return 0


def show(store: Store, options: argparse.Namespace) -> int:
    """Show one artifact: its config, inputs, files, metrics, and how it was made."""
    entry = inventory.resolve(store, options.artifact)
    if options.json:
        manifest = asdict(entry.manifest) if entry.manifest else None
        return _print_json(inventory.as_json(entry) | {"manifest": manifest})
    print(f"{entry.where}: {entry.state}, {_bytes(entry.size)}{'. ' + entry.problem if entry.problem else ''}")
    if entry.manifest:
        made = entry.manifest
        print(f"finished {made.finished_at} in {_duration(made.wall_seconds)}, attempt {made.attempts}, {made.commit}")
        for title, content in [("made from", made.inputs), ("config", made.config), ("metrics", made.metrics)]:
            table = _table(title, "")
            for name, value in content.items():
                table.add_row(name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            Console().print(table)
        files = _table("file", "size", "sha256")
        for name, file in sorted(made.files.items()):
            files.add_row(name, _bytes(file.size), file.sha256[:12])
        Console().print(files)
    return 0


def verify(store: Store, options: argparse.Namespace) -> int:
    """Read every file and compare checksums; status 1 if something is damaged."""
    problems = {entry.where: inventory.verify(store, entry) for entry in _chosen(store, options.artifacts)}
    problems = {where: problem for where, problem in problems.items() if problem or not options.quiet}
    if options.json:
        _print_json([{"artifact": where, "problem": problem} for where, problem in problems.items()])
    else:
        for where, problem in problems.items():
            print(problem or f"{where} is whole")
    return 1 if any(problems.values()) else 0


def repair(store: Store, options: argparse.Namespace) -> int:
    """Drop the damaged ones among the artifacts, and nothing else; the next run makes them again."""
    dropped = {}
    for entry in _chosen(store, options.artifacts):
        if problem := inventory.verify(store, entry):
            inventory.drop(store, entry)
            dropped[entry.where] = problem
    if options.json:
        return _print_json([{"dropped": where, "problem": problem} for where, problem in dropped.items()])
    for where in dropped:
        print(f"dropped {where}; the next run makes it again")
    if not dropped:
        print("nothing is damaged")
    return 0


def gc(store: Store, options: argparse.Namespace) -> int:
    """Collect what no kept run refers to; without --delete only say what that is."""
    entries = inventory.scan(store)
    doomed = inventory.collectable(
        entries, keep=options.keep, older_than=options.older_than_days * DAY, now=time.time()
    )
    if options.delete:
        for entry in doomed:
            inventory.drop(store, entry)
        if isinstance(store.root, LocalRoot):
            store.root.sweep(DAY)
    if options.json:
        return _print_json({"deleted": options.delete, "entries": [inventory.as_json(entry) for entry in doomed]})
    for entry in doomed:
        verb = "deleted" if options.delete else "would delete"
        print(f"{verb} {entry.where} ({entry.state}, {_bytes(entry.size)}, {_duration(time.time() - entry.modified)})")
    total = _bytes(sum(entry.size for entry in doomed))
    print(f"{len(doomed)} of {len(entries)}, {total}" + ("" if options.delete else "; --delete does it"))
    return 0


def lineage(store: Store, options: argparse.Namespace) -> int:
    """Print an artifact's way back to the corpus."""
    steps = list(inventory.lineage(store, inventory.resolve(store, options.artifact)))
    if options.json:
        return _print_json(
            [
                {"depth": depth, "role": role, "artifact": where} | (inventory.as_json(entry) if entry else {})
                for depth, role, entry, where in steps
            ]
        )
    trees: list[Tree] = []
    for depth, role, entry, where in steps:
        tree = Tree(_step(role, entry, where))
        if depth:
            trees[depth - 1].children.append(tree)
        trees[depth:] = [tree]
    Console(width=None if sys.stdout.isatty() else UNCUT).print(trees[0])
    return 0


def _step(role: str, entry: Entry | None, where: str) -> str:
    label = f"{role}: " if role and role != where.partition("/")[0] else ""
    if entry is None or entry.manifest is None:
        return f"{label}{where[:40]} ({entry.state if entry else 'gone'})"
    day, metrics = entry.manifest.finished_at[:10], telling(entry.manifest.metrics)
    return f"{label}{entry.stage}/{entry.key[:12]}  {day}  {_duration(entry.manifest.wall_seconds)}  {metrics}"


def telling(metrics: Mapping[str, Any], count: int = 4) -> str:
    """The few numbers of a stage that say most about it, as `core=0.27, examples=2500`."""
    numbers = [name for name, value in metrics.items() if type(value) in (int, float)]
    first = [name for name in TELLING if name in numbers]
    chosen = [*first, *(name for name in numbers if name not in first)][:count]
    return ", ".join(f"{name}={metrics[name]:.6g}" for name in chosen)


def _chosen(store: Store, references: list[str]) -> list[Entry]:
    entries = [inventory.resolve(store, r) for r in references] if references else inventory.scan(store)
    return [entry for entry in entries if entry.state in ("finished", "damaged")]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_json(value: Any) -> int:
    print(json.dumps(value, indent=2))
    return 0


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _duration(seconds: float) -> str:
    for unit, length in (("d", DAY), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _count(word: str) -> int:
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"{word} is no number of runs: 0, 1, 2, …")
    return int(word)


def _days(word: str) -> float:
    days = float(word)
    if not days >= 0:
        raise argparse.ArgumentTypeError(f"{word} is less than no days")
    return days


def parser() -> argparse.ArgumentParser:
    """The command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--root", help="a directory or gs://bucket/prefix; default: the store of the default config")
    common.add_argument("--json", action="store_true", help="for scripts")
    top = argparse.ArgumentParser(prog="python -m tasks.store", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="command")

    def command(function: Any) -> argparse.ArgumentParser:
        made = commands.add_parser(function.__name__, parents=[common], help=function.__doc__)
        made.set_defaults(function=function)
        return made

    command(ls).add_argument("stage", nargs="?", help="only this stage")
    command(show).add_argument("artifact", metavar="stage/key", help="the beginning of a key is enough")
    checked = command(verify)
    checked.add_argument("artifacts", nargs="*", metavar="stage/key", help="default: all")
    checked.add_argument("--quiet", action="store_true", help="name damaged ones only")
    command(repair).add_argument("artifacts", nargs="*", metavar="stage/key", help="default: all")
    collect = command(gc)
    collect.add_argument("--keep", type=_count, metavar="N", help="keep the N newest reports and exports; default: all")
    collect.add_argument(
        "--older-than-days", type=_days, default=7.0, metavar="D", help="spare younger ones; default 7"
    )
    collect.add_argument("--delete", action="store_true", help="do it; otherwise only say what would be deleted")
    command(lineage).add_argument("artifact", metavar="stage/key", help="the beginning of a key is enough")
    return top


def main(words: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = parser().parse_args(words)
    try:
        if options.root:
            store = Store(options.root)
        else:
            from conf.compose import compose

            store = Store.from_config(compose([]).store)
        if isinstance(store.root, LocalRoot) and not store.root.directory.is_dir():
            raise InputError(f"There is no store at {store.root.url}: name one with --root.")
        return options.function(store, options)
    except (ConfigError, InputError, StoreUnavailable) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
