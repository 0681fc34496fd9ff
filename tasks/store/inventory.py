"""What lies in a store: finished, damaged and unfinished keys, what refers to what, and what nothing refers to."""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tasks.stage import InputError
from tasks.store import manifest as manifests
from tasks.store.gather import parallel
from tasks.store.lease import holder_inputs, is_leased
from tasks.store.manifest import Damaged, Manifest
from tasks.store.roots import Found
from tasks.store.store import Store

RUN_ENDS = ("report", "export")
"""Stages whose artifacts stand for a run: what they are made from is referred to."""
PLACE = re.compile(r"[a-z][a-z_]*/[0-9a-f]{64}")
"""stage/key: what else lies below a root is not ours, and never touched."""
SILENCE_SECONDS = 3600.0
"""A lease that was not renewed for so long, by the root's clock, protects nothing from collection any more."""


@dataclass(frozen=True)
class Entry:
    """One key of a store."""

    stage: str
    key: str
    state: str  # "finished", "damaged", "at work" or "unfinished"
    size: int  # bytes of everything below it
    modified: float  # seconds since the epoch, of its newest object
    manifest: Manifest | None = None
    problem: str = ""
    inputs: tuple[str, ...] = field(default=())  # stage/key of what it is or will be made from

    @property
    def where(self) -> str:
        """`stage/key`."""
        return f"{self.stage}/{self.key}"

    @property
    def cost(self) -> float | None:
        """US$ at the spot price of the hardware it was made on; None if that is unknown."""
        price = self.manifest.device.get("spot_price") if self.manifest else None
        if price is None or self.manifest is None:
            return None
        return self.manifest.wall_seconds / 3600 * self.manifest.device.get("chips", 1) * price


def scan(store: Store, stage: str | None = None) -> list[Entry]:
    """Every key of the store, or of one stage, oldest first. One listing, and one read for each manifest."""
    keys: dict[str, dict[str, Found]] = {}
    for path, found in store.root.find(stage or "").items():
        folder, _, rest = (f"{stage}/{path}" if stage else path).partition("/")
        key, _, name = rest.partition("/")
        if name and PLACE.fullmatch(where := f"{folder}/{key}"):
            keys.setdefault(where, {})[name] = found
    entries = parallel(lambda where: _entry(store, where, keys[where]), list(keys))
    return sorted(entries, key=lambda entry: entry.modified)


def _entry(store: Store, where: str, found: Mapping[str, Found]) -> Entry:
    stage, key = where.split("/")
    size, modified = sum(f.size for f in found.values()), max(f.modified for f in found.values())
    leases = any(path.startswith("leases/") for path in found)
    leased = leases and is_leased(store.root, where, max_age=SILENCE_SECONDS)
    try:
        manifest = store.manifest(stage, key)
        if manifest:
            manifests.check_present(manifest, {path: f.size for path, f in found.items()})
    except Damaged as error:
        return Entry(stage, key, "at work" if leased else "damaged", size, modified, None, str(error))
    if manifest is None:
        inputs = tuple(holder_inputs(store.root, where)) if leases else ()
        return Entry(stage, key, "at work" if leased else "unfinished", size, modified, inputs=inputs)
    inputs = tuple(f"{made['stage']}/{made['key']}" for made in manifest.inputs.values())
    return Entry(stage, key, "finished", size, modified, manifest, inputs=inputs)


def resolve(store: Store, reference: str) -> Entry:
    """The entry that `stage/beginning-of-key` means; InputError if there is none or more than one."""
    stage, _, beginning = reference.partition("/")
    keys = [k for k in store.keys(stage) if k.startswith(beginning) and PLACE.fullmatch(f"{stage}/{k}")]
    if len(keys) > 1:
        raise InputError(f"{reference} is the beginning of {len(keys)} keys in {store.root.url}: give more of it.")
    found = store.root.find(f"{stage}/{keys[0]}") if keys else {}
    if not found:
        raise InputError(f"{store.root.url} has no {reference}: 'python -m tasks.store ls' lists what there is.")
    return _entry(store, f"{stage}/{keys[0]}", found)


def verify(store: Store, entry: Entry) -> str:
    """Read every file of a finished entry; the sentence on what is damaged, or an empty one."""
    if entry.manifest is None:
        return entry.problem
    try:
        store.artifact(entry.stage, entry.key).verify()
    except InputError as error:
        return str(error)
    return ""


def drop(store: Store, entry: Entry) -> None:
    """Delete everything of a key, the manifest first, so that half of an artifact never counts."""
    if is_leased(store.root, entry.where, max_age=SILENCE_SECONDS):
        raise InputError(f"{entry.where} is being made right now: stop that run first.")
    store.root.delete([f"{entry.where}/{manifests.NAME}"])
    store.root.delete([f"{entry.where}/{path}" for path in store.root.find(entry.where)])
    shutil.rmtree(store.work_directory(entry.where), ignore_errors=True)


def referred(entries: Iterable[Entry], keep: int | None) -> set[str]:
    """`stage/key` of everything that a kept run or a run at work is made from, and of these themselves.

    A run is a finished artifact of RUN_ENDS; `keep` of the newest of each are kept, all for None.
    """
    entries = list(entries)
    by_name = {entry.where: entry for entry in entries}
    kept = [entry.where for entry in entries if entry.state == "at work"]
    for stage in RUN_ENDS:
        ends = [entry.where for entry in entries if entry.stage == stage and entry.state == "finished"]
        kept += ends if keep is None else ends[len(ends) - keep :] if keep else []
    found: set[str] = set()
    while kept:
        where = kept.pop()
        if where not in found:
            found.add(where)
            kept += by_name[where].inputs if where in by_name else []
    return found


def collectable(entries: Iterable[Entry], *, keep: int | None, older_than: float, now: float) -> list[Entry]:
    """Entries that nothing kept refers to and that were not touched for `older_than` seconds."""
    entries = list(entries)
    needed = referred(entries, keep)
    return [e for e in entries if e.where not in needed and e.state != "at work" and now - e.modified >= older_than]


def lineage(store: Store, entry: Entry, role: str = "", depth: int = 0) -> Iterator[tuple[int, str, Entry | None, str]]:
    """(depth, role, entry, stage/key) of an artifact and of everything it is made from; entry None: it is gone."""
    yield depth, role, entry, entry.where
    for role, made in (entry.manifest.inputs if entry.manifest else {}).items():
        where = f"{made['stage']}/{made['key']}"
        found = store.root.find(where)
        if found:
            yield from lineage(store, _entry(store, where, found), role, depth + 1)
        else:
            yield depth + 1, role, None, where


def as_json(entry: Entry) -> dict[str, Any]:
    """The entry as JSON values."""
    return {
        "stage": entry.stage,
        "key": entry.key,
        "state": entry.state,
        "bytes": entry.size,
        "modified": datetime.fromtimestamp(entry.modified, UTC).isoformat(timespec="seconds"),
        "wall_seconds": entry.manifest.wall_seconds if entry.manifest else None,
        "cost_usd": entry.cost,
        "inputs": list(entry.inputs),
        "metrics": entry.manifest.metrics if entry.manifest else None,
        "problem": entry.problem,
    }
