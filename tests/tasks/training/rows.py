"""Small shards, made by hand in the layout that `tasks.shards` and `tasks.conversations` write."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from model.checksum import row_checksums


def write_shards(directory: Path, splits: dict[str, list[np.ndarray]], vocab_size: int) -> Path:
    """`splits`: name → row arrays [rows, seq_len + 1], one for each shard."""
    directory.mkdir(parents=True, exist_ok=True)
    index: dict = {"vocab_size": vocab_size}
    for split, shards in splits.items():
        index[split] = []
        for number, rows in enumerate(shards):
            name = f"{split}_{number:05d}"
            np.save(directory / f"{name}.rows.npy", rows)
            np.save(directory / f"{name}.sums.npy", np.asarray(row_checksums(rows.astype(np.int32))))
            index[split].append({"name": name, "rows": len(rows)})
            index["seq_len"] = rows.shape[1] - 1
    (directory / "shards.json").write_text(json.dumps(index))
    return directory


def random_rows(n_rows: int, seq_len: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    """uint16 [n_rows, seq_len + 1]: a noisy counting sequence, so that a model can learn a little of it."""
    rng = np.random.default_rng(seed)
    start, stride = rng.integers(vocab_size, size=(n_rows, 1)), rng.integers(1, 4, size=(n_rows, 1))
    return ((start + stride * np.arange(seq_len + 1)) % vocab_size).astype(np.uint16)
