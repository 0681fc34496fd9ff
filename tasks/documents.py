"""The shard files of a corpus: how documents are kept between `corpus` and the stages that read them.

`<split>_<i>.parquet` with one column `text`, zstd, in the order of the source. A shard is cut after 32 MiB of text
and a row group after 4 MiB, so that a reader holds a few MiB whatever the source looked like, and a machine with
many cores finds enough shards to work on. Parquet because it is checksummed, quick to read and known to every tool;
nothing of it depends on the machine, so that the same documents give the same bytes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from tasks.store.artifact import Artifact

SHARD_BYTES = 32 * 2**20  # of text
ROW_GROUP_BYTES = 4 * 2**20
TEXT = "text"
_SCHEMA = pa.schema([pa.field(TEXT, pa.string(), nullable=False)])


def shard_name(split: str, index: int) -> str:
    return f"{split}_{index:05d}.parquet"


def shard_names(corpus: "Artifact", split: str) -> list[str]:
    """The shards of a split (`train` or `val`), in order."""
    return sorted(corpus.names(f"{split}_*.parquet"))


def documents(corpus: "Artifact", split: str) -> Iterator[str]:
    """All documents of a split, in order, a few MiB in memory at a time."""
    for name in shard_names(corpus, split):
        yield from read_shard(corpus.path(name))


def read_shard(path: Path) -> Iterator[str]:
    """The documents of one shard."""
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield from file.read_row_group(group, columns=[TEXT]).column(0).to_pylist()


class ShardWriter:
    """Writes one shard; `close` finishes the file, an abandoned one stays without its footer and unreadable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text_bytes = 0
        self.documents = 0
        self._group: list[bytes] = []
        self._group_bytes = 0
        self._file = pq.ParquetWriter(
            path, _SCHEMA, compression="zstd", use_dictionary=False, write_statistics=False, store_schema=False
        )

    def write(self, text: bytes) -> None:
        """Adds a document, given as UTF-8."""
        self._group.append(text)
        self._group_bytes += len(text)
        self.text_bytes += len(text)
        self.documents += 1
        if self._group_bytes >= ROW_GROUP_BYTES:
            self._flush()

    @property
    def full(self) -> bool:
        return self.text_bytes >= SHARD_BYTES

    def close(self) -> None:
        if self._group:
            self._flush()
        self._file.close()

    def _flush(self) -> None:
        texts = pa.array(self._group, pa.binary()).cast(pa.string())
        self._file.write_table(pa.table([texts], schema=_SCHEMA))
        self._group, self._group_bytes = [], 0
