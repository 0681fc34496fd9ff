"""Stage `shards`: the corpus as rows of seq_len + 1 token ids, packed once for every run that trains on it.

For each shard i of the corpus `<split>_<i>.rows.npy` [rows, seq_len + 1] (uint16 up to 65,536 tokens, else uint32),
`<split>_<i>.sums.npy` uint32 [rows] (`model.checksum`) and `<split>_<i>.json` with what packing did; shards.json lists
them. Rows are full, start with BOS and are packed by best fit (`model.packing`) within their shard, so shards are made
in parallel, on any number of processes, with the same bytes. One that is published is not made again.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from model.checksum import row_checksums
from model.packing import PackStats, pack_documents
from tasks import tokenizer as tokenizers
from tasks.documents import SHARD_BYTES, read_shard, shard_names
from tasks.stage import InputError, Preempted, Stage
from tasks.workers import ShouldStop, cores, run_jobs

if TYPE_CHECKING:
    from conf.schema import Config
    from tasks.store.artifact import Artifact
    from tasks.store.workspace import Workspace

STAGE = Stage(
    name="shards",
    version=1,
    reads=("scale.seq_len", "shards.buffer_docs", "shards.long_documents"),
    runtime=("shards.workers",),
    inputs=("corpus", "tokenizer"),
    resumable=True,
)

SPLITS = ("train", "val")
BATCH_CHARS = 500_000  # tokenized in one call; the library holds some 100 bytes for each token of it


@dataclass(frozen=True)
class Job:
    """One shard of the corpus to be packed; all that a worker process needs to know."""

    name: str  # such as train_00003
    source: Path
    tokenizer: Path
    directory: Path  # where the files go
    seq_len: int
    buffer_docs: int
    long_documents: Literal["crop", "split"]


def run(config: "Config", inputs: Mapping[str, "Artifact"], out: "Workspace") -> dict[str, Any]:
    """Fills `out` with the shards of both splits and shards.json; returns utilisation, crop share and token counts."""
    tokenizer = tokenizers.load(inputs["tokenizer"].path())
    names = [name.removesuffix(".parquet") for split in SPLITS for name in shard_names(inputs["corpus"], split)]
    finished = out.finished()
    todo = [name for name in names if f"{name}.json" not in finished]
    if len(todo) < len(names):
        out.log(f"{len(names) - len(todo)} of {len(names)} shards are there from an earlier attempt")
    processes = min(config.shards.workers or cores(), len(todo), _text_bytes(inputs["corpus"]) // SHARD_BYTES)
    jobs = (_job(name, config, inputs, out.path) for name in todo)
    started, tokens = time.monotonic(), 0
    for done, (name, stats) in enumerate(run_jobs(pack_shard, jobs, processes, out.stop), len(names) - len(todo) + 1):
        for suffix in (".rows.npy", ".sums.npy", ".json"):  # the last one says that the shard is whole
            out.publish(name + suffix)
        tokens += stats.tokens
        rate = tokens / max(time.monotonic() - started, 1e-9)
        out.progress(step=done, total=len(names), unit="shards", tokens_per_s=rate)
    return _finish(out, names, config.scale.seq_len, tokenizer.vocab_size)


def pack_shard(job: Job, should_stop: ShouldStop) -> tuple[str, PackStats]:
    """Tokenizes and packs one shard of the corpus and writes its three files; Preempted if asked to stop."""
    tokenizer = _loaded(job.tokenizer)
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    stats = PackStats()
    documents = _tokenized(read_shard(job.source), tokenizer, dtype, should_stop)
    if job.long_documents == "split":
        documents = _pieces(documents, job.seq_len)
    packed = pack_documents(documents, job.seq_len, tokenizer.bos, job.buffer_docs, stats)
    rows = [row.astype(dtype) for row in packed]
    block = np.stack(rows) if rows else np.empty((0, job.seq_len + 1), dtype)
    np.save(job.directory / f"{job.name}.rows.npy", block, allow_pickle=False)
    np.save(job.directory / f"{job.name}.sums.npy", row_checksums(block), allow_pickle=False)
    (job.directory / f"{job.name}.json").write_text(json.dumps(asdict(stats)) + "\n")
    return job.name, stats


def summary(stats: PackStats, seq_len: int) -> dict[str, Any]:
    """Metrics of one split. `utilisation`: share of the words in rows that are tokens of documents and not padding;
    `crop_share`: share of the tokenized text that cropping discarded; `tokens`: what a model can be trained on."""
    words = stats.rows * (seq_len + 1)
    kept = stats.tokens - stats.cropped_tokens - stats.unfinished_tokens
    return {
        "rows": stats.rows,
        "tokens": stats.target_tokens,
        "documents": stats.pieces,
        "utilisation": kept / words if words else 0.0,
        "crop_share": stats.cropped_tokens / stats.tokens if stats.tokens else 0.0,
        "unfinished_tokens": stats.unfinished_tokens,
    }


def _text_bytes(corpus: "Artifact") -> int:
    """A small corpus is sooner packed here, with the tokenizer's own threads, than workers have started."""
    index = json.loads(corpus.path("corpus.json").read_text())
    return sum(index["splits"][split]["bytes"] for split in SPLITS)


