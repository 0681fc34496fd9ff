import gzip
import itertools
import json
from dataclasses import replace

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf import climbmix
from conf.compose import compose
from conf.errors import ConfigError
from conf.schema import Data, World
from tasks import corpus, documents
from tasks.digests import DigestSet, digest
from tasks.stage import InputError
from tasks.store.view import ConfigView
from tests.tasks.artifacts import FakeWorkspace


def build(tmp_path, data: Data, name: str = "corpus"):
    """The documents of both splits, corpus.json, metrics."""
    config = compose()
    config = replace(config, data=data, store=replace(config.store, cache_dir=str(tmp_path / "cache")))
    out = FakeWorkspace(tmp_path / name)
    metrics = corpus.run(ConfigView(config, corpus.STAGE), {}, out)
    made = out.artifact()
    splits = {split: list(documents.documents(made, split)) for split in ("train", "val")}
    return splits, json.loads((out.path / "corpus.json").read_text()), metrics, out


def write_lines(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def test_the_last_files_are_validation(tmp_path):
    for i in range(4):
        write_lines(tmp_path / f"{i}.jsonl", [f"document {i}.{j}" for j in range(3)])
    data = Data("files", [f"{tmp_path}/*.jsonl"], val_shards=2)
    splits, index, metrics, _ = build(tmp_path, data)
    assert splits["train"] == [f"document {i}.{j}" for i in (0, 1) for j in range(3)]
    assert splits["val"] == [f"document {i}.{j}" for i in (2, 3) for j in range(3)]
    assert metrics["train_documents"] == metrics["val_documents"] == 6
    assert metrics["train_bytes"] == 6 * len("document 0.0")
    assert [source["documents"] for source in index["sources"]] == [3, 3, 3, 3]


def test_named_validation_files_are_not_trained_on(tmp_path):
    for i in range(3):
        write_lines(tmp_path / f"{i}.jsonl", [f"document {i}"])
    data = Data("files", [f"{tmp_path}/*.jsonl"], [f"{tmp_path}/0.jsonl"], max_shards=1)
    assert build(tmp_path, data)[0] == {"train": ["document 1"], "val": ["document 0"]}


@pytest.mark.parametrize(("count", "held_out"), [(2, [1]), (49, [48]), (50, [49]), (149, [49, 99])])
def test_of_a_single_file_every_fiftieth_document_is_validation(tmp_path, count, held_out):
    texts = [f"document {i}" for i in range(count)]
    splits, *_ = build(tmp_path, Data("files", [write_lines(tmp_path / "a.jsonl", texts)]))
    assert splits["val"] == [texts[i] for i in held_out]
    assert splits["train"] == [text for i, text in enumerate(texts) if i not in held_out]


def test_each_document_is_there_once_and_none_of_validation_is_trained_on(tmp_path):
    write_lines(tmp_path / "a.jsonl", ["one", "two", "one", "held out", "", " \n", "\ud800 three"])
    write_lines(tmp_path / "b.jsonl", ["held out", "two", "held out", "four"])
    splits, index, metrics, _ = build(tmp_path, Data("files", [f"{tmp_path}/*.jsonl"]))
    assert splits == {"train": ["one", "\ufffd three"], "val": ["held out", "two", "four"]}
    assert index["splits"]["train"] == {"documents": 2, "bytes": 3 + 9, "duplicates": 3, "shards": 1}
    assert (metrics["val_duplicates"], metrics["empty"], metrics["surrogates"]) == (1, 2, 1)
    assert [(source["duplicates"], source["empty"]) for source in index["sources"]] == [(1, 0), (3, 2)]


def test_the_same_files_give_the_same_bytes(tmp_path):
    write_lines(tmp_path / "a.jsonl", [f"document {i} é" for i in range(200)])
    data = Data("files", [str(tmp_path / "a.jsonl")])
    first, second = build(tmp_path, data, "first")[3], build(tmp_path, data, "second")[3]
    names = sorted(p.name for p in first.path.iterdir() if p.is_file())
    assert names == ["corpus.json", "train_00000.parquet", "val_00000.parquet"]
    assert all((first.path / name).read_bytes() == (second.path / name).read_bytes() for name in names)


def test_a_large_split_becomes_several_shards_of_small_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "SHARD_BYTES", 1000)
    monkeypatch.setattr(documents, "ROW_GROUP_BYTES", 300)
    texts = [f"document {i:03d}" for i in range(250)]
    splits, index, _, out = build(tmp_path, Data("files", [write_lines(tmp_path / "a.jsonl", texts)]))
    assert splits["train"] == [text for i, text in enumerate(texts, 1) if i % 50]
    assert index["splits"]["train"]["shards"] == 3
    with pq.ParquetFile(out.path / "train_00000.parquet") as file:
        assert file.num_row_groups == 4
        assert file.metadata.row_group(0).num_rows == 25


