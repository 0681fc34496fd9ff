import gzip
import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conf.compose import compose
from conf.schema import MixtureItem
from model.chat_format import SPECIAL_TOKENS, render
from model.checksum import row_checksums
from tasks import conversations, tokenizer
from tasks.chat_records import FORMATS, from_gsm8k, from_multiple_choice, multiple_choice_prompt
from tasks.mixture import Source, conversation_hash, mix
from tasks.stage import InputError
from tasks.store.view import ConfigView
from tests.tasks.artifacts import FakeArtifact, FakeWorkspace

SEQ_LEN = 48


def talk(*turns: str) -> dict:
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> FakeArtifact:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.train(["a b c 1 2 3 hello there"], 270).save(folder)
    return FakeArtifact(folder)


def write_lines(path, records) -> str:
    path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode()))
    return str(path)


def build(vocabulary, tmp_path, items, seq_len=SEQ_LEN, seed=0, **sft):
    config = compose([f"seed={seed}"])
    config = replace(
        config,
        scale=replace(config.scale, seq_len=seq_len),
        sft=replace(config.sft, mixture=items, **sft),
        store=replace(config.store, cache_dir=str(tmp_path / "cache")),
    )
    out = FakeWorkspace(tmp_path / "out")
    metrics = conversations.run(ConfigView(config, conversations.STAGE), {"tokenizer": vocabulary}, out)
    return metrics, json.loads((out.path / "conversations.json").read_text()), out


def packed(out: FakeWorkspace, vocabulary, split: str) -> list[tuple[list[int], list[int]]]:
    """(ids, mask) of every conversation in the rows of a split."""
    bos = tokenizer.load(vocabulary.path()).bos
    found = []
    for entry in json.loads((out.path / "shards.json").read_text())[split]:
        rows = np.load(out.path / f"{entry['name']}.rows.npy", allow_pickle=False)
        assert rows.dtype == np.int32
        assert rows.shape == (entry["rows"], SEQ_LEN + 1)
        assert (np.load(out.path / f"{entry['name']}.sums.npy") == row_checksums(rows)).all()
        for row in rows:
            tokens = np.where(row < 0, ~row, row)
            cuts = [*np.flatnonzero(tokens == bos), len(row)]
            for start, end in pairwise(cuts):
                if end - start > 1:
                    found.append((tokens[start:end].tolist(), (row[start:end] >= 0).astype(int).tolist()))
    return found


def test_rows_hold_what_the_template_renders(vocabulary, tmp_path):
    records = [
        talk(f"hello {i}", "there") if i % 2 else talk(f"a {i}", "b", "c", "1 2 3")["messages"] for i in range(40)
    ]
    path = write_lines(tmp_path / "a.jsonl.gz", records)
    metrics, report, out = build(vocabulary, tmp_path, [MixtureItem(path)], val_share=0.2)
    tokens = tokenizer.load(vocabulary.path())
    expected = sorted(
        tuple(map(tuple, render(FORMATS["messages"](record), tokens, max_tokens=None))) for record in records
    )
    train, val = packed(out, vocabulary, "train"), packed(out, vocabulary, "val")
    assert sorted((tuple(ids), tuple(mask)) for ids, mask in train + val) == expected
    assert (len(train), len(val)) == (metrics["train_conversations"], metrics["val_conversations"])
    assert 0 < len(val) < 20
    assert metrics["train_targets"] == sum(sum(mask) for _, mask in train)
    assert metrics["train_supervised_share"] == metrics["train_targets"] / (metrics["train_rows"] * SEQ_LEN)
    assert report["sources"][0] == {
        "path": path,
        "conversations": 40,
        "overlong": 0,
        "without_target": 0,
        "train": len(train),
        "val": len(val),
    }


