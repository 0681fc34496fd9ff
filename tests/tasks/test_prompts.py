"""Judges see what they are there for, the prompt files are sound, and the stage puts base beside SFT."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conf import prompt_sets
from conf.compose import compose
from conf.errors import ConfigError
from model.chat_format import ASSISTANT_END, ASSISTANT_START, check_prompt, render_for_completion
from tasks import prompts
from tasks import tokenizer as tokenizers
from tasks.judges import JUDGES, Answer, judge
from tasks.prompt_changes import diff
from tasks.stage import InputError
from tasks.store.keys import payload
from tasks.store.view import ConfigView
from tests.model.engines import quick_compilation
from tests.tasks.artifacts import FakeArtifact, FakeWorkspace
from tests.tasks.test_chat import write_model

QUESTION = "What is the capital of France?"
LOOP = "the sea and the land " * 5

CASES: list[tuple[str, dict[str, Any], str, bool]] = [
    ("not_empty", {}, "Paris", True),
    ("not_empty", {}, " \n", False),
    ("no_echo", {}, "It is Paris.", True),
    ("no_echo", {}, "The capital of France is Paris.", True),
    ("no_echo", {}, QUESTION, False),
    ("no_echo", {}, "what is the capital of france? What is the capital of Spain?", False),
    ("no_echo", {}, "", True),
    ("no_repeat", {}, "First this, then that, then this again.", True),
    ("no_repeat", {}, "No, no, no!", True),
    ("no_repeat", {}, "b, a, n, a, n, a", True),
    ("no_repeat", {}, LOOP, False),
    ("no_repeat", {}, "It is: " + "very " * 9, False),
    ("no_repeat", {}, "ha" * 30, False),
    ("contains", {"any_of": ["Lyon", "Paris"]}, "I think it is PARIS.", True),
    ("contains", {"any_of": ["Lyon", "Paris"]}, "I do not know.", False),
    ("spells", {"word": "banana"}, "banana: b,a,n,a,n,a", True),
    ("spells", {"word": "banana"}, "I spell it B-A-N-A-N-A.", True),
    ("spells", {"word": "banana"}, "b a n a n", False),
    ("spells", {"word": "banana"}, "b a n a n a n a", False),
    ("spells", {"word": "banana"}, "banana", False),
    ("spells", {"word": "naïve"}, "n, a, ï, v, e", True),
    ("number", {"value": 42}, "12 plus 30 is 42.", True),
    ("number", {"value": 1200}, "It is 1,200", True),
    ("number", {"value": -2.5}, "-2.50", True),
    ("number", {"value": 42}, "42 is not the answer, 43 is", False),
    ("number", {"value": 42}, "forty-two", False),
]


@pytest.mark.parametrize(("name", "parameters", "text", "passed"), CASES)
def test_judges(name: str, parameters: dict[str, Any], text: str, passed: bool) -> None:
    assert judge([{"judge": name, **parameters}], QUESTION, Answer(text, True)) == [{"name": name, "passed": passed}]


def test_an_answer_that_never_stops_is_told() -> None:
    assert [judge([{"judge": "stops"}], QUESTION, Answer("x", s))[0]["passed"] for s in (True, False)] == [True, False]


def test_every_judge_has_a_case() -> None:
    assert {case[0] for case in CASES} | {"stops"} == JUDGES.keys()


@pytest.mark.parametrize("entry", [{"judge": "smells"}, {"judge": "spells"}, {"judge": "stops", "x": 1}, {}])
def test_a_judge_that_does_not_exist_is_an_error(entry: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="judge"):
        judge([entry], QUESTION, Answer("x", True))


def configured(*words: str) -> Any:
    return compose(["compute.compute_dtype=float32", *words])


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> FakeArtifact:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizers.train(["What is it? It is Paris, and this is the answer to what you ask."] * 20, 280).save(folder)
    return FakeArtifact(folder)


def test_all_prompts_are_sound(vocabulary: FakeArtifact) -> None:
    asked = prompts.gather(configured("prompts.sets=[general,world]"))
    tokenizer = tokenizers.load(vocabulary.path())
    assert len({prompt["id"] for prompt in asked}) == len(asked) > 15
    for prompt in asked:
        check_prompt(render_for_completion(prompt, tokenizer), tokenizer)
        assert prompt["messages"][-1]["role"] == "user"
        names = [verdict["name"] for verdict in judge(prompt["judges"], "x", Answer("y", True))]
        assert {"not_empty", "stops", "no_echo", "no_repeat"} <= set(names)


def test_sets_of_prompts_are_named_and_their_content_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'general'"):
        configured("prompts.sets=[generel]")
    monkeypatch.setattr(prompt_sets, "FOLDER", tmp_path)
    contents = []
    for text in ("{prompts: []}", "{prompts: [{id: x, messages: []}]}"):
        (tmp_path / "mine.yaml").write_text(text)
        config = configured("prompts.sets=[mine]")
        contents.append(payload(prompts.STAGE, config, {"base": "1", "sft": "2", "tokenizer": "3"}))
    assert contents[0] != contents[1]
    (tmp_path / "mine.yaml").write_text("[1, 2]")
    with pytest.raises(ConfigError, match=r"mine.yaml is no set of prompts"):
        prompt_sets.read("mine")


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with quick_compilation():
        yield


def test_base_stands_beside_sft(vocabulary: FakeArtifact, tmp_path: Path) -> None:
    """A base that goes round in a circle and an SFT model that says one word and stops."""
    tokenizer = tokenizers.load(vocabulary.path())
    start, end = tokenizer.special(ASSISTANT_START), tokenizer.special(ASSISTANT_END)
    [a], [b] = tokenizer.encode("a"), tokenizer.encode("b")
    inputs = {
        "base": write_model(tmp_path / "base", tokenizer, [start, a, b, a]),
        "sft": write_model(tmp_path / "sft", tokenizer, [start, b, end]),
        "tokenizer": vocabulary,
    }
    out = FakeWorkspace(tmp_path / "out")
    view: Any = ConfigView(configured("prompts.sets=[general]", "prompts.max_new_tokens=40"), prompts.STAGE)
    metrics = prompts.run(view, inputs, out)  # type: ignore[arg-type]
    results = json.loads((out.path / "results.json").read_text())
    assert metrics["prompts"] == len(results["prompts"])
    coffee = results["prompts"][0]
    assert coffee["prompt"] == "How do I make coffee?"
    assert (coffee["base"]["text"], coffee["base"]["stopped"]) == ("ab" * 20, False)
    assert (coffee["sft"]["text"], coffee["sft"]["stopped"]) == ("b", True)
    failed = {m: [v["name"] for v in coffee[m]["judges"] if not v["passed"]] for m in ("base", "sft")}
    assert failed == {"base": ["stops", "no_repeat", "contains"], "sft": ["contains"]}
    assert metrics["sft_judges_passed"] > metrics["base_judges_passed"]
    table = (out.path / "prompts.md").read_text()
    assert "| How do I make coffee? | " in table
    assert "✗ stops, no_repeat, contains | b<br>✗ contains |" in table
    # A pipe in a text would end its cell.
    entry = {"prompt": "a|b", "base": {"text": "x|\ny", "judges": []}, "sft": {"text": "", "judges": []}}
    assert prompts.to_markdown([entry]).splitlines()[-1] == "| a\\|b | x\\| y<br>✓ | (nothing)<br>✓ |"

    assert diff(results, results) == []
    later = json.loads(json.dumps(results))
    later["prompts"][0]["sft"] |= {"text": "Grind the beans."}
    later["prompts"][0]["sft"]["judges"][-1]["passed"] = True
    later["prompts"][0]["base"]["judges"][0]["passed"] = False
    gone = later["prompts"].pop()
    changes = diff(results, later)
    base, sft = (change for change in changes if change["id"] == "general/coffee")
    assert (base["broken"], base["mended"]) == (["not_empty"], [])
    assert (sft["before"], sft["after"], sft["mended"]) == ("b", "Grind the beans.", ["contains"])
    assert [(c["id"], c["model"], c["change"]) for c in changes[2:]] == [
        (gone["id"], "base", "gone"),
        (gone["id"], "sft", "gone"),
    ]
    assert {c["change"] for c in diff({"prompts": []}, results)} == {"new"}
