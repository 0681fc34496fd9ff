import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from model.chat_format import SPECIAL_TOKENS
from tasks import compression, documents, pieces, tokenizer
from tasks.stage import InputError, Preempted
from tests.tasks.artifacts import FakeArtifact, FakeWorkspace

TEXTS = [
    "The harbour master counted 12 boats in 1998, and 1,024 gulls; he'd never seen so many.\n\n  Twice!",
    "def f(x):\n    return x + 1  # naïve, größer, 漁船, 🎣\n",
    "Kofi's boat is blue. Whose boat is blue? Kofi's. The boat of Kofi is blue, isn't it?",
    "1024 1024 1024 1024 1024 1024",
] * 4
VOCAB = 320
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tokenizer.Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer.train(TEXTS, VOCAB).save(directory)
    return tokenizer.load(directory)


any_text = st.text() | st.lists(st.sampled_from([*SPECIAL_TOKENS, " ", "a", "\n", "1234"])).map("".join)


@given(any_text)
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back(trained, text):
    ids = trained.encode(text)
    assert trained.decode(ids) == text
    assert trained.token_bytes[ids].sum() == len(text.encode())
    assert not set(ids) & {trained.special(name) for name in SPECIAL_TOKENS}


@given(st.lists(any_text, max_size=5))
@settings(max_examples=50, deadline=None)
def test_a_batch_is_its_texts(trained, texts):
    assert trained.encode_batch(texts) == [trained.encode(text) for text in texts]


shapes = st.lists(
    st.sampled_from(
        [*"ab1' .,!-\n\r\t\v\x1c\x85\xa0\u2028\u3000\u0301\u1680\u180eéñ漁²", "'s", "'LL", "  ", "\n ", "Boat"]
    ),
    max_size=24,
).map("".join)


@given(shapes | st.text(), shapes)
@settings(max_examples=400, deadline=None)
def test_the_tokens_of_a_text_are_those_of_its_pieces(trained, first, second):
    for text in (first, second, f"{first} {second}", f"{first}\n{second}"):
        assert trained.encode(text) == trained._encode_whole([text])[0]


def test_pieces_are_cut_where_words_repeat_and_forgotten_when_they_are_too_many(monkeypatch):
    asked: list[list[str]] = []

    def encode_batch(texts: list[str]) -> list[list[int]]:
        asked.append(sorted(texts))
        return [[len(text)] for text in texts]

    encoder = pieces.PieceEncoder(encode_batch)
    assert encoder.encode_batch(["one two, two\nthree", "two"]) == [[3, 5, 5, 5], [3]]
    assert asked == [[" two\n", " two,", "one", "three", "two"]]
    monkeypatch.setattr(pieces, "MAX_PIECES", 3)
    assert encoder.encode_batch(["two three"]) == [[3, 6]]
    assert asked[1] == [" three", "two"]


def test_specials_follow_the_learnt_tokens_in_nanochats_order(trained):
    assert [trained.special(name) for name in SPECIAL_TOKENS] == list(range(VOCAB - 9, VOCAB))
    assert trained.vocab_size == VOCAB
    assert trained.decode([trained.bos, *trained.encode("hi")]) == "<|bos|>hi"
    with pytest.raises(KeyError):
        trained.special("<|endoftext|>")


def test_numbers_split_into_at_most_two_digits(trained):
    assert [trained.decode([token]) for token in trained.encode("1024")] == ["10", "24"]


def test_an_id_outside_the_vocabulary_is_refused(trained):
    with pytest.raises(ValueError, match="ids 5 to 320 are not all in the vocabulary of 320"):
        trained.decode([5, VOCAB])


def test_training_reads_as_nanochat_does():
    texts = iter(["abcdef", "gh", "ijk", "never read"])
    assert list(tokenizer.training_texts(texts, max_chars=5, doc_cap=4)) == ["abcd", "gh"]
    assert next(texts) == "ijk"


def test_training_is_deterministic_across_processes(tmp_path):
    program = (
        "import sys, pathlib\nfrom tasks import tokenizer\nfrom tests.tasks.test_tokenizer import TEXTS, VOCAB\n"
        "tokenizer.train(TEXTS, VOCAB).save(pathlib.Path(sys.argv[1]))"
    )
    files = []
    for name, threads, hash_seed in [("a", "1", "1"), ("b", "2", "2")]:
        directory = tmp_path / name
        directory.mkdir()
        environment = {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", program, directory], env=environment, check=True, timeout=120)
        files.append([(directory / file).read_bytes() for file in ("tokenizer.json", "token_bytes.npy")])
    tokenizer.train(TEXTS, VOCAB).save(tmp_path)
    files.append([(tmp_path / file).read_bytes() for file in ("tokenizer.json", "token_bytes.npy")])
    assert files[0] == files[1] == files[2]


def test_a_corpus_too_small_for_the_vocabulary_is_an_error():
    with pytest.raises(InputError, match=r"yields a vocabulary of \d+ tokens where tokenizer.vocab_size=5000"):
        tokenizer.train(["a b c"], 5000)


def test_loading_names_the_file_that_is_missing_damaged_or_foreign(tmp_path):
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer"):
        tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer"):
        tokenizer.load(tmp_path)
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match=r"lacks <\|bos\|>"):
        tokenizer.load(tmp_path)


def corpus_of(path: Path, train: list[str], val: list[str]) -> FakeArtifact:
    for split, texts in (("train", train), ("val", val)):
        path.mkdir(exist_ok=True)
        writer = documents.ShardWriter(path / documents.shard_name(split, 0))
        for text in texts:
            writer.write(text.encode())
        writer.close()
    return FakeArtifact(path)


def test_the_stage_leaves_a_tokenizer_its_byte_table_and_a_report(tmp_path):
    corpus = corpus_of(tmp_path / "corpus", TEXTS, ["A boat is blue."])
    config = SimpleNamespace(
        tokenizer=SimpleNamespace(vocab_size=VOCAB, max_chars=10_000, doc_cap=40),
    )
    out = FakeWorkspace(tmp_path / "out")
    metrics = tokenizer.run(config, {"corpus": corpus}, out)
    assert sorted(p.name for p in out.path.iterdir()) == ["report.json", "token_bytes.npy", "tokenizer.json"]
    report = json.loads((out.path / "report.json").read_text())
    assert report["validation"]["bytes"] == 15
    assert report["validation"]["bytes_per_token"] == metrics["bytes_per_token"]
    assert metrics["training_characters"] == sum(len(text[:40]) for text in TEXTS)
    assert set(report["samples"]) == set(compression.SAMPLES)
    saved = np.load(out.path / "token_bytes.npy", allow_pickle=False)
    assert saved.dtype == np.int32
    assert (saved == tokenizer.load(out.path).token_bytes).all()


def test_a_stop_ends_the_training(tmp_path):
    corpus = corpus_of(tmp_path / "corpus", ["a b c"] * 10_000, ["a"])
    out = FakeWorkspace(tmp_path / "out")
    out.stop.request("preempted")
    config = SimpleNamespace(tokenizer=SimpleNamespace(vocab_size=270, max_chars=10**9, doc_cap=40))
    with pytest.raises(Preempted):
        tokenizer.run(config, {"corpus": corpus}, out)


def test_the_counts_of_gpt2_in_the_report_are_its_own(shared_data):
    folder = shared_data / "data/tokenizers/gpt2"
    gpt2 = tokenizers.ByteLevelBPETokenizer(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    assert {kind: len(gpt2.encode(text).ids) for kind, text in compression.SAMPLES.items()} == compression.GPT2_TOKENS
