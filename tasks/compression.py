"""How well a tokenizer compresses: bytes per token, overall and by kind of text.

The samples are short texts written for this project. GPT-2's counts on the same samples stand beside them, so
that a new vocabulary can be compared without a network.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Protocol

VALIDATION_BYTES = 8_000_000  # read of the validation text; enough for three digits
BATCH_DOCUMENTS = 256

SAMPLES = {
    "prose": (
        "The ferry left before sunrise, and by the time the fog had lifted the town was a thin grey line behind us. "
        "Nobody spoke much. An old woman two seats away was peeling an orange, slowly, as if the whole crossing "
        "depended on keeping the rind in one piece. When she had finished she broke the fruit in half and, without "
        "looking up, held one half out to me."
    ),
    "dialogue": (
        "\u201cYou're late,\u201d said Ines.\n\u201cThe bridge was up. I waited twenty minutes.\u201d\n"
        "\u201cThen we'll have to run, won't we? It doesn't wait for anyone.\u201d\n"
        "\u201cI can't run in these shoes!\u201d\n\u201cThen take them off.\u201d"
    ),
    "code": (
        "def moving_average(values, window):\n"
        '    """Mean of the last `window` values at each position."""\n'
        "    total, result = 0.0, []\n"
        "    for index, value in enumerate(values):\n"
        "        total += value\n"
        "        if index >= window:\n"
        "            total -= values[index - window]\n"
        "        result.append(total / min(index + 1, window))\n"
        "    return result\n"
    ),
    "arithmetic": (
        "12 + 30 = 42. 7 * 8 = 56. 1024 / 16 = 64. In 1998 the harbour handled 3,417,250 tonnes; in 2024 it was "
        "5,006,118, a rise of 46.5%. Call 555-0142 between 09:30 and 17:45."
    ),
    "mathematics": (
        "Let $f\\colon [a,b]\\to\\mathbb{R}$ be continuous. If $f(a)\\,f(b) < 0$, then there is $c\\in(a,b)$ with "
        "$f(c)=0$: take $c=\\sup\\{x\\in[a,b] : f(x)f(a) > 0\\}$ and use $\\lim_{n\\to\\infty} f(x_n) = f(c)$ for "
        "$x_n\\to c$."
    ),
    "spelling": "b-e-l-i-e-v-e; n, e, i, g, h, b, o, u, r; R H Y T H M; ac·com·mo·date; W-e-d-n-e-s-d-a-y",
    "korean": (
        "아침 안개가 걷히자 작은 항구가 모습을 드러냈다. 할머니는 말없이 귤을 까서 반을 내게 내밀었다. "
        "우리는 아무 말도 하지 않고 바다를 바라보았다."
    ),
    "emoji": "See you at 8 🎉🎉 — don't forget the 🍰! ¿Todo bien? Ça va très bien, größer & schöner… 👍🏽",
}

# Counted with OpenAI's published GPT-2 vocabulary (50,257 tokens); a test counts again.
GPT2_TOKENS = {
    "prose": 80,
    "dialogue": 73,
    "code": 128,
    "arithmetic": 61,
    "mathematics": 122,
    "spelling": 64,
    "korean": 170,
    "emoji": 50,
}


class _Encoder(Protocol):
    def encode_batch(self, texts: list[str]) -> list[list[int]]: ...


def measure(tokenizer: _Encoder, validation: Iterable[str]) -> dict[str, Any]:
    """The report: `validation` (first 8 MB of it) and `samples` by kind, each {bytes, tokens, bytes_per_token}."""
    validation_bytes = validation_tokens = 0
    texts = iter(validation)
    while validation_bytes < VALIDATION_BYTES and (batch := list(islice(texts, BATCH_DOCUMENTS))):
        validation_bytes += sum(len(text.encode()) for text in batch)
        validation_tokens += sum(map(len, tokenizer.encode_batch(batch)))
    counts = map(len, tokenizer.encode_batch(list(SAMPLES.values())))
    return {
        "validation": _ratio(validation_bytes, validation_tokens),
        "samples": {
            kind: {**_ratio(len(SAMPLES[kind].encode()), tokens), "gpt2_tokens": GPT2_TOKENS[kind]}
            for kind, tokens in zip(SAMPLES, counts, strict=True)
        },
    }


def _ratio(n_bytes: int, tokens: int) -> dict[str, Any]:
    return {"bytes": n_bytes, "tokens": tokens, "bytes_per_token": n_bytes / tokens if tokens else 0.0}