def test_the_bytes_do_not_depend_on_the_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "PART_BYTES", 500)
    for i in range(5):  # each file repeats documents of the one before
        write_lines(tmp_path / f"{i}.jsonl", [f"document {j}" for j in range(20 * i, 20 * i + 30)])
    outs = []
    for processes in (1, 2):
        monkeypatch.setattr(corpus, "_processes", lambda paths, processes=processes: processes)
        splits, index, _, out = build(tmp_path, Data("files", [f"{tmp_path}/*.jsonl"]), f"corpus {processes}")
        outs.append({path.name: path.read_bytes() for path in out.path.iterdir() if path.is_file()})
    assert outs[0] == outs[1]
    assert splits["train"] == [f"document {i}" for i in range(80)]
    assert splits["val"] == [f"document {i}" for i in range(80, 110)]
    assert [source["duplicates"] for source in index["sources"]] == [0, 0, 10, 10, 20]


def test_files_are_read_through_fsspec_and_copied_once(tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/corpus/a.jsonl.gz", gzip.compress(b'{"body": "one"}\n{"body": "two"}\n'))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"body": ["three", None]}), sink)
    memory.pipe("/corpus/b.parquet", sink.getvalue().to_pybytes())
    data = Data("files", ["memory://corpus/*"], text_key="body")
    splits, index, _, out = build(tmp_path, data)
    assert splits == {"train": ["one", "two"], "val": ["three"]}
    assert index["sources"][0]["name"] == "memory:///corpus/b.parquet"
    assert len(list((tmp_path / "cache/sources").iterdir())) == 2
    assert out.events[-1]["step"] == out.events[-1]["total"] == 2


def test_the_sample_world_is_a_corpus(tmp_path):
    world = World(documents=300, val_documents=20, seed=1)
    splits, index, metrics, _ = build(tmp_path, Data("world", world=world))
    assert metrics["train_documents"] + index["splits"]["train"]["duplicates"] == 300
    assert not set(splits["train"]) & set(splits["val"])


@pytest.mark.parametrize(
    ("files", "data", "sentence"),
    [
        ({"a": []}, {"paths": []}, r"data\.paths is empty"),
        ({"a": ["x"], "b": ["y"]}, {"val_shards": 2}, r"data\.val_shards=2 leaves no file to train on"),
        ({"a": ["x"]}, {}, r"The train split holds no document \(of 1 files\)"),
        ({"a": ["x", "y"], "b": [" "]}, {}, r"The val split holds no document \(of 2 files\)"),
    ],
)
def test_a_corpus_that_cannot_be_split_is_an_error(tmp_path, files, data, sentence):
    for name, texts in files.items():
        write_lines(tmp_path / f"{name}.jsonl", texts)
    with pytest.raises(InputError, match=sentence):
        build(tmp_path, Data(kind="files", **({"paths": [f"{tmp_path}/*.jsonl"]} | data)))


def test_climbmix_is_as_many_shards_as_the_horizon_needs():
    words = ["data=climbmix", "eval.bundle=x", "chat.data_dir=x", "scale=d24"]
    config = compose([*words, "scale.ratio=9.5", "recipe=r4"])  # the published run: 6,612 steps of 2²⁰ tokens
    assert config.data.max_shards == 174 == -(-6612 * 2**20 // climbmix.TOKENS_PER_SHARD)
    paths = corpus.source_paths(config.data)
    assert len(paths["train"]) == 174
    assert paths["train"][173] == "hf://datasets/karpathy/climbmix-400b-shuffle/shard_00173.parquet"
    assert paths["val"] == ["hf://datasets/karpathy/climbmix-400b-shuffle/shard_06542.parquet"]
    assert compose([*words, "base.steps=1"]).data.max_shards == 1
    assert compose([*words, "data.max_shards=7"]).data.max_shards == 7
    with pytest.raises(ConfigError, match=r"data\.max_shards=6543: ClimbMix has 1 to 6,542"):
        corpus.source_paths(replace(config.data, max_shards=6543))


def test_only_a_world_corpus_takes_the_runs_seed():
    assert compose(["seed=7"]).data.world.seed == 7
    assert compose(["seed=7", "data.world.seed=3"]).data.world.seed == 3
    assert compose(["seed=7", "data=files", "data.paths=[a]"]).data.world.seed is None


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_digest_set_is_a_set(batches):
    digests, model = DigestSet(), set()
    for batch in batches:
        expected = []
        for value in batch:
            expected.append(value not in model)
            model.add(value)
        assert digests.add([digest(bytes([value])) for value in batch]).tolist() == expected
    assert len(digests) == len(model)


def test_digests_that_end_in_zero_bytes_stay_different():
    digests = DigestSet()
    zeros = [bytes(16), b"\x01" + bytes(15), b"\x00\x01" + bytes(14), b"\xff" * 15 + b"\x00", b"\xff" * 16]
    assert digests.add(zeros).all()
    assert not digests.add(zeros).any()


def test_runs_of_digests_stay_few():
    digests = DigestSet()
    for start in range(0, 3000, 10):
        digests.add([digest(i.to_bytes(2, "big")) for i in range(start, start + 10)])
    lengths = [len(run) for run in digests._runs]
    assert all(a >= 2 * b for a, b in itertools.pairwise(lengths))
    assert sum(lengths) == 3000
