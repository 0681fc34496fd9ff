"""The bundle's layout, and that its baselines are what guessing gets."""

import csv
import json
import random
from collections import Counter
from statistics import mean

import pytest
import yaml

from conf.schema import World
from tasks.world import core_bundle
from tasks.world.bundle import TASKS


@pytest.fixture(scope="module", params=[0, 1, 2], ids="seed{}".format)
def bundle(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("bundle")
    core_bundle(World(), request.param, directory)
    return directory


def _examples(bundle, task) -> list[dict]:
    file = bundle / "eval_data" / task.category / f"{task.label}.jsonl"
    return [json.loads(line) for line in file.open(encoding="utf-8")]


def test_the_layout_is_that_of_the_published_bundle(bundle, shared_data):
    published = shared_data / "data" / "eval_bundle"
    with open(published / "eval_meta_data.csv", newline="", encoding="utf-8") as theirs:
        columns = next(csv.reader(theirs))
    with open(bundle / "eval_meta_data.csv", newline="", encoding="utf-8") as ours:
        assert next(csv.reader(ours)) == columns
    keys = {key for task in yaml.safe_load((published / "core.yaml").read_text())["icl_tasks"] for key in task}
    for task in yaml.safe_load((bundle / "core.yaml").read_text())["icl_tasks"]:
        assert set(task) <= keys
        assert (bundle / "eval_data" / task["dataset_uri"]).is_file()


def test_yaml_and_table_name_the_same_tasks_and_true_sizes(bundle):
    tasks = yaml.safe_load((bundle / "core.yaml").read_text())["icl_tasks"]
    with open(bundle / "eval_meta_data.csv", newline="", encoding="utf-8") as file:
        table = {row["Eval Task"]: row for row in csv.DictReader(file)}
    assert [task["label"] for task in tasks] == list(table) == [task.label for task in TASKS]
    for task in TASKS:
        assert int(table[task.label]["#datapoints"]) == len(_examples(bundle, task)) >= 16


def test_every_format_and_only_its_own_keys(bundle):
    keys = {
        "multiple_choice": {"query", "choices", "gold"},
        "schema": {"context_options", "continuation", "gold"},
        "language_modeling": {"context", "continuation"},
    }
    assert {task.kind for task in TASKS} == set(keys)
    for task in TASKS:
        for example in _examples(bundle, task):
            assert set(example) == keys[task.kind]


def _options(example: dict) -> list[str]:
    return example.get("choices") or example["context_options"]


@pytest.mark.parametrize("task", [t for t in TASKS if t.kind != "language_modeling"], ids=lambda t: t.label)
def test_right_options_are_spread_evenly_and_distinct(bundle, task):
    examples = _examples(bundle, task)
    golds = Counter(example["gold"] for example in examples)
    count = len(_options(examples[0]))
    assert task.baseline == round(100 / count)
    assert sorted(golds) == list(range(count))
    assert max(golds.values()) - min(golds.values()) <= 1
    for example in examples:
        assert len(set(_options(example))) == len(_options(example)) == count


@pytest.mark.parametrize("task", [t for t in TASKS if t.kind != "language_modeling"], ids=lambda t: t.label)
def test_a_fixed_taste_for_words_gets_the_baseline(bundle, task):
    """A model that prefers some options to others for their words alone, whatever is asked, must win nothing."""
    examples = _examples(bundle, task)
    vocabulary = sorted({option for example in examples for option in _options(example)})
    scores = []
    for seed in range(200):
        taste = dict(zip(vocabulary, random.Random(seed).sample(range(len(vocabulary)), len(vocabulary)), strict=True))
        picked = [max(range(len(_options(e))), key=lambda k: taste[_options(e)[k]]) for e in examples]
        scores.append(mean(choice == e["gold"] for choice, e in zip(picked, examples, strict=True)))
    assert mean(scores) == pytest.approx(task.baseline / 100, abs=0.04)
