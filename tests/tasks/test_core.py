"""The core stage: whole on the sample world, continued after a stop, from every kind of bundle; and `compare`."""

import json
import shutil
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import jax
import numpy as np
import pytest

from conf.compose import compose
from conf.errors import ConfigError
from model.gpt import init
from model.recipe import GPTConfig
from tasks import compare, core, world
from tasks import tokenizer as tokenizers
from tasks.evaluation.bundle import open_bundle
from tasks.report_data import reference_columns
from tasks.stage import InputError, Preempted, StopSignal
from tasks.store.manifest import FileEntry, Manifest
from tasks.store.roots import sha256_file
from tasks.store.view import ConfigView
from tasks.training.weights_io import save_model
from tasks.weights_files import read_tensors, write_safetensors
from tests.model.engines import quick_compilation, recipe
from tests.tasks.artifacts import FakeArtifact, FakeWorkspace, RetriedArtifact

CONTEXT = 32  # tokens of the models below
SETTINGS = ("compute.compute_dtype=float32", "eval.bootstrap_samples=100", "eval.batch_tokens=4096")
SETTINGS += ("data.world.people=8", "data.world.places=4", "data.world.things=6", "data.world.questions=12")


@pytest.fixture(autouse=True, scope="module")
def quick():
    with quick_compilation():
        yield


def configured(*words):
    return ConfigView(compose([*SETTINGS, *words]), core.STAGE)


