"""Stage `corpus`: documents from wherever they are, checked, counted, each once, split into train and val.

Later stages read nothing but what this one leaves: `train_<i>.parquet`, `val_<i>.parquet` (`tasks.documents`) and
corpus.json with the counts. Rules, applied in this order to every document:

* Lone surrogates become U+FFFD and are counted; UTF-8 cannot hold them.
* A document without a letter or sign (only white space) is left out and counted.
* A document that has been there before, byte for byte, is left out and counted. Validation is read first, so no
  training document repeats a validation document.

The validation split is `data.val_paths`, else the last `data.val_shards` of the files. Where there is a single file,
every 50th of its documents is validation; of fewer than 50, the last.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tasks.world
from conf import climbmix
from tasks.digests import DigestSet, digest
from tasks.documents import ShardWriter, shard_name
from tasks.fetch import expand, fetched
from tasks.reading import read_documents
from tasks.stage import InputError, Stage
from tasks.store.secrets import redact_url
from tasks.text import replace_surrogates

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
)

VAL_EVERY = 50  # documents of a single file
BATCH_DOCUMENTS = 1000
BATCH_CHARS = 4_000_000
SPLITS = ("val", "train")  # in the order of reading

Split = str
Documents = Iterator[tuple[Split, str]]


@dataclass
class Counts:
    """What became of the documents of one source."""

    documents: int = 0  # kept
    bytes: int = 0  # of the kept ones, UTF-8
    duplicates: int = 0
    empty: int = 0
    surrogates: int = 0  # replaced characters

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(**{name: value + getattr(other, name) for name, value in asdict(self).items()})


@dataclass
class Collector:
    """Takes documents, applies the rules and writes the shards of both splits below `directory`."""

    directory: Path
    seen: DigestSet = field(default_factory=DigestSet)
    totals: dict[Split, Counts] = field(default_factory=lambda: {split: Counts() for split in SPLITS})
    shards: dict[Split, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    _writers: dict[Split, ShardWriter] = field(default_factory=dict)

    def take(self, documents: Documents) -> Counts:
        """Adds the documents of one source; returns what became of them."""
        before = sum(self.totals.values(), Counts())
        for batch in _batches(documents):
            clean = [(split, *replace_surrogates(text)) for split, text in batch]
            encoded = [(split, text.encode(), lone) for split, text, lone in clean if text.strip()]
            for split, _, _ in (item for item in clean if not item[1].strip()):
                self.totals[split].empty += 1
            is_new = self.seen.add(digest(text) for _, text, _ in encoded)
            for (split, text, lone), new in zip(encoded, is_new, strict=True):
                if new:
                    self._write(split, text, lone)
                else:
                    self.totals[split].duplicates += 1
        after = sum(self.totals.values(), Counts())
        return Counts(**{name: value - getattr(before, name) for name, value in asdict(after).items()})

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _write(self, split: Split, text: bytes, lone_surrogates: int) -> None:
        counts = self.totals[split]
        counts.documents += 1
        counts.bytes += len(text)
        counts.surrogates += lone_surrogates
        if split not in self._writers:
            self._writers[split] = ShardWriter(self.directory / shard_name(split, self.shards[split]))
            self.shards[split] += 1
        self._writers[split].write(text)
        if self._writers[split].full:
            self._writers.pop(split).close()


def run(config: "Config", inputs: Mapping[str, "Artifact"], out: "Workspace") -> dict[str, Any]:
    """Fills `out` with the shards and corpus.json; returns the counts. InputError says file and position."""
    cache = Path(config.store.cache_dir).expanduser() / "sources"
    collector = Collector(out.path)
    sources = []
    started = time.monotonic()
    for name, documents, done, total in _sources(config.data, cache, out):
        sources.append({"name": name, **asdict(collector.take(documents))})
        kept = sum(collector.totals.values(), Counts())
        rate = kept.bytes / 1e6 / max(time.monotonic() - started, 1e-9)
        out.progress(step=done, total=total, unit="files", documents=kept.documents, mb_per_s=rate)
        out.stop.check()
    collector.close()
    for split in SPLITS:
        if not collector.totals[split].documents:
            raise InputError(
                f"The {split} split holds no document (of {len(sources)} files): give more data.paths, or "
                "data.val_paths for validation."
            )
    splits = {split: {**asdict(collector.totals[split]), "shards": collector.shards[split]} for split in SPLITS}
    index = {"splits": splits, "sources": sources}
    (out.path / "corpus.json").write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n")
    train, val = splits["train"], splits["val"]
    out.log(
        f"{train['documents']:,} documents ({train['bytes'] / 1e6:,.1f} MB) for training, {val['documents']:,} for "
        f"validation; {train['duplicates'] + val['duplicates']:,} duplicates left out"
    )
    return {f"{split}_{name}": value for split in ("train", "val") for name, value in splits[split].items()}


def _sources(data: "Data", cache: Path, out: "Workspace") -> Iterator[tuple[str, Documents, int, int]]:
    """(name, documents, its number from 1, how many) of each source, validation first."""
    if data.kind == "world":
        texts = tasks.world.documents(data.world, data.world.seed or 0)
        for number, split in enumerate(SPLITS, 1):
            yield f"world {split}", _all(split, texts[split]), number, len(SPLITS)
        return
    paths = source_paths(data)
    split_of = {path: split for split in SPLITS for path in paths[split]}
    single = not paths["val"]
    for number, (path, file) in enumerate(fetched(list(split_of), cache, out.stop, _download_progress(out)), 1):
        name = redact_url(path)
        texts_of_file = read_documents(file, path, data.text_key)
        documents = _divided(texts_of_file) if single else _all(split_of[path], texts_of_file)
        yield name, documents, number, len(split_of)


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


def _all(split: Split, texts: Iterable[str]) -> Documents:
    return ((split, text) for text in texts)


def _divided(texts: Iterator[str]) -> Documents:
    """Every 50th document is validation; of fewer than 50, the last."""
    first = [text for _, text in zip(range(VAL_EVERY), texts, strict=False)]
    yield from (("train", text) for text in first[:-1])
    yield from (("val", text) for text in first[-1:])
    for number, text in enumerate(texts, VAL_EVERY + 1):
        yield "val" if number % VAL_EVERY == 0 else "train", text


def _batches(documents: Documents) -> Iterator[list[tuple[Split, str]]]:
    batch: list[tuple[Split, str]] = []
    characters = 0
    for split, text in documents:
        batch.append((split, text))
        characters += len(text)
        if len(batch) == BATCH_DOCUMENTS or characters >= BATCH_CHARS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
