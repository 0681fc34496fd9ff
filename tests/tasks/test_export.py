"""An export is read back before it counts, says where it came from, and can be imported again bit for bit."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from model.weights import flatten
from tasks import export, import_weights
from tasks.export import read_model
from tasks.stage import InputError
from tasks.store import Store
from tasks.store.inline import run_inline
from tasks.store.manifest import Manifest
from tasks.training.weights_io import load_model
from tasks.weights_files import read_tensors
from tests.tasks.artifacts import FakeArtifact
from tests.tasks.training.tiny import config


@pytest.fixture(scope="module")
def made(tmp_path_factory, golden):
    """A store with an imported model of 300 tokens and a tokenizer of as many."""
    folder = tmp_path_factory.mktemp("export")
    store = Store(folder / "runs", cache_dir=folder / "cache")
    archive = np.load(golden / "head.npz")
    np.savez(
        folder / "model.npz", **{k.removeprefix("params/"): archive[k] for k in archive if k.startswith("params/")}
    )
    (folder / "meta.json").write_text(json.dumps({"step": 3, "model_config": json.loads(str(archive["config/json"]))}))
    words = [str(folder / "model.npz"), "--config", str(folder / "meta.json"), "--recipe", "head"]
    assert import_weights.main([*words, "--store", str(folder / "runs")]) == 0
    (key,) = store.keys("import_weights")
    corpus = run_inline("corpus", config(), {}, store)
    tokenizer = run_inline("tokenizer", config("tokenizer.vocab_size=300"), {"corpus": corpus}, store)
    return SimpleNamespace(
        folder=folder, store=store, model=store.artifact("import_weights", key), tokenizer=tokenizer, words=words
    )


def scores(folder, stage: str, results: dict) -> FakeArtifact:
    """An artifact of an evaluation."""
    artifact = FakeArtifact(folder / stage)
    artifact.stage, artifact.where = stage, f"{stage}/{FakeArtifact.key}"
    artifact.manifest = Manifest(stage, 1, FakeArtifact.key, {}, {}, {})
    (folder / stage / "results.json").write_text(json.dumps(results))
    return artifact


def test_an_export_holds_the_model_and_says_what_it_scored_and_came_from(made, tmp_path):
    arc = {"accuracy": 0.4125, "n": 80, "ci95": [0.3, 0.5]}
    core = scores(tmp_path, "core", {"core": 0.2571, "ci95": [0.25, 0.26], "tasks": {"arc_easy": arc}})
    chat = scores(tmp_path, "chat", {"chatcore": None, "ci95": None, "tasks": {}})
    inputs = {"model": made.model, "tokenizer": made.tokenizer, "core": core, "chat": chat}
    exported = run_inline("export", config("name=tiny"), inputs, made.store)

    assert exported.names() == [
        "README.md", "audit.md", "config.json", "model.safetensors", "token_bytes.npy", "tokenizer.json",
    ]  # fmt: skip
    params, shape = load_model(made.model)
    again, shape_again, _ = read_model(exported.path())
    assert shape_again == shape
    for (path, tensor), (path_again, tensor_again) in zip(flatten(params).items(), flatten(again).items(), strict=True):
        assert path == path_again
        np.testing.assert_array_equal(tensor, tensor_again)
    assert exported.path("tokenizer.json").read_bytes() == made.tokenizer.path("tokenizer.json").read_bytes()
    assert json.loads(exported.path("config.json").read_text())["sequence_len"] == 256

    card = exported.path("README.md").read_text()
    assert "CORE: **0.2571** (95 % interval 0.2500 to 0.2600)" in card
    assert "| arc_easy | 0.4125 | 0.3000 to 0.5000 | 80 |" in card
    assert "ChatCORE: **–**" in card
    for artifact in (made.model, made.tokenizer):
        assert f"| {artifact.stage} | `{artifact.key}` | 1 |" in card
    assert f"`{made.tokenizer.manifest.inputs['corpus']['key']}`" in card  # what the tokenizer was made from
    assert exported.path("audit.md").read_text().count("| loaded |") == len(flatten(params))


def test_an_export_without_scores_says_so(made):
    exported = run_inline("export", config(), {"model": made.model, "tokenizer": made.tokenizer}, made.store)
    assert "None were measured for this export." in exported.path("README.md").read_text()


def test_an_export_that_reads_back_differently_fails(made, monkeypatch):
    def swapped(params):
        """What a wrong name table does: each tensor fits, and the model is another one."""
        tensors = honest(params)
        k, v = (f"transformer.h.0.attn.{name}.weight" for name in ("c_k", "c_v"))
        return tensors | {k: tensors[v], v: tensors[k]}

    honest = export.export_nanochat
    monkeypatch.setattr(export, "export_nanochat", swapped)
    inputs = {"model": made.model, "tokenizer": made.tokenizer}
    with pytest.raises(RuntimeError, match="other logits than the model"):
        run_inline("export", config("name=swapped"), inputs, made.store)


def test_the_tokenizer_must_be_the_models(made):
    corpus = made.store.artifact("corpus", made.tokenizer.manifest.inputs["corpus"]["key"])
    other = run_inline("tokenizer", config("tokenizer.vocab_size=290"), {"corpus": corpus}, made.store)
    with pytest.raises(InputError, match=r"vocabulary of 300, <artifact tokenizer/\w+> one of 290"):
        run_inline("export", config("name=other"), {"model": made.model, "tokenizer": other}, made.store)


def test_what_was_exported_can_be_imported_again(made, capsys):
    exported = run_inline(
        "export", config("name=again"), {"model": made.model, "tokenizer": made.tokenizer}, made.store
    )
    words = [str(exported.path("model.safetensors")), "--config", str(exported.path("config.json"))]
    assert import_weights.main([*words, "--store", str(made.folder / "others")]) == 0
    where = capsys.readouterr().out.split(":")[0]
    imported = Store(made.folder / "others", cache_dir=made.folder / "cache").artifact(*where.split("/"))
    ours, theirs = (read_tensors(artifact.path("weights.safetensors")) for artifact in (made.model, imported))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours.keys() | theirs.keys())


def test_an_import_that_does_not_fit_is_one_sentence_and_a_table(made, tmp_path, capsys):
    tensors = read_tensors(made.folder / "model.npz")
    del tensors["lm_head.weight"]
    np.savez(tmp_path / "broken.npz", **tensors, cos=np.ones(3, np.float32))
    assert import_weights.main([str(tmp_path / "broken.npz"), *made.words[1:], "--store", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "missing: lm_head.weight" in printed.err
    assert "non-parameter: cos" in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out.count("| loaded |") == len(tensors)
    store = Store(tmp_path, cache_dir=tmp_path / "cache")
    assert [store.lookup("import_weights", key) for key in store.keys("import_weights")] == [None]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["absent.npz", "--config", "meta.json", "--recipe", "head"], "absent.npz does not exist"),
        (["model.npz", "--config", "absent.json", "--recipe", "head"], "absent.json cannot be read"),
        (["model.npz", "--config", "meta.json"], "does not say which recipe"),
        (["model.npz", "--config", "meta.json", "--recipe", "r5"], "r5"),
        (["model.npz", "--config", "empty.json", "--recipe", "head"], "lacks 'sequence_len'"),
    ],
)
def test_a_wrong_import_command_is_one_sentence(made, monkeypatch, capsys, words, reason):
    (made.folder / "empty.json").write_text("{}")
    monkeypatch.chdir(made.folder)
    assert import_weights.main(words) == 2
    printed = capsys.readouterr().err
    assert reason in printed
    assert printed.count("\n") == 1