def _job(name: str, config: "Config", inputs: Mapping[str, "Artifact"], directory: Path) -> Job:
    """The job of one shard; the shard is fetched here if it lies in a bucket."""
    return Job(
        name,
        inputs["corpus"].path(f"{name}.parquet"),
        inputs["tokenizer"].path("tokenizer.json"),
        directory,
        config.scale.seq_len,
        config.shards.buffer_docs,
        config.shards.long_documents,
    )


def _finish(out: "Workspace", names: list[str], seq_len: int, vocab_size: int) -> dict[str, Any]:
    """Writes shards.json from what every shard says of itself, those of earlier attempts included."""
    index: dict[str, Any] = {"seq_len": seq_len, "vocab_size": vocab_size}
    metrics: dict[str, Any] = {}
    for split in SPLITS:
        total, entries = PackStats(), []
        for name in names:
            if name.startswith(f"{split}_"):
                stats = PackStats(**json.loads((out.path / f"{name}.json").read_text()))
                entries.append({"name": name, "rows": stats.rows})
                total.add(stats)
        if not total.rows:
            raise InputError(
                f"The {split} documents ({total.tokens:,} tokens) do not fill one row of scale.seq_len={seq_len} + 1 "
                "tokens: bring more text or make rows shorter."
            )
        index[split] = entries
        metrics |= {f"{split}_{name}": value for name, value in summary(total, seq_len).items()}
    (out.path / "shards.json").write_text(json.dumps(index, indent=1) + "\n")
    out.log(
        f"{metrics['train_rows']:,} rows of {seq_len:,} tokens for training, {metrics['val_rows']:,} for validation; "
        f"cropping discarded {100 * metrics['train_crop_share']:.1f} % of the text"
    )
    return metrics


@cache
def _loaded(path: Path) -> tokenizers.Tokenizer:
    return tokenizers.load(path)


def _tokenized(
    texts: Iterable[str], tokenizer: tokenizers.Tokenizer, dtype: type, should_stop: ShouldStop
) -> Iterator[np.ndarray]:
    for batch in _batches(texts):
        if should_stop():
            raise Preempted("asked to stop")
        yield from (np.array(ids, dtype=dtype) for ids in tokenizer.encode_batch(batch))


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _pieces(documents: Iterable[np.ndarray], seq_len: int) -> Iterator[np.ndarray]:
    """Documents longer than a row in pieces that fill one with their BOS, and the rest."""
    for document in documents:
        yield from (document[start : start + seq_len] for start in range(0, max(len(document), 1), seq_len))