def test_the_same_mixture_gives_the_same_bytes_and_another_seed_another_order(vocabulary, tmp_path):
    path = write_lines(tmp_path / "a.jsonl.gz", [talk(f"hello {i}", "there") for i in range(30)])
    outs = [build(vocabulary, tmp_path / str(i), [MixtureItem(path)], seed=i // 2)[2] for i in range(3)]
    first, second, other = ({p.name: p.read_bytes() for p in out.path.iterdir() if p.is_file()} for out in outs)
    assert first == second
    assert first["train_00000.rows.npy"] != other["train_00000.rows.npy"]
    assert first["val_00000.rows.npy"] == other["val_00000.rows.npy"]


def test_formats_files_and_the_sample_world_mix(vocabulary, tmp_path):
    chat = write_lines(tmp_path / "a.jsonl.gz", [talk(f"hello {i}", "there") for i in range(20)])
    sums = write_lines(
        tmp_path / "b.jsonl.gz", [{"question": f"{i} + 1?", "answer": f"<<{i}+1={i + 1}>>{i + 1}"} for i in range(9)]
    )
    table = pa.table({"question": ["a?"] * 9, "choices": [["b", "c"]] * 9, "answer": [1] * 9})
    pq.write_table(table, tmp_path / "c.parquet")
    mixture = [
        MixtureItem(chat, weight=1.5, limit=10),
        MixtureItem(sums, format="gsm8k"),
        MixtureItem(str(tmp_path / "c.parquet"), format="multiple_choice"),
        MixtureItem("world", limit=30),
    ]
    metrics, report, _ = build(vocabulary, tmp_path, mixture, seq_len=400)
    counts = [(source["conversations"], source["train"] + source["val"]) for source in report["sources"]]
    assert counts[0][0] == 20
    assert 14 <= counts[0][1] <= 15
    assert counts[1:3] == [(9, 9), (9, 9)]
    assert counts[3][1] == 30
    assert metrics["train_padding_share"] < 0.2


def test_a_tool_call_is_learnt_and_its_result_is_not(vocabulary, tmp_path):
    record = from_gsm8k({"question": "a?", "answer": "It is <<1+2=3>>3.\n#### 3"})
    assert record["messages"][1]["content"] == [
        {"type": "text", "text": "It is "},
        {"type": "python", "text": "1+2"},
        {"type": "python_output", "text": "3"},
        {"type": "text", "text": "3.\n#### 3"},
    ]
    tokens = tokenizer.load(vocabulary.path())
    ids, mask = render(record, tokens)
    learnt = tokens.decode([token for token, bit in zip(ids, mask, strict=True) if bit])
    assert learnt == "It is <|python_start|>1+2<|python_end|>3.\n#### 3<|assistant_end|>"


@pytest.mark.parametrize(
    "record",
    [
        {"question": "Which?", "choices": ["red", "blue"], "answer": 1},
        {"question": "Which?", "choices": ["red", "blue"], "answer": "B"},
        {"train": {"question": "Which?", "choices": ["red", "blue"], "answer": 1}},
        {"question": "Which?", "choices": {"text": ["red", "blue"], "label": ["1", "2"]}, "answerKey": "2"},
    ],
)
def test_multiple_choice_records_of_every_origin_are_asked_alike(record):
    user, assistant = from_multiple_choice(record)["messages"]
    assert user["content"] == multiple_choice_prompt("Which?", "AB", ["red", "blue"])
    assert "- red=A\n- blue=B\n" in user["content"]
    assert assistant["content"] == "B"


@pytest.mark.parametrize(
    ("form", "record", "sentence"),
    [
        ("messages", {"text": "a"}, "neither a list of messages nor an object"),
        ("messages", talk("a", "b")["messages"][1:], "message 0 is from 'assistant' where the user speaks"),
        ("messages", talk("a", "b", " ", "c"), "message 2 of the user has no text"),
        ("messages", talk("a"), "no message is from the assistant"),
        ("messages", {"messages": []}, "no message is from the assistant"),
        ("messages", {"messages": [{"role": "user", "content": 3}]}, "message 0 of the user has no text"),
        ("gsm8k", {"question": "a?"}, r"no text 'answer' in the record \('question'\)"),
        ("multiple_choice", {"question": "a?", "choices": ["b"], "answer": 0}, "not a list of 2 to 26"),
        ("multiple_choice", {"question": "a?", "choices": ["b", "c"], "answer": 2}, "the answer 2 is none of the 2"),
    ],
)
def test_a_malformed_conversation_is_told_with_file_and_line(vocabulary, tmp_path, form, record, sentence):
    good = {"messages": talk("a", "b"), "gsm8k": {"question": "a?", "answer": "b"}}.get(
        form, {"question": "a?", "choices": ["b", "c"], "answer": 0}
    )
    good = good["messages"] if form == "messages" else good
    path = write_lines(tmp_path / "a.jsonl.gz", [good, record])
    with pytest.raises(InputError, match=rf"a\.jsonl\.gz:2: .*{sentence}"):
        build(vocabulary, tmp_path, [MixtureItem(path, format=form)])


def test_a_file_of_an_unknown_kind_is_an_error(vocabulary, tmp_path):
    (tmp_path / "a.csv").touch()
    with pytest.raises(InputError, match=r"a\.csv: its ending is none of \.jsonl"):
        build(vocabulary, tmp_path, [MixtureItem(str(tmp_path / "a.csv"))])


def test_special_tokens_in_a_message_stay_text(vocabulary, tmp_path):
    path = write_lines(tmp_path / "a.jsonl.gz", [talk("<|assistant_end|>", "<|user_start|>"), talk("a", "b")])
    _, _, out = build(vocabulary, tmp_path, [MixtureItem(path)], seq_len=SEQ_LEN)
    tokens = tokenizer.load(vocabulary.path())
    specials = {tokens.special(name) for name in SPECIAL_TOKENS}
    for ids, _ in packed(out, vocabulary, "train") + packed(out, vocabulary, "val"):
        assert sum(token in specials for token in ids) == 5


def test_a_weight_is_a_number_of_epochs_and_validation_is_the_same_for_each():
    hashes = [conversation_hash(talk(f"a {i}", "b")) for i in range(200)]
    once, often = mix([Source(hashes)], 0.1, 0), mix([Source(hashes, weight=2.5)], 0.1, 0)
    assert sorted(once.val) == sorted(often.val)
    assert 8 <= len(once.val) <= 32
    assert sorted(once.train + once.val) == [(0, i) for i in range(200)]
    repeats = [often.train.count(place) for place in once.train]
    assert set(repeats) == {2, 3}
    assert repeats.count(3) == round(len(once.train) / 2)


def test_a_conversation_that_occurs_twice_is_on_one_side():
    hashes = [conversation_hash(talk(f"a {i}", "b")) for i in range(200)]
    both = mix([Source(hashes), Source(hashes[::-1], limit=150)], 0.1, 3)
    train = {([*hashes], hashes[::-1])[source][index] for source, index in both.train}
    val = {([*hashes], hashes[::-1])[source][index] for source, index in both.val}
    assert not train & val
    assert len(both.train) + len(both.val) == 350


def test_a_mixture_holds_out_at_least_one():
    assert mix([Source([2**63, 2**63 + 2, 2**63 + 1])], 1e-9, 0).val == [(0, 0)]
    assert mix([Source([])], 0.1, 0).train == []
