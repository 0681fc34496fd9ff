"""Known failures of data stages, each named after its line in the project's list of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tokenizers

from conf.compose import compose
from conf.schema import Data, MixtureItem
from model.chat_format import SPECIAL_TOKENS, render
from model.packing import PackStats, pack_conversations, pack_documents
from tasks import compression, conversations, corpus, documents, tokenizer
from tasks.stage import InputError
from tasks.store.view import ConfigView
from tests.tasks.artifacts import FakeArtifact, FakeWorkspace

BOS = 0


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> FakeArtifact:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.train(["Answer Answer wer the boats boats", "größer, 漁船 🎣"], 280).save(folder)
    return FakeArtifact(folder)


@pytest.fixture
def tokens(vocabulary) -> tokenizer.Tokenizer:
    return tokenizer.load(vocabulary.path())


def talk(question: str, answer: str) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def build_conversations(vocabulary, tmp_path, records, **settings):
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    config = compose()
    config = replace(
        config,
        scale=replace(config.scale, seq_len=settings.pop("seq_len", 64)),
        sft=replace(config.sft, mixture=[MixtureItem(str(path))], val_share=0.1, **settings),
    )
    out = FakeWorkspace(tmp_path / "out")
    return conversations.run(ConfigView(config, conversations.STAGE), {"tokenizer": vocabulary}, out), out


def test_b26_rows_are_never_views_of_a_buffer_that_is_filled_again():
    for rows in (
        list(pack_documents([[i] * 3 for i in range(1, 40)], 7, BOS)),
        list(pack_conversations([([BOS, i], [0, 1]) for i in range(1, 40)], 7, BOS)),
    ):
        before = [row.copy() for row in rows]
        assert all(row.base is None for row in rows)
        rows[0][:] = 99
        assert all((row == copy).all() for row, copy in zip(rows[1:], before[1:], strict=True))


def test_b28_packing_keeps_no_state_that_a_resume_could_get_wrong():
    """Rows are made once and a run reads row numbers, so there is no iterator state; making them is repeatable."""
    docs = [[i] * (i % 13) for i in range(1, 200)]
    assert np.array_equal(list(pack_documents(docs, 9, BOS, 20)), list(pack_documents(iter(docs), 9, BOS, 20)))


def test_b29_a_document_longer_than_a_row_is_cropped_and_counted():
    stats = PackStats()
    rows = list(pack_documents([list(range(1, 101)), [7, 7]], 9, BOS, stats=stats))
    assert rows[0].tolist() == [BOS, 7, 7, BOS, 1, 2, 3, 4, 5, 6]
    assert (stats.cropped_pieces, stats.cropped_tokens) == (1, 94)


def test_b40_special_tokens_in_a_text_stay_text_also_after_a_reload(vocabulary, tokens):
    text = "<|assistant_end|><|user_start|> and <|bos|>"
    specials = {tokens.special(name) for name in SPECIAL_TOKENS}
    assert not specials & set(tokens.encode(text))
    assert tokens.decode(tokens.encode(text)) == text
    # The library forgets the flag, so without ours the file is as dangerous as it ever was.
    raw = tokenizers.Tokenizer.from_file(str(vocabulary.path("tokenizer.json")))
    assert not raw.encode_special_tokens
    assert specials & set(raw.encode(text).ids)


def test_b41_token_bytes_are_the_raw_bytes_and_specials_count_none(tokens):
    cut = tokens.encode("漁")[0]
    assert tokens.decode([cut]) == "\ufffd"
    assert tokens.token_bytes[cut] < len("\ufffd".encode())
    for text in ("größer, 漁船 🎣", "plain", "\ufffd"):
        assert tokens.token_bytes[tokens.encode(text)].sum() == len(text.encode())
    assert [tokens.token_bytes[tokens.special(name)] for name in SPECIAL_TOKENS] == [0] * 9
    assert (np.delete(tokens.token_bytes, [tokens.special(name) for name in SPECIAL_TOKENS]) > 0).all()


def test_b41_the_table_fits_vocabularies_of_others(shared_data):
    foreign = tokenizer.load(shared_data / "golden/core")
    for text in ("größer, 漁船 🎣", *compression.SAMPLES.values()):
        ids = foreign.encode(text)
        assert foreign.token_bytes[ids].sum() == len(text.encode())
        assert foreign.decode(ids) == text


def test_b42_a_lone_surrogate_stops_neither_tokenizer_nor_corpus(tokens, tmp_path):
    assert tokens.decode(tokens.encode("a\ud800b\udc00")) == "a\ufffdb\ufffd"
    assert tokens.encode_batch(["plain", "\ud83d\ude00"]) == [tokens.encode("plain"), tokens.encode("😀")]
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "half \\ud800 a pair"}\n{"text": "last"}\n')
    config = replace(compose(), data=Data("files", [str(path)]))
    out = FakeWorkspace(tmp_path / "out")
    metrics = corpus.run(ConfigView(config, corpus.STAGE), {}, out)
    assert list(documents.documents(out.artifact(), "train")) == ["half \ufffd a pair"]
    assert metrics["surrogates"] == 1


def test_b42_decoding_keeps_special_tokens(tokens):
    assert tokens.decode([tokens.bos, *tokens.encode("a"), tokens.special("<|user_end|>")]) == "<|bos|>a<|user_end|>"


@pytest.mark.parametrize(("overlong", "kept"), [("skip", 60), ("truncate", 100)])
def test_b43_conversations_longer_than_a_row_are_counted_and_never_clog(vocabulary, tmp_path, overlong, kept):
    """40 % of the mixture does not fit: every row still brings targets, and the others all arrive."""
    records = [talk(f"{i}", "boats " * (60 if i % 5 < 2 else 2)) for i in range(100)]
    metrics, out = build_conversations(vocabulary, tmp_path, records, overlong=overlong)
    assert metrics["overlong"] == 40
    assert metrics["train_conversations"] + metrics["val_conversations"] == kept
    rows = np.concatenate([np.load(path) for path in sorted(out.path.glob("train_*.rows.npy"))])
    assert ((rows[:, 1:] >= 0).sum(axis=1) > 0).all(), "a row without a target"


def test_b43_a_conversation_cut_before_its_answer_is_left_out_and_counted(vocabulary, tmp_path):
    records = [talk("boats " * 80, "yes"), *(talk(f"{i}", "yes") for i in range(20))]
    metrics, out = build_conversations(vocabulary, tmp_path, records)
    (source,) = json.loads((out.path / "conversations.json").read_text())["sources"]
    assert (source["overlong"], source["without_target"]) == (1, 1)
    assert metrics["train_conversations"] + metrics["val_conversations"] == 20


def test_b45_a_mixture_without_targets_is_an_error(vocabulary, tmp_path):
    with pytest.raises(InputError, match=r"hold no token to learn .* 5 longer than that, 5 left out for having no"):
        build_conversations(vocabulary, tmp_path, [talk("boats " * 80, "yes")] * 5)


def test_b45_a_mask_of_the_whole_conversation_would_be_noticed(vocabulary, tmp_path):
    records = [talk("How many boats are there?", f"{i}") for i in range(30)]
    metrics, _ = build_conversations(vocabulary, tmp_path, records)
    assert 0.05 < metrics["train_supervised_share"] < 0.5


def test_b46_the_first_answer_token_and_the_end_are_targets_in_the_packed_row(vocabulary, tokens, tmp_path):
    answer = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "wer"},
            {"type": "python", "text": "1+2"},
            {"type": "python_output", "text": "3"},
        ],
    }
    record = {"messages": [{"role": "user", "content": "Ans"}, answer]}
    _, out = build_conversations(vocabulary, tmp_path, [record, talk("a", "b")])
    rows = np.concatenate([np.load(path) for path in out.path.glob("*.rows.npy")]).reshape(-1)
    text = "".join(f"[{tokens.decode([word])}]" if word >= 0 else tokens.decode([~word]) for word in rows)
    learnt = "".join(f"[{tokens.decode([token])}]" for token in tokens.encode("wer"))
    call = "".join(f"[{tokens.decode([token])}]" for token in tokens.encode("1+2"))
    assert (
        f"<|user_end|><|assistant_start|>{learnt}[<|python_start|>]{call}[<|python_end|>]"
        "<|output_start|>3<|output_end|>[<|assistant_end|>]"
    ) in text


def test_b47_a_text_is_tokenized_in_one_piece_between_special_tokens(vocabulary, tokens):
    parts = [{"type": "text", "text": "Ans"}, {"type": "text", "text": "wer"}]
    record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": parts}]}
    assert tokens.encode("Answer") != tokens.encode("Ans") + tokens.encode("wer")
    ((_, batched),) = conversations.rendered_batches([("here", record, "messages")], tokens)
    assert batched == render(record, tokens)
    start = batched.ids.index(tokens.special("<|assistant_start|>"))
    assert batched.ids[start + 1 : -1] == tokens.encode("Answer")
