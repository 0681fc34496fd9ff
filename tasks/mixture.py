"""Which conversations a mixture trains on, how often, and in which order.

Every source is shuffled by the seed and cut to its `limit`. A conversation is held out for validation if the hash of
its messages is among the lowest `val_share` of all possible ones; at least the lowest of the mixture is. So one that
occurs twice, or in two sources, is on one side only. `weight` is a number of epochs: 2.5 takes every conversation
twice and half of them once more.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from model.chat_format import Conversation


@dataclass(frozen=True)
class Source:
    """The conversations of one item of the mixture, by `conversation_hash`."""

    hashes: Sequence[int]
    weight: float = 1.0
    limit: int | None = None


@dataclass(frozen=True)
class Mixture:
    """(source, index in it) of every conversation to train on, shuffled, and of every one that is held out."""

    train: list[tuple[int, int]]
    val: list[tuple[int, int]]


def mix(sources: Sequence[Source], val_share: float, seed: int) -> Mixture:
    """The mixture of these sources; a pure function of its arguments."""
    rng = random.Random(f"{seed}/mixture")
    orders = []
    for source in sources:
        order = list(range(len(source.hashes)))
        rng.shuffle(order)
        orders.append(order[: source.limit])
    lowest = min((source.hashes[i] for source, order in zip(sources, orders, strict=True) for i in order), default=0)
    threshold = max(int(val_share * 2**64), lowest + 1)
    train, val = [], []
    for number, (source, order) in enumerate(zip(sources, orders, strict=True)):
        held_out = [index for index in order if source.hashes[index] < threshold]
        kept = [index for index in order if source.hashes[index] >= threshold]
        epochs, rest = divmod(source.weight, 1)
        repeated = kept * int(epochs) + kept[: round(rest * len(kept))]
        val += [(number, index) for index in held_out]
        train += [(number, index) for index in repeated]
    rng.shuffle(train)
    return Mixture(train, val)


def conversation_hash(conversation: Conversation) -> int:
    """64 bits of a hash of the messages, the same on every machine."""
    text = json.dumps(conversation["messages"], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
