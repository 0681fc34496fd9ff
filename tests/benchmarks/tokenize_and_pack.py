"""How much faster Encore tokenizes and packs than the plain way, on one core.

    python -m tests.benchmarks.tokenize_and_pack [texts.jsonl.gz]

Both ways run in this process on the same documents (the sample world without a file), interleaved, and must give the
same tokens and rows. Prints the medians and their ratio.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"

from conf.schema import World
from model.packing import pack_documents
from tasks import tokenizer, world
from tasks.reading import read_documents
from tests.model.test_packing import naive_rows

ROUNDS = 3
SEQ_LEN = 512


def main() -> None:
    if len(sys.argv) > 1:
        texts = list(islice(read_documents(Path(sys.argv[1]), sys.argv[1], "text"), 2000))
    else:
        texts = list(world.documents(World(documents=20_000), 0)["train"])
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    vocabulary = tokenizer.train(texts, 1024)
    tokens = compare(
        f"tokenize {megabytes:.1f} MB",
        lambda: vocabulary.encode_batch(texts),
        lambda: vocabulary._encode_whole(texts),
    )
    total = sum(map(len, tokens))
    compare(
        f"pack {total / 1e6:.1f} M tokens",
        lambda: [row.tolist() for row in pack_documents(tokens, SEQ_LEN, vocabulary.bos)],
        lambda: naive_rows(tokens, SEQ_LEN, 1000, vocabulary.bos),
    )


def compare(what: str, ours: Callable, plain: Callable):
    """Times both in turn and returns what ours gives, which must be what the plain way gives."""
    seconds: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(ROUNDS):
        results = []
        for name, function in (("ours", ours), ("plain", plain)):
            start = time.process_time()
            results.append(function())
            seconds[name].append(time.process_time() - start)
        assert results[0] == results[1]
    fast, slow = (statistics.median(seconds[name]) for name in ("ours", "plain"))
    print(f"{what}: {fast:.2f} s in place of {slow:.2f} s of one core, ratio {slow / fast:.1f}")
    return results[0]


if __name__ == "__main__":
    main()
