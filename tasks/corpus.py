"""Stage `corpus`: documents from wherever they are, checked, counted, each once, split into train and val.

Later stages read nothing but what this one leaves: `train_<i>.parquet`, `val_<i>.parquet` (`tasks.documents`) and
corpus.json with the counts. Rules, applied in this order to every document:

* Lone surrogates become U+FFFD and are counted; UTF-8 cannot hold them.
* A document of nothing but white space is left out and counted.
* A document that has been there before, byte for byte, is left out and counted. Validation goes first, so no
  training document repeats a validation document.

The validation split is `data.val_paths`, else the last `data.val_shards` of the files. Where there is a single file,
every 50th of its documents is validation; of fewer than 50, the last.

Files are read by several processes (`tasks.corpus_parts`); the bytes do not depend on how many.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tasks.world
from conf import climbmix
from tasks.corpus_parts import (
    SPLITS,
    Draft,
    Kept,
    Part,
    Settling,
    SourceFile,
    Split,
    read_part,
    settle,
    settlings,
    write_part,
)
from tasks.digests import DigestSet
from tasks.fetch import expand, fetched, is_remote
from tasks.stage import InputError, Stage
from tasks.store.secrets import redact_url
from tasks.workers import cores, run_jobs

if TYPE_CHECKING:
    from conf.schema import Config, Data
    from tasks.store.artifact import Artifact
    from tasks.store.workspace import Workspace

STAGE = Stage(
    name="corpus",
    version=1,
    reads=(
        "data.kind",
        "data.paths",
        "data.val_paths",
        "data.val_shards",
        "data.text_key",
        "data.max_shards",
        "data.world",
    ),
    runtime=("store.cache_dir",),
    files=("data.paths", "data.val_paths"),
)

PART_BYTES = 16 * 2**20  # of files that are read together, compressed or not


@dataclass
class Counts:
    """What became of the documents of one source, or of a split."""

    documents: int = 0  # kept
    bytes: int = 0  # of the kept ones, UTF-8
    duplicates: int = 0
    empty: int = 0
    surrogates: int = 0  # characters replaced


@dataclass
class Ledger:
    """Which documents of which draft stay, decided in the order of the files."""

    seen: DigestSet = field(default_factory=DigestSet)
    shards: list[Kept] = field(default_factory=list)
    splits: dict[Split, Counts] = field(default_factory=lambda: {split: Counts() for split in SPLITS})
    sources: list[dict[str, Any]] = field(default_factory=list)

    def enter(self, names: list[str], draft: Draft) -> None:
        """Decides on the documents of a part; all parts before it must have been entered."""
        counts = [Counts(empty=draft.empty[i], surrogates=draft.surrogates[i]) for i in range(len(names))]
        for shard in draft.shards:
            keep = self.seen.add(shard.digests)
            self.shards.append(Kept(shard.split, shard.path, keep))
            for source, size, stays in zip(shard.sources, shard.sizes, keep, strict=True):
                for tally in (counts[source], self.splits[shard.split]):
                    tally.documents += int(stays)
                    tally.bytes += size * int(stays)
                    tally.duplicates += int(not stays)
        self.sources += [{"name": name, **asdict(count)} for name, count in zip(names, counts, strict=True)]


def run(config: "Config", inputs: Mapping[str, "Artifact"], out: "Workspace") -> dict[str, Any]:
    """Fills `out` with the shards and corpus.json; returns the counts. InputError says file and position."""
    ledger = Ledger()
    processes = 1
    if config.data.kind == "world":
        _enter_world(ledger, config.data, out)
    else:
        paths = source_paths(config.data)
        processes = _processes([path for split in SPLITS for path in paths[split]])
        _enter_files(ledger, config, paths, processes, out)
    for split in SPLITS:
        if not ledger.splits[split].documents:
            raise InputError(
                f"The {split} split holds no document (of {len(ledger.sources)} files): give more data.paths, or "
                "data.val_paths for validation."
            )
    jobs = settlings(ledger.shards, out.path)
    for _ in run_jobs(settle, jobs, processes if _rewrites(jobs) else 1, out.stop):
        pass
    return _report(ledger, jobs, out)


def _enter_world(ledger: Ledger, data: "Data", out: "Workspace") -> None:
    texts = tasks.world.documents(data.world, data.world.seed or 0)
    for split in SPLITS:
        documents = [((split, text) for text in texts[split])]
        draft = write_part(documents, out.scratch() / split, lambda: out.stop.requested)
        ledger.enter([f"world {split}"], draft)


def _enter_files(
    ledger: Ledger, config: "Config", paths: dict[Split, list[str]], processes: int, out: "Workspace"
) -> None:
    """Reads all files, part by part; drafts that end before their turn wait for it."""
    total = sum(map(len, paths.values()))
    started = time.monotonic()
    parts: dict[Path, Part] = {}  # by directory, in order, until their turn
    waiting: dict[Path, Draft] = {}

    def submitted() -> Iterator[Part]:
        for part in _parts(config, paths, out):
            parts[part.directory] = part
            yield part

    for draft in run_jobs(read_part, submitted(), processes, out.stop):
        waiting[draft.directory] = draft
        while (turn := next(iter(parts), None)) in waiting:
            files = parts.pop(turn).files
            ledger.enter([redact_url(source.name) for source in files], waiting.pop(turn))
        read = sum(counts.bytes for counts in ledger.splits.values())
        rate = read / 1e6 / max(time.monotonic() - started, 1e-9)
        out.progress(step=len(ledger.sources), total=total, unit="files", mb_per_s=rate)


def _parts(config: "Config", paths: dict[Split, list[str]], out: "Workspace") -> Iterator[Part]:
    """Files in order, some MiB of them together, as they arrive."""
    cache = Path(config.store.cache_dir).expanduser() / "sources"
    split_of = {path: split for split in SPLITS for path in paths[split]}
    single = not paths["val"]
    files: list[SourceFile] = []
    number = size = 0
    for path, file in fetched(list(split_of), cache, out.stop, _download_progress(out)):
        files.append(SourceFile(path, file, None if single else split_of[path]))
        size += file.stat().st_size
        if size >= PART_BYTES:
            yield Part(tuple(files), config.data.text_key, out.scratch() / f"{number:06d}")
            number += 1
            files, size = [], 0
    if files:
        yield Part(tuple(files), config.data.text_key, out.scratch() / f"{number:06d}")


def _processes(paths: list[str]) -> int:
    """One for each 32 MiB of files, as many as there are cores; a remote file counts as a large one."""
    size = sum(2**25 if is_remote(path) else Path(path).stat().st_size for path in paths)
    return min(cores(), len(paths), size // 2**25)


def _rewrites(jobs: list[Settling]) -> bool:
    return sum(not job.keep.all() for job in jobs) > 1


def _report(ledger: Ledger, jobs: list[Settling], out: "Workspace") -> dict[str, Any]:
    splits: dict[str, dict[str, int]] = {}
    for split in SPLITS:
        shards = sum(job.final.name.startswith(f"{split}_") for job in jobs)
        counts = asdict(ledger.splits[split])
        known = {name: counts[name] for name in ("documents", "bytes", "duplicates")}
        splits[split] = {**known, "shards": shards}
    index = {"splits": splits, "sources": ledger.sources}
    (out.path / "corpus.json").write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n")
    train, val = splits["train"], splits["val"]
    out.log(
        f"{train['documents']:,} documents ({train['bytes'] / 1e6:,.1f} MB) for training, {val['documents']:,} for "
        f"validation; {train['duplicates'] + val['duplicates']:,} duplicates left out"
    )
    metrics = {f"{split}_{name}": value for split in ("train", "val") for name, value in splits[split].items()}
    return metrics | {name: sum(source[name] for source in ledger.sources) for name in ("empty", "surrogates")}


def source_paths(data: "Data") -> dict[Split, list[str]]:
    """The files of each split; no validation file when a single file is to be divided. InputError, ConfigError."""
    if data.kind == "climbmix":
        return climbmix.paths(data.max_shards or 0)  # composing has filled it in (`conf.resolve`)
    if not data.paths:
        raise InputError("data.paths is empty: give files, such as 'data.paths=[texts/*.jsonl.gz]'.")
    train = expand(data.paths, "data.paths")
    val = expand(data.val_paths, "data.val_paths")
    if not val and len(train) > 1:
        if len(train) <= data.val_shards:
            raise InputError(
                f"data.val_shards={data.val_shards} leaves no file to train on: data.paths match {len(train)} files."
            )
        train, val = train[: -data.val_shards], train[-data.val_shards :]
    train = [path for path in train if path not in set(val)]
    return {"train": train[: data.max_shards], "val": val}


def _download_progress(out: "Workspace") -> Any:
    started, arrived = time.monotonic(), 0

    def on_bytes(count: int) -> None:
        nonlocal arrived
        arrived += count
        seconds = max(time.monotonic() - started, 1e-9)
        out.progress(downloaded_mb=round(arrived / 1e6), mb_per_s=arrived / 1e6 / seconds)

    return on_bytes
