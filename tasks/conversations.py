"""Stage `conversations`: a mixture of chat data, rendered with its loss masks and packed into rows.

The layout is that of `shards`, so one loader serves both: `<split>_<i>.rows.npy` int32 [rows, seq_len + 1] in which a
word w < 0 is token ~w that is no target, `.sums.npy`, shards.json; and conversations.json with what became of every
source. Rules: a malformed conversation is an error with file and line. A conversation longer than a row is cut to one
(`sft.overlong=truncate`) or left out (`skip`), and counted; packing itself never crops. One that keeps no target is
left out and counted, and a mixture without any target is an error.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import tasks.world
from model.chat_format import Conversation, FormatError, Rendered, render
from model.checksum import row_checksums
from model.packing import PackStats, pack_conversations
from tasks import tokenizer as tokenizers
from tasks.chat_records import FORMATS, check_trainable
from tasks.fetch import expand, fetched, suffixes
from tasks.mixture import Source, conversation_hash, mix
from tasks.reading import json_lines, parquet_rows
from tasks.stage import InputError, Stage
from tasks.store.secrets import redact_url

if TYPE_CHECKING:
    from conf.schema import Config, MixtureItem
    from tasks.store.artifact import Artifact
    from tasks.store.workspace import Workspace

STAGE = Stage(
    name="conversations",
    version=1,
    reads=("seed", "scale.seq_len", "sft.mixture", "sft.val_share", "sft.overlong", "data.world"),
    runtime=("store.cache_dir",),
    files=("sft.mixture",),
    inputs=("tokenizer",),
)

BATCH = 512  # conversations tokenized in one call
BUFFER = 1000  # conversations that best fit chooses from
SHARD_WORDS = 2**24  # int32 words of one file: 64 MiB


@dataclass
class SourceCounts:
    """What became of the conversations of one item of the mixture."""

    path: str
    conversations: int = 0  # read
    overlong: int = 0  # longer than a row: cut or left out, as `sft.overlong` says
    without_target: int = 0  # left out: nothing in it (or in what was kept of it) is to be learnt
    train: int = 0  # used for training, repetitions counted
    val: int = 0


class Spool:
    """Rendered conversations in one file: as many as the disk holds, hardly any of them in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._ends = [0]

    def append(self, rendered: Rendered) -> None:
        tokens = np.array(rendered.ids, dtype=np.int32)
        np.where(np.array(rendered.mask, dtype=bool), tokens, ~tokens).tofile(self._file)
        self._ends.append(self._ends[-1] + len(tokens))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def pairs(self, indices: Iterable[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(ids, mask) of these conversations, in this order."""
        self._file.flush()
        words = np.memmap(self._path, dtype=np.int32, mode="r") if self._ends[-1] else np.empty(0, np.int32)
        for index in indices:
            piece = words[self._ends[index] : self._ends[index + 1]]
            yield np.where(piece < 0, ~piece, piece), piece >= 0


def run(config: "Config", inputs: Mapping[str, "Artifact"], out: "Workspace") -> dict[str, Any]:
    """Fills `out` with the rows of both splits and their index; returns counts and the share that is supervised."""
    tokenizer = tokenizers.load(inputs["tokenizer"].path())
    spool = Spool(out.scratch() / "words.bin")
    counts, sources, starts = [], [], []
    for number, item in enumerate(config.sft.mixture, 1):
        starts.append(len(spool))
        read, hashes = _read(config, item, tokenizer, spool, out)
        counts.append(read)
        sources.append(Source(hashes, item.weight, item.limit))
        out.progress(step=number, total=len(config.sft.mixture), unit="sources", conversations=len(spool))
    mixture = mix(sources, config.sft.val_share, config.seed)
    for number, read in enumerate(counts):
        read.train = sum(source == number for source, _ in mixture.train)
        read.val = sum(source == number for source, _ in mixture.val)
    chosen = {
        "train": [starts[source] + index for source, index in mixture.train],
        "val": [starts[source] + index for source, index in mixture.val],
    }
    return _pack(config, chosen, counts, spool, tokenizer, out)


def _read(
    config: "Config", item: "MixtureItem", tokenizer: tokenizers.Tokenizer, spool: Spool, out: "Workspace"
) -> tuple[SourceCounts, list[int]]:
    """Renders one item of the mixture into the spool; its counts, and the hash of each conversation that is kept."""
    counts, hashes = SourceCounts(redact_url(item.path)), []
    capacity = config.scale.seq_len + 1
    for conversation, rendered in rendered_batches(_records(config, item, out), tokenizer):
        counts.conversations += 1
        counts.overlong += len(rendered.ids) > capacity
        fitted = fit(rendered, capacity, config.sft.overlong)
        if fitted is not None and any(fitted.mask):
            spool.append(fitted)
            hashes.append(conversation_hash(conversation))
        elif fitted is not None:
            counts.without_target += 1
        if counts.conversations % BATCH == 0:
            out.stop.check()
    return counts, hashes


def fit(rendered: Rendered, capacity: int, overlong: Literal["skip", "truncate"]) -> Rendered | None:
    """The conversation as it goes into a row of `capacity` words: whole, cut at its end, or None (left out)."""
    if len(rendered.ids) <= capacity:
        return rendered
    if overlong == "skip":
        return None
    return Rendered(rendered.ids[:capacity], rendered.mask[:capacity])


def rendered_batches(
    records: Iterable[tuple[str, Any, str]], tokenizer: tokenizers.Tokenizer
) -> Iterator[tuple[Conversation, Rendered]]:
    """Conversations and their tokens; `records` are (place for errors, record, format).

    Every text of a batch is tokenized in one call, on all cores: a first rendering collects the texts, a second
    one finds their tokens. InputError names the place of a record that is no conversation.
    """
    records = iter(records)
    while batch := list(islice(records, BATCH)):
        conversations = []
        texts = _Collecting(tokenizer)
        for place, record, form in batch:
            try:
                conversation = FORMATS[form](record)
                check_trainable(conversation)
                render(conversation, texts, max_tokens=None)
            except FormatError as error:
                raise InputError(f"{place}: {error}.") from error
            conversations.append(conversation)
        encoded = _Known(tokenizer, list(texts.seen))
        for conversation in conversations:
            yield conversation, render(conversation, encoded, max_tokens=None)


class _Collecting:
    """A tokenizer for a trial rendering: it notes the texts and makes nothing of them."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.seen: dict[str, None] = {}
        self.vocab_size, self.special = tokenizer.vocab_size, tokenizer.special

    def encode(self, text: str) -> list[int]:
        self.seen[text] = None
        return []


class _Known:
    """A tokenizer that has tokenized its texts beforehand."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, texts: list[str]) -> None:
        self._ids = dict(zip(texts, tokenizer.encode_batch(texts), strict=True))
        self.vocab_size, self.special = tokenizer.vocab_size, tokenizer.special

    def encode(self, text: str) -> list[int]:
        return self._ids[text]


def _records(config: "Config", item: "MixtureItem", out: "Workspace") -> Iterator[tuple[str, Any, str]]:
    """(place, record, format) of everything that one item of the mixture names."""
    if item.path == "world":
        world = config.data.world
        for number, conversation in enumerate(tasks.world.conversations(world, world.seed or 0)["train"]):
            yield f"conversation {number} of the sample world", conversation, "messages"
        return
    cache = Path(config.store.cache_dir).expanduser() / "sources"
    for path, file in fetched(expand([item.path], "sft.mixture"), cache, out.stop):
        name = redact_url(path)
        if suffixes(path).endswith(".parquet"):
            rows = parquet_rows(file, name, lambda schema: list(schema.names))
        elif suffixes(path).endswith((".jsonl", ".jsonl.gz")):
            rows = json_lines(file, name)
        else:
            raise InputError(f"{name}: its ending is none of .jsonl, .jsonl.gz and .parquet.")
        for number, record in rows:
            yield f"{name}:{number}", record, item.format


def _pack(
    config: "Config",
    chosen: dict[str, list[int]],
    sources: list[SourceCounts],
    spool: Spool,
    tokenizer: tokenizers.Tokenizer,
    out: "Workspace",
) -> dict[str, Any]:
    seq_len = config.scale.seq_len
    index: dict[str, Any] = {"seq_len": seq_len, "vocab_size": tokenizer.vocab_size}
    metrics: dict[str, Any] = {"overlong": sum(source.overlong for source in sources)}
    for split, indices in chosen.items():
        stats = PackStats()
        rows = pack_conversations(spool.pairs(indices), seq_len, tokenizer.bos, BUFFER, stats)
        index[split] = _write(rows, split, max(1, SHARD_WORDS // (seq_len + 1)), out.path)
        if not stats.target_tokens:
            left_out = sum(source.without_target for source in sources)
            raise InputError(
                f"The {split} conversations hold no token to learn ({len(indices)} conversations in rows of "
                f"{seq_len} + 1 tokens, {metrics['overlong']} longer than that, {left_out} left out for having no "
                "target): raise scale.seq_len or sft.val_share, or bring more conversations."
            )
        words = stats.rows * seq_len
        metrics |= {
            f"{split}_rows": stats.rows,
            f"{split}_conversations": stats.pieces,
            f"{split}_targets": stats.target_tokens,
            f"{split}_supervised_share": stats.target_tokens / words,
            f"{split}_padding_share": stats.padding_tokens / (stats.rows * (seq_len + 1)),
        }
    (out.path / "shards.json").write_text(json.dumps(index, indent=1) + "\n")
    report = {"overlong": config.sft.overlong, "sources": [asdict(source) for source in sources], **metrics}
    (out.path / "conversations.json").write_text(json.dumps(report, indent=1) + "\n")
    out.log(
        f"{metrics['train_conversations']:,} conversations in {metrics['train_rows']:,} rows; "
        f"{100 * metrics['train_supervised_share']:.0f} % of the tokens are supervised; {metrics['overlong']:,} were "
        f"too long ({config.sft.overlong})"
    )
    return metrics


def _write(rows: Iterator[np.ndarray], split: str, rows_per_file: int, directory: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    while block := list(islice(rows, rows_per_file)):
        name = f"{split}_{len(entries):05d}"
        stacked = np.stack(block)
        np.save(directory / f"{name}.rows.npy", stacked, allow_pickle=False)
        np.save(directory / f"{name}.sums.npy", row_checksums(stacked), allow_pickle=False)
        entries.append({"name": name, "rows": len(block)})
    return entries
