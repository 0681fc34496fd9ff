"""Stage `tokenizer`: a byte-level BPE vocabulary learnt from the training text.

The rules are nanochat's: its split pattern, its nine special tokens after the learnt ones, no minimum frequency,
documents cut to `doc_cap` characters for training and reading stopped after `max_chars`. The same corpus gives
the same bytes of tokenizer.json on every machine.

Promises of `Tokenizer`: any text comes back from `decode(encode(text))` as it was; a text that spells out
`<|assistant_end|>` stays plain text, also after a reload; the length of each token in bytes is exact.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from model.chat_format import BOS, SPECIAL_TOKENS
from tasks import compression
from tasks.documents import documents
from tasks.pieces import PieceEncoder
from tasks.stage import InputError, Stage
from tasks.text import replace_surrogates

if TYPE_CHECKING:
    from conf.schema import Config
    from tasks.store.artifact import Artifact
    from tasks.store.workspace import Workspace

STAGE = Stage(
    name="tokenizer",
    version=1,
    reads=("tokenizer.vocab_size", "tokenizer.max_chars", "tokenizer.doc_cap"),
    inputs=("corpus",),
)

# GPT-4's pattern with at most two digits a token instead of three (nanochat): small vocabularies have better
# uses for their entries than numbers.
SPLIT_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
BYTE_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())  # one printable character for each of the 256 bytes


class Tokenizer:
    """Text to token ids and back. Another process loads its own (`load`)."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """`backend` is a byte-level BPE that holds the special tokens; ValueError where it lacks one."""
        # This flag is not part of tokenizer.json, so it is set on every load: without it a user's text could
        # close the assistant's turn (tokenizers#1850).
        backend.encode_special_tokens = True
        self._backend = backend
        self._pieces = PieceEncoder(self._encode_whole)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        if missing := [name for name in SPECIAL_TOKENS if name not in vocabulary]:
            raise ValueError(f"the vocabulary lacks {', '.join(missing)}")
        self._special = {name: vocabulary[name] for name in SPECIAL_TOKENS}
        self.vocab_size = len(vocabulary)
        self.token_bytes = _token_bytes(vocabulary, set(self._special.values()))

    @property
    def bos(self) -> int:
        return self._special[BOS]

    def special(self, name: str) -> int:
        """The id of a special token such as `<|user_end|>`; KeyError for any other string."""
        return self._special[name]

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; never a special token, never a BOS. A lone surrogate becomes U+FFFD."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text."""
        return self._pieces.encode_batch(texts)

    def _encode_whole(self, texts: list[str]) -> list[list[int]]:
        """Straight from the library, on every core that `RAYON_NUM_THREADS` allows."""
        try:
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:  # a str that UTF-8 cannot hold
            texts = [replace_surrogates(text)[0] for text in texts]
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens spelled out; bytes that are not UTF-8 become U+FFFD.

        ValueError for an id outside the vocabulary: the backend would leave it out without a word.
        """
        ids = [int(token) for token in ids]
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise ValueError(f"ids {min(ids)} to {max(ids)} are not all in the vocabulary of {self.vocab_size}")
        return self._backend.decode(ids, skip_special_tokens=False)

    def save(self, directory: Path) -> None:
        """tokenizer.json and token_bytes.npy (int32 [vocab_size], 0 for special tokens)."""
        self._backend.save(str(directory / "tokenizer.json"))
        np.save(directory / "token_bytes.npy", self.token_bytes, allow_pickle=False)


def load(path: Path | str) -> Tokenizer:
    """The tokenizer in a directory (or its tokenizer.json); InputError where there is none that fits."""
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises bare Exception for a missing and for a damaged file
        raise InputError(f"{file} is not a tokenizer that Encore can use: {error}.") from error


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learns `vocab_size` − 9 tokens from `texts` and puts the nine special ones after them.

    InputError when the texts hold too few different words for that many: models are sized by `vocab_size`.
    """
    backend = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(SPLIT_PATTERN), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        min_frequency=0,
        initial_alphabet=BYTE_ALPHABET,
        special_tokens=[],
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in SPECIAL_TOKENS])
    if (learnt := backend.get_vocab_size()) != vocab_size:
        raise InputError(
            f"The corpus yields a vocabulary of {learnt} tokens where tokenizer.vocab_size={vocab_size}: "
            f"set tokenizer.vocab_size={learnt} or less, or bring more text."
        )
    return Tokenizer(backend)


def training_texts(texts: Iterable[str], max_chars: int, doc_cap: int) -> Iterator[str]:
    """Each text cut to `doc_cap` characters, until more than `max_chars` have been given (nanochat's rule)."""
    characters = 0
    for text in texts:
        text = text[:doc_cap]
        characters += len(text)
        yield text
        if characters > max_chars:
            return


def _token_bytes(vocabulary: Mapping[str, int], special: set[int]) -> np.ndarray:
    """Bytes of each token, from its byte-level spelling: one character a byte.

    Never from decoded text, where each byte of a cut character would count as the three bytes of U+FFFD
    (nanochat#693).
    """
    alphabet = set(BYTE_ALPHABET)
    lengths = np.zeros(len(vocabulary), dtype=np.int32)
    for spelling, token in vocabulary.items():
        if token in special:
            continue
        if not alphabet.issuperset(spelling):
            raise ValueError(f"token {token} {spelling!r} is not spelled in bytes")
        lengths[token] = len(spelling)
    return lengths


def run(config: "Config", inputs: Mapping[str, "Artifact"], out: "Workspace") -> dict[str, Any]:
    """Fills `out` with tokenizer.json, token_bytes.npy and report.json; returns the headline of the report."""
    settings = config.tokenizer
    corpus = inputs["corpus"]
    texts = training_texts(documents(corpus, "train"), settings.max_chars, settings.doc_cap)
    seen = _Counted(texts, out)
    tokenizer = train(seen, settings.vocab_size)
    tokenizer.save(out.path)
    report = compression.measure(load(out.path), documents(corpus, "val"))
    report["training"] = {"documents": seen.documents, "characters": seen.characters}
    (out.path / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    overall = report["validation"]
    out.log(
        f"{tokenizer.vocab_size:,} tokens learnt from {seen.characters:,} characters: "
        f"{overall['bytes_per_token']:.3f} bytes a token on validation text"
    )
    return {
        "vocab_size": tokenizer.vocab_size,
        "bytes_per_token": overall["bytes_per_token"],
        "training_documents": seen.documents,
        "training_characters": seen.characters,
    }


class _Counted:
    """Passes texts through, counts them, and lets a stop end the training that reads them."""

    def __init__(self, texts: Iterable[str], out: "Workspace") -> None:
        self._texts, self._out = texts, out
        self.documents = 0
        self.characters = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.documents += 1
            self.characters += len(text)
            if self.documents % 10_000 == 0:
                self._out.stop.check()
                self._out.progress(documents=self.documents, characters=self.characters)
            yield text