def write_bundle(folder):
    """Three tasks, one of each kind, with some twenty examples each."""
    name = [f"{first}{last}" for first in ("Mo", "Lu", "Ka", "Ti") for last in ("ra", "no", "li", "ssa", "tun")]
    colours = ["red", "green", "blue", "white"]
    pick = [
        {"query": f"Which colour does {n} like?", "choices": colours[: 2 + i % 3], "gold": i % 2}
        for i, n in enumerate(name)
    ]
    whose = [
        {
            "context_options": [f"{n} gave it to Bo since {who}" for who in (n, "Bo")],
            "continuation": "asked.",
            "gold": 1,
        }
        for n in name
    ]
    finish = [{"context": f"{n} likes the colour ", "continuation": colours[i % 4]} for i, n in enumerate(name)]
    for place, examples in {"know/pick": pick, "language/whose": whose, "know/finish": finish}.items():
        file = folder / f"eval_data/{place}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(example) + "\n" for example in examples))
    (folder / "core.yaml").write_text(
        "icl_tasks:\n"
        "- {label: pick, dataset_uri: know/pick.jsonl, num_fewshot: [3], icl_task_type: multiple_choice,\n"
        '   continuation_delimiter: "\\nAnswer: "}\n'
        "- {label: whose, dataset_uri: language/whose.jsonl, num_fewshot: [0], icl_task_type: schema}\n"
        "- {label: finish, dataset_uri: know/finish.jsonl, num_fewshot: [1], icl_task_type: language_modeling}\n"
    )
    (folder / "eval_meta_data.csv").write_text("Eval Task,Random baseline\npick,36\nwhose,50\nfinish,0\nother,1\n")
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("bundle") / "eval_bundle")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A tokenizer and two untrained models."""
    folder = tmp_path_factory.mktemp("inputs")
    texts = [
        text for split in world.documents(compose([*SETTINGS]).data.world, 0).values() for text in list(split)[:300]
    ]
    tokenizer = tokenizers.train(texts, 400)
    (folder / "tokenizer").mkdir()
    tokenizer.save(folder / "tokenizer")
    for seed in (0, 1):
        (folder / str(seed)).mkdir()
        config = GPTConfig(recipe("r4"), 400, seq_len=CONTEXT, n_layer=1, n_head=2, n_kv_head=2, n_embd=32)
        rng = np.random.default_rng(seed)
        like = jax.eval_shape(lambda config=config: init(config, 0))
        params = jax.tree.map(lambda x, rng=rng: (0.3 * rng.normal(size=x.shape)).astype(np.float32), like)
        save_model(folder / str(seed), params, {}, config)
    return {name: FakeArtifact(folder / name) for name in ("tokenizer", "0", "1")}


def run(inputs, bundle, path, *words, model="0", out=None):
    """A workspace in which the stage ran, and its metrics."""
    out = out or FakeWorkspace(path)
    roles = {"model": inputs[model], "tokenizer": inputs["tokenizer"]}
    return out, core.run(configured(f"eval.bundle={bundle}", *words), roles, out)


@pytest.fixture(scope="module")
def evaluated(inputs, bundle, tmp_path_factory):
    """Both models on the bundle."""
    return [run(inputs, bundle, tmp_path_factory.mktemp(model), model=model) for model in ("0", "1")]


def results(out):
    return json.loads((out.path / "results.json").read_text())


def records(out, label):
    return [json.loads(line) for line in (out.path / f"records/{label}.jsonl").read_text().splitlines()]


def check(out, metrics):
    """What results.json says is what the records add up to."""
    found = results(out)
    assert out.published == [f"records/{label}.jsonl" for label in found["tasks"]]
    for label, task in found["tasks"].items():
        lines = records(out, label)
        assert [line["id"] for line in lines] == list(range(task["n"]))
        assert task["accuracy"] == np.mean([line["correct"] for line in lines])
        assert task["centered"] == pytest.approx((task["accuracy"] - task["baseline"]) / (1 - task["baseline"]))
        assert task["ci95"][0] <= task["accuracy"] <= task["ci95"][1]
        for line in lines:
            assert len(line["losses"]) == len(line["tokens"]) == len(line["scored"])
            assert min(line["losses"]) > 0
            if line["gold"] is not None:
                assert line["choice"] == int(np.argmin(line["losses"]))
                assert line["correct"] == (line["choice"] == line["gold"])
    assert found["core"] == pytest.approx(np.mean([task["centered"] for task in found["tasks"].values()]))
    assert found["ci95"][0] <= found["core"] <= found["ci95"][1]
    assert (metrics["core"], metrics["examples"]) == (found["core"], sum(t["n"] for t in found["tasks"].values()))
    assert out.events[-1]["step"] == out.events[-1]["total"] == len(found["tasks"])


def test_every_task_has_a_score_an_interval_and_a_record_for_each_example(evaluated):
    for out, metrics in evaluated:
        check(out, metrics)
    (a, _), (b, _) = evaluated
    assert list(results(a)["tasks"]) == ["pick", "whose", "finish"]
    assert [line["choice"] for line in records(a, "pick")] != [line["choice"] for line in records(b, "pick")]


def test_an_untrained_model_guesses_on_the_sample_world(inputs, tmp_path):
    out, metrics = run(inputs, "world", tmp_path)
    check(out, metrics)
    assert len(results(out)["tasks"]) >= 12
    assert abs(metrics["core"]) < 0.25


def test_a_stopped_evaluation_continues_with_the_next_task_and_ends_the_same(inputs, bundle, evaluated, tmp_path):
    whole = evaluated[0][0]
    stopped = StoppedAfter(tmp_path, tasks=1)
    with pytest.raises(Preempted):
        run(inputs, bundle, None, out=stopped)
    assert stopped.published == ["records/pick.jsonl"]
    continued = FakeWorkspace(tmp_path)
    continued.published = list(stopped.published)
    run(inputs, bundle, None, out=continued)
    assert continued.published == whole.published
    assert continued.logged[0] == "1 of 3 tasks are there from an earlier attempt"
    for name in ("results.json", *whole.published):
        assert (continued.path / name).read_bytes() == (whole.path / name).read_bytes()


class StoppedAfter(FakeWorkspace):
    """A workspace that is asked to stop once so many tasks are published."""

    def __init__(self, path, tasks):
        super().__init__(path)
        self.tasks = tasks

    def publish(self, name):
        super().publish(name)
        if len(self.published) == self.tasks:
            self.stop.request("SIGTERM")


def test_long_prompts_are_counted_and_cut_only_if_asked(inputs, bundle, tmp_path):
    counts = {}
    for truncation in ("none", "left"):
        out, _ = run(inputs, bundle, tmp_path / truncation, f"eval.truncation={truncation}", "eval.tasks=[pick]")
        task, lines = results(out)["tasks"]["pick"], records(out, "pick")
        assert task["over_context"] == sum(line["over_context"] for line in lines) > 0
        assert (max(max(line["tokens"]) for line in lines) > CONTEXT) == (truncation == "none")
        counts[truncation] = task["truncated"], task["over_context"]
    assert counts["none"] == (0, counts["left"][1])
    assert counts["left"][0] == counts["left"][1]


def test_max_per_task_scores_fewer_of_the_same_questions(inputs, bundle, evaluated, tmp_path):
    out, _ = run(inputs, bundle, tmp_path, "eval.max_per_task=3", "eval.tasks=[pick]")
    whole = records(evaluated[0][0], "pick")[:3]
    for line, expected in zip(records(out, "pick"), whole, strict=True):
        assert line["losses"] == pytest.approx(expected["losses"], rel=1e-5)  # in other company: other rounding
        assert {k: v for k, v in line.items() if k != "losses"} == {k: v for k, v in expected.items() if k != "losses"}


def test_damaged_weights_are_an_error_not_a_bad_score(inputs, bundle, tmp_path):
    broken = tmp_path / "model"
    shutil.copytree(inputs["0"].path(), broken)
    tensors = read_tensors(broken / "weights.safetensors")
    write_safetensors(broken / "weights.safetensors", tensors | {"wte": np.full_like(tensors["wte"], np.nan)})
    with pytest.raises(InputError, match="damaged"):
        run(inputs | {"0": FakeArtifact(broken)}, bundle, tmp_path / "out", "eval.tasks=[finish]")


def test_a_foreign_tokenizer_is_refused(inputs, bundle, tmp_path):
    tokenizers.train(["a few words"], 270).save(tmp_path)
    with pytest.raises(InputError, match="vocabulary of 400"):
        run(inputs | {"tokenizer": FakeArtifact(tmp_path)}, bundle, tmp_path / "out")


# --- bundles


def opened(location, tmp_path, labels=None):
    return open_bundle(str(location), labels, tmp_path / "scratch", StopSignal())


def test_a_bundle_is_the_same_from_a_directory_a_zip_and_the_web(bundle, tmp_path):
    expected = [(source.task, source.examples(), source.digest()) for source in opened(bundle, tmp_path)]
    shutil.make_archive(str(tmp_path / "bundle"), "zip", bundle.parent)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *args: None
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for location in (tmp_path / "bundle.zip", f"http://127.0.0.1:{server.server_port}/bundle.zip"):
            found = [(source.task, source.examples(), source.digest()) for source in opened(location, tmp_path)]
            assert found == expected
        server.shutdown()


def test_a_bundle_lies_in_a_bucket_and_only_asked_for_files_are_fetched(bundle, gcs_root, tmp_path):
    from tasks.store.gcs import filesystem

    place = f"{gcs_root}/eval_bundle"
    for name in ("core.yaml", "eval_meta_data.csv", "eval_data/know/pick.jsonl"):
        filesystem().put_file(str(bundle / name), f"{place}/{name}".removeprefix("gs://"))
    (source,) = opened(place, tmp_path, ["pick"])
    assert source.examples() == opened(bundle, tmp_path, ["pick"])[0].examples()


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("core.yaml", "icl_task_type: schema", "icl_task_type: essay", "must be one of multiple_choice, schema"),
        ("core.yaml", "num_fewshot: [1]", "num_fewshot: []", "core.yaml is not a list icl_tasks"),
        ("core.yaml", "know/pick.jsonl", "../pick.jsonl", "leads out of the bundle"),
        ("core.yaml", "label: pick", "label: peck", "'peck' has no 'Random baseline'"),
        ("core.yaml", "label: whose", "label: pick", "task 'pick' comes twice"),
        ("eval_meta_data.csv", "Random baseline", "Baseline", "needs the columns"),
        ("eval_meta_data.csv", "whose,50", "whose,100", "not from 0 to below 100"),
        ("eval_data/know/pick.jsonl", '"gold": 1', '"gold": 9', r"pick.jsonl:2: 'gold' is 9"),
        ("eval_data/know/pick.jsonl", '"query"', '"question"', "needs 'query' of type str"),
        ("eval_data/know/finish.jsonl", "{", "", r"finish.jsonl:1: not JSON"),
    ],
)
def test_what_does_not_fit_the_format_is_named_with_its_place(bundle, tmp_path, name, old, new, message):
    damaged = tmp_path / "damaged"
    shutil.copytree(bundle, damaged)
    text = (damaged / name).read_text()
    assert old in text
    (damaged / name).write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message):
        _ = [source.examples() for source in opened(damaged, tmp_path)]


def test_missing_bundles_and_tasks_are_told_apart(bundle, tmp_path):
    with pytest.raises(InputError, match=r"no file core\.yaml"):
        opened(tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="Did you mean 'finish'"):
        opened(bundle, tmp_path, ["finnish"])


# --- compare


def test_two_runs_are_compared_example_by_example(evaluated, capsys):
    (a, _), (b, _) = evaluated
    assert compare.main([str(a.path), str(b.path), "--samples", "500", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["core"]["difference"] == pytest.approx(results(b)["core"] - results(a)["core"])
    assert found["core"]["ci95"][0] <= found["core"]["difference"] <= found["core"]["ci95"][1]
    assert found["tasks"].keys() == results(a)["tasks"].keys()
    assert found["left_out"] == {}
    assert compare.main([str(a.path), str(a.path)]) == 0
    table = capsys.readouterr().out
    assert "CORE (centred)" in table
    assert "…" not in table
    assert "+0.0000" in table


def test_tasks_on_other_data_are_left_out_and_other_settings_noted(evaluated, inputs, bundle, tmp_path, capsys):
    other = tmp_path / "bundle"
    shutil.copytree(bundle, other)
    file = other / "eval_data/know/finish.jsonl"
    file.write_text(file.read_text().replace("red", "pink"))
    cut, _ = run(inputs, other, tmp_path / "cut", "eval.truncation=left", "eval.tasks=[finish,whose]")
    assert compare.main([str(evaluated[0][0].path), str(cut.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["left_out"] == {"pick": "only in A", "finish": "different data files"}
    assert found["notes"] == ["truncation differs: none in A, left in B"]
    only, _ = run(inputs, other, tmp_path / "only", "eval.tasks=[finish]")
    assert compare.main([str(evaluated[0][0].path), str(only.path)]) == 2
    assert "no task in common" in capsys.readouterr().err


def test_files_that_a_second_attempt_made_are_read_by_their_names(inputs, bundle, evaluated, tmp_path, capsys):
    again = {role: RetriedArtifact(inputs[role], tmp_path / role) for role in ("0", "tokenizer")}
    out, _ = run(again, bundle, tmp_path / "out")
    assert records(out, "pick") == records(evaluated[0][0], "pick")

    files = {}
    for name in ("results.json", *(f"records/{label}.jsonl" for label in results(out)["tasks"])):
        file = (out.path / name).rename(out.path / f"{name}~2")
        files[name] = FileEntry(f"{name}~2", file.stat().st_size, sha256_file(file))
    manifest = Manifest("core", 1, "", {}, {}, files)
    manifest = replace(manifest, key=manifest.recomputed_key())
    stored = tmp_path / "runs" / "core" / manifest.key
    stored.parent.mkdir(parents=True)
    out.path.rename(stored)
    (stored / "manifest.json").write_bytes(manifest.to_bytes())
    assert compare.main([str(stored), str(evaluated[0][0].path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["core"]["difference"] == 0
    (stored / "results.json~2").write_text("{}")
    assert compare.main([str(stored), str(stored)]) == 2
    assert "results.json has 2 bytes instead of" in capsys.readouterr().err


def test_an_unknown_key_is_one_sentence(tmp_path, capsys):
    assert compare.main(["core/abc", "def", "--store", str(tmp_path)]) == 2
    assert "holds no CORE result" in capsys.readouterr().err


def test_references_are_complete_and_add_up():
    for name, scores in reference_columns().items():
        tasks = [score for label, score in scores.items() if label != "core"]
        assert len(tasks) == 22
        assert np.mean(tasks) == pytest.approx(scores["core"], abs=6e-4), name
