import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conf.compose import compose
from conf.schema import ShardsConfig
from model.checksum import row_checksums
from tasks import documents, shards, tokenizer
from tasks.stage import InputError, Preempted, StopSignal
from tasks.store.view import ConfigView
from tests.tasks.artifacts import FakeArtifact, FakeWorkspace

WORDS = ["harbour", "boat", "gull", "net", "rope", "sail", "tide", "crew", "deck", "mast"]
TEXTS = [" ".join(WORDS[(i * k) % 10] for k in range(3 + i * i % 41)) for i in range(120)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, FakeArtifact]:
    folder = tmp_path_factory.mktemp("inputs")
    corpus, vocabulary = folder / "corpus", folder / "tokenizer"
    corpus.mkdir()
    vocabulary.mkdir()
    for split, index, texts in [("train", 0, TEXTS[:60]), ("train", 1, TEXTS[60:110]), ("val", 0, TEXTS[110:])]:
        writer = documents.ShardWriter(corpus / documents.shard_name(split, index))
        for text in texts:
            writer.write(text.encode())
        writer.close()
    splits = {split: {"bytes": 1000} for split in ("train", "val")}
    (corpus / "corpus.json").write_text(json.dumps({"splits": splits}))
    tokenizer.train(TEXTS, 300).save(vocabulary)
    return {"corpus": FakeArtifact(corpus), "tokenizer": FakeArtifact(vocabulary)}


def pack(inputs, out: FakeWorkspace, seq_len: int = 16, **settings):
    config = compose()
    config = replace(config, scale=replace(config.scale, seq_len=seq_len), shards=ShardsConfig(**settings))
    return shards.run(ConfigView(config, shards.STAGE), inputs, out)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_rows_hold_the_documents_and_carry_their_checksums(inputs, tmp_path):
    out = FakeWorkspace(tmp_path)
    metrics = pack(inputs, out, buffer_docs=10)
    index = json.loads((tmp_path / "shards.json").read_text())
    assert (index["seq_len"], index["vocab_size"]) == (16, 300)
    assert [entry["name"] for entry in index["train"]] == ["train_00000", "train_00001"]
    bos = tokenizer.load(inputs["tokenizer"].path()).bos
    total = 0
    for entry in [*index["train"], *index["val"]]:
        rows = np.load(tmp_path / f"{entry['name']}.rows.npy", allow_pickle=False)
        assert rows.dtype == np.uint16
        assert rows.shape == (entry["rows"], 17)
        assert (rows[:, 0] == bos).all()
        assert (np.load(tmp_path / f"{entry['name']}.sums.npy") == row_checksums(rows)).all()
        total += len(rows)
    assert total == metrics["train_rows"] + metrics["val_rows"]
    assert metrics["train_tokens"] == 16 * metrics["train_rows"]
    assert metrics["train_utilisation"] == metrics["val_utilisation"] == 1
    assert 0 < metrics["train_crop_share"] < 1


def test_a_split_document_keeps_every_token(inputs, tmp_path):
    vocabulary = tokenizer.load(inputs["tokenizer"].path())
    texts = list(documents.read_shard(inputs["corpus"].path("train_00000.parquet")))
    expected = [token for text in texts for token in vocabulary.encode(text)]
    cropped = pack(inputs, FakeWorkspace(tmp_path / "crop"))
    split = pack(inputs, FakeWorkspace(tmp_path / "split"), long_documents="split")
    assert split["train_rows"] > cropped["train_rows"]
    assert split["train_crop_share"] < cropped["train_crop_share"]
    pieces = list(shards._pieces([np.array(vocabulary.encode(text)) for text in [*texts, ""]], 16))
    assert np.concatenate(pieces).tolist() == expected
    assert max(map(len, pieces)) == 16
    assert len(pieces[-1]) == 0


def test_a_vocabulary_beyond_16_bits_is_stored_in_32(inputs, tmp_path, monkeypatch):
    vocabulary = tokenizer.load(inputs["tokenizer"].path())
    vocabulary.vocab_size = 2**16 + 1
    monkeypatch.setattr(shards, "_loaded", lambda path: vocabulary)
    pack(inputs, FakeWorkspace(tmp_path))
    assert np.load(tmp_path / "train_00000.rows.npy").dtype == np.uint32


def test_the_bytes_do_not_depend_on_the_number_of_processes(inputs, tmp_path, monkeypatch):
    one, two = FakeWorkspace(tmp_path / "one"), FakeWorkspace(tmp_path / "two")
    pack(inputs, one, workers=1)
    monkeypatch.setattr(shards, "SHARD_BYTES", 100)
    pack(inputs, two, workers=2)
    assert content(one.path) == content(two.path)
    assert len(content(one.path)) == 10


def test_a_published_shard_is_not_made_again(inputs, tmp_path, monkeypatch):
    whole = FakeWorkspace(tmp_path / "whole")
    pack(inputs, whole)
    out = FakeWorkspace(tmp_path / "resumed")
    made, pack_shard = [], shards.pack_shard

    def stops_after_the_first(job, should_stop):
        made.append(job.name)
        if len(made) == 1:
            out.stop.request("preempted")
            return pack_shard(job, lambda: False)
        return pack_shard(job, should_stop)

    monkeypatch.setattr(shards, "pack_shard", stops_after_the_first)
    with pytest.raises(Preempted):
        pack(inputs, out)
    assert out.published == [f"train_00000{suffix}" for suffix in (".rows.npy", ".sums.npy", ".json")]
    out.stop = StopSignal()
    pack(inputs, out)
    assert made == ["train_00000", "train_00001", "val_00000"]
    assert content(out.path) == content(whole.path)
    assert out.events[-1]["step"] == out.events[-1]["total"] == 3


def test_a_stop_is_followed_within_a_shard(inputs, tmp_path):
    job = shards._job("train_00000", compose(), inputs, tmp_path)
    with pytest.raises(Preempted):
        shards.pack_shard(job, lambda: True)
    assert not list(tmp_path.iterdir())


def test_too_little_text_for_a_row_is_an_error(inputs, tmp_path):
    with pytest.raises(
        InputError, match=r"The val documents \([\d,]+ tokens\) do not fill one row of scale.seq_len=900"
    ):
        pack(inputs, FakeWorkspace(tmp_path), seq_len=900)
