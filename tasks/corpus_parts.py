"""A part of a corpus: some source files, read, cleaned and written as shards by one process.

Which documents are duplicates is only known once all parts before it have been looked at, so a part hands over the
digest of every document; `settle` then keeps a shard as it is or writes it again without the documents that were there
before. What a part holds depends on its files alone, never on the number of processes.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tasks.digests import digest
from tasks.documents import ShardWriter, read_shard, shard_name
from tasks.reading import read_documents
from tasks.stage import Preempted
from tasks.text import replace_surrogates
from tasks.workers import ShouldStop

VAL_EVERY = 50  # documents of a single file
SPLITS = ("val", "train")  # in the order in which duplicates are decided

Split = str
Documents = Iterable[tuple[Split, str]]


@dataclass(frozen=True)
class SourceFile:
    """One file of the corpus; `split` is None for a single file that is to be divided."""

    name: str  # as it was given: its ending tells the format
    file: Path
    split: Split | None


@dataclass(frozen=True)
class Part:
    """Files that one process reads."""

    files: tuple[SourceFile, ...]
    text_key: str
    directory: Path


@dataclass
class DraftShard:
    """A written shard and, for each of its documents in order, what the decision on duplicates needs."""

    split: Split
    path: Path
    digests: list[bytes] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)  # index of the file in its part
    sizes: list[int] = field(default_factory=list)  # bytes


@dataclass
class Draft:
    """A part as it was read: its shards, and by source what was left out or changed."""

    directory: Path
    shards: list[DraftShard] = field(default_factory=list)
    empty: list[int] = field(default_factory=list)  # by source
    surrogates: list[int] = field(default_factory=list)


def read_part(part: Part, should_stop: ShouldStop) -> Draft:
    """Reads the files of a part and writes its shards; InputError with file and position, Preempted on a stop."""
    return write_part([_documents(source, part.text_key) for source in part.files], part.directory, should_stop)


def write_part(sources: Iterable[Documents], directory: Path, should_stop: ShouldStop) -> Draft:
    """Cleans the documents of some sources and writes them to `directory`."""
    directory.mkdir(parents=True)
    draft = Draft(directory)
    writers: dict[Split, tuple[ShardWriter, DraftShard]] = {}
    for number, documents in enumerate(sources):
        draft.empty.append(0)
        draft.surrogates.append(0)
        for split, raw in documents:
            if should_stop():
                raise Preempted("asked to stop")
            text, lone = replace_surrogates(raw)
            draft.surrogates[number] += lone
            if not text or text.isspace():
                draft.empty[number] += 1
                continue
            if split not in writers:
                path = directory / f"{len(draft.shards)}.parquet"
                draft.shards.append(DraftShard(split, path))
                writers[split] = (ShardWriter(path), draft.shards[-1])
            writer, shard = writers[split]
            encoded = text.encode()
            writer.write(encoded)
            shard.digests.append(digest(encoded))
            shard.sources.append(number)
            shard.sizes.append(len(encoded))
            if writer.full:
                writers.pop(split)[0].close()
    for writer, _ in writers.values():
        writer.close()
    draft.shards.sort(key=lambda shard: SPLITS.index(shard.split))
    return draft


@dataclass(frozen=True)
class Kept:
    """A draft of a shard, and which of its documents stay (bool [documents])."""

    split: Split
    path: Path
    keep: np.ndarray


@dataclass(frozen=True)
class Settling:
    """What is left to do with a draft: its final name, and which of its documents stay."""

    draft: Path
    final: Path
    keep: np.ndarray


def settle(job: Settling, should_stop: ShouldStop) -> None:
    """Gives the shard its name, without the documents that do not stay."""
    if job.keep.all():
        os.replace(job.draft, job.final)
        return
    if should_stop():
        raise Preempted("asked to stop")
    writer = ShardWriter(job.final)
    for text, stays in zip(read_shard(job.draft), job.keep, strict=True):
        if stays:
            writer.write(text.encode())
    writer.close()
    job.draft.unlink()


def settlings(drafts: Iterable[Kept], directory: Path) -> list[Settling]:
    """The final names of all shards that keep a document, counted by split."""
    counts = dict.fromkeys(SPLITS, 0)
    jobs = []
    for shard in drafts:
        if shard.keep.any():
            name = shard_name(shard.split, counts[shard.split])
            jobs.append(Settling(shard.path, directory / name, shard.keep))
            counts[shard.split] += 1
    return jobs


def _documents(source: SourceFile, text_key: str) -> Documents:
    texts = read_documents(source.file, source.name, text_key)
    return divided(texts) if source.split is None else ((source.split, text) for text in texts)


def divided(texts: Iterator[str]) -> Iterator[tuple[Split, str]]:
    """Every 50th document is validation; of fewer than 50, the last."""
    first = [text for _, text in zip(range(VAL_EVERY), texts, strict=False)]
    yield from (("train", text) for text in first[:-1])
    yield from (("val", text) for text in first[-1:])
    for number, text in enumerate(texts, VAL_EVERY + 1):
        yield "val" if number % VAL_EVERY == 0 else "train", text
