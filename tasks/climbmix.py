"""The published corpus of the leaderboard runs: 6,543 shuffled parquet shards, the last one for validation.

About 250 million characters and 100 MB a shard.
"""

from tasks.stage import InputError

REPOSITORY = "hf://datasets/karpathy/climbmix-400b-shuffle"
SHARDS = 6543


def path(index: int) -> str:
    return f"{REPOSITORY}/shard_{index:05d}.parquet"


def paths(train_shards: int | None) -> dict[str, list[str]]:
    """The first `train_shards` shards for training and the last of all for validation; InputError beyond the end."""
    if train_shards is None:
        raise InputError("data.max_shards is not set: give the number of ClimbMix shards to train on.")
    if train_shards >= SHARDS:
        raise InputError(f"data.max_shards={train_shards}: ClimbMix has {SHARDS - 1} shards for training.")
    return {"train": [path(index) for index in range(train_shards)], "val": [path(SHARDS - 1)]}
