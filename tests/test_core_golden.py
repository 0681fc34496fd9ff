"""CORE example by example as nanochat computed it: 22 tasks, 8 examples each, from files to verdicts.

`$ENCORE_GOLDEN/core` if there is one, else the one beside the repository, with a bundle of the real tasks.
"""

import json
from pathlib import Path

import jax
import pytest
import yaml

from conf.schema import Mesh
from model.gpt import init
from model.recipe import Compute, GPTConfig, Recipe
from model.weights import import_nanochat
from tasks import tokenizer as tokenizers
from tasks.evaluation.bundle import open_bundle
from tasks.evaluation.scorer import Scorer, make_questions
from tasks.stage import StopSignal
from tasks.training.placement import Placement
from tasks.weights_files import read_tensors
from tests.model.engines import quick_compilation

RECIPE = Path(__file__).parents[1] / "conf/recipe/head.yaml"
EXAMPLES = 8
TOLERANCE = 2e-4  # relative, of a mean loss


@pytest.fixture(scope="module")
def folder(golden: Path, shared_data: Path) -> Path:
    return golden / "core" if (golden / "core").is_dir() else shared_data / "golden/core"


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict:
    return json.loads((folder / "core.json").read_text())


@pytest.fixture(scope="module")
def sources(expected: dict, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    location = str(shared_data / "data/eval_bundle")
    found = open_bundle(location, None, tmp_path_factory.mktemp("bundle"), StopSignal())
    assert [source.task.label for source in found] == list(expected)
    return {source.task.label: source for source in found}


@pytest.fixture(scope="module")
def questions(folder: Path, expected: dict, sources: dict) -> dict:
    tokenizer = tokenizers.load(folder / "tokenizer.json")
    made = {}
    for label, source in sources.items():
        examples = source.examples()
        assert len(examples) == expected[label]["n"]
        indices = [example["index"] for example in expected[label]["examples"]]
        asked = make_questions(source.task, examples, max(indices) + 1, tokenizer)
        made[label] = [asked[index] for index in indices]
    return made


@pytest.fixture(scope="module")
def verdicts(folder: Path, questions: dict) -> dict:
    plain = json.loads((folder / "model_config.json").read_text())
    recipe = Recipe.from_dict(yaml.safe_load(RECIPE.read_text()))
    config = GPTConfig(recipe, seq_len=plain.pop("sequence_len"), **plain)
    params, _ = import_nanochat(read_tensors(folder / "model.npz"), jax.eval_shape(lambda: init(config, 0)))
    scorer = Scorer(params, config, Compute(), Placement.choose(config, Mesh(1, 1, 1)), batch_tokens=8192)
    every = [question for asked in questions.values() for question in asked]
    with quick_compilation():
        judged = iter(scorer.verdicts(every))
    return {label: [next(judged) for _ in asked] for label, asked in questions.items()}


def test_core_golden_settings(expected: dict, sources: dict) -> None:
    for label, source in sources.items():
        assert source.task.kind == expected[label]["task_type"]
        assert source.task.num_fewshot == expected[label]["num_fewshot"]
        assert source.task.delimiter == expected[label]["continuation_delimiter"]


def test_core_golden_tokens_and_spans(expected: dict, questions: dict) -> None:
    for label, asked in questions.items():
        for question, example in zip(asked, expected[label]["examples"], strict=True):
            found = [len(ids) for ids in question.options], list(question.starts), list(question.ends)
            assert found == (example["tokens"], example["start"], example["end"]), f"{label} {example['index']}"
            assert question.rules == ()


def test_core_golden_losses_and_verdicts(expected: dict, verdicts: dict) -> None:
    compared = 0
    for label, judged in verdicts.items():
        for verdict, example in zip(judged, expected[label]["examples"], strict=True):
            assert verdict.losses == pytest.approx(example["mean_loss"], rel=TOLERANCE), f"{label} {example['index']}"
            assert verdict.correct == example["correct"], f"{label} {example['index']}"
            compared += 1
    assert compared == sum(len(task["examples"]) for task in expected.values()) >= 22 * EXAMPLES
