"""The published corpus of the leaderboard runs: 6,543 shuffled parquet shards, the last one for validation.

A shard has about 250 million characters and 100 MB (nanochat, runs/speedrun.sh).
"""

import math

from conf.errors import ConfigError

REPOSITORY = "hf://datasets/karpathy/climbmix-400b-shuffle"
SHARDS = 6543
# 250 M characters are about 52 M tokens of a 32k vocabulary, and packing into rows of 2,048 discards some of them.
# With 40 M a d24 run at ratio 9.5 (6.93 G tokens) gets 174 shards, where nanochat says 150 and 20 to be safe.
TOKENS_PER_SHARD = 40_000_000


def shards_for(tokens: int) -> int:
    """Training shards that hold `tokens` after packing, at most all there are."""
    return min(SHARDS - 1, math.ceil(tokens / TOKENS_PER_SHARD))


def path(index: int) -> str:
    return f"{REPOSITORY}/shard_{index:05d}.parquet"


def paths(train_shards: int) -> dict[str, list[str]]:
    """The first `train_shards` shards for training and the last of all for validation."""
    if not 1 <= train_shards < SHARDS:
        raise ConfigError(f"data.max_shards={train_shards}: ClimbMix has 1 to {SHARDS - 1:,} shards for training.")
    return {"train": [path(index) for index in range(train_shards)], "val": [path(SHARDS - 1)]}
