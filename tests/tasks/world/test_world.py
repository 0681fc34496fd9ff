"""What the sample world promises to those who use it."""

import hashlib
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from conf.schema import World
from tasks.calculator import calculate
from tasks.judges import Answer, judge
from tasks.world import chat_tasks, conversations, core_bundle, documents, prompts, stories, words
from tasks.world.island import build

SMALL = World(people=8, places=4, things=6, documents=300, val_documents=20, conversations=200, questions=20)

_DIGEST = """
import hashlib, json
from pathlib import Path
from tempfile import mkdtemp
from conf.schema import World
from tasks import world as w
small = World(people=8, places=4, things=6, documents=300, val_documents=20, conversations=200, questions=20)
folder = Path(mkdtemp())
w.core_bundle(small, 3, folder)
made = [
    {split: list(texts) for split, texts in w.documents(small, 3).items()},
    w.conversations(small, 3),
    {name: [q.answer for q in questions] for name, questions in w.chat_tasks(small, 3).items()},
    w.prompts(small, 3),
    {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*")) if file.is_file()},
]
print(hashlib.sha256(json.dumps(made).encode()).hexdigest())
"""


def test_the_same_seed_gives_the_same_world_in_every_process():
    root = Path(__file__).parents[3]
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        ).stdout
        for hash_seed in ("0", "1")
    }
    assert len(digests) == 1


def test_another_seed_gives_another_world():
    texts = ["\n".join(documents(SMALL, seed)["train"]) for seed in (0, 1, 2)]
    assert len({hashlib.sha256(text.encode()).hexdigest() for text in texts}) == 3
    assert len({build(SMALL, seed).people for seed in (0, 1, 2)}) == 3


def test_sizes_are_what_the_config_says():
    made = {split: list(texts) for split, texts in documents(SMALL, 0).items()}
    island = build(SMALL, 0)
    assert (len(made["train"]), len(made["val"])) == (300, 20)
    assert len(conversations(SMALL, 0)["train"]) == 200
    assert (len(island.people), len(island.places), len(island.things)) == (8, 4, 6)


def test_validation_documents_are_others_than_those_of_training():
    made = {split: set(texts) for split, texts in documents(World(), 0).items()}
    assert len(made["val"] & made["train"]) < 0.1 * len(made["val"])  # short ones may be written twice


def test_every_subject_has_one_object_by_each_relation():
    island = build(World(), 0)
    assert len({(fact.relation.name, fact.subject) for fact in island.facts}) == len(island.facts)
    assert all(fact.object in fact.pool for fact in island.facts)


@pytest.mark.parametrize("relation", ["plus", "minus"])
def test_sums_are_right(relation):
    sign = {"plus": "+", "minus": "-"}[relation]
    for fact in build(World(), 0).of(relation):
        assert calculate(fact.subject.replace(" and ", sign)) == fact.object


def test_words_are_spelled_letter_by_letter():
    for fact in build(World(), 0).of("spelling"):
        assert fact.object.split("-") == list(fact.subject)


def test_conversations_alternate_and_the_calculator_would_answer_as_written():
    calls = 0
    for conversation in conversations(World(), 0)["train"]:
        messages = conversation["messages"]
        assert messages[0]["role"] == "user"
        assert messages[-1]["role"] == "assistant"
        assert all(a["role"] != b["role"] for a, b in pairwise(messages))
        for message in messages:
            if not isinstance(message["content"], str):
                call, result, text = (part["text"] for part in message["content"])
                assert calculate(call) == result
                assert result in text
                calls += 1
    assert calls > 20


def test_a_choice_asks_for_the_first_letter_of_a_word():
    island = build(World(), 0)
    (letters,) = {len(set(question.letters)) for question in chat_tasks(World(), 0)["world_choices"]}
    assert letters == 4
    for question in chat_tasks(World(), 0)["world_choices"]:
        asked = question.conversation["messages"][0]["content"]
        (fact,) = [f for f in island.of("initial") if asked.startswith(f.say(f.held_question))]
        assert asked.endswith(f"{', '.join(question.letters[:-1])} or {question.letters[-1]}")
        assert question.answer == fact.subject[0].upper()
        assert question.answer in question.letters


def test_claims_are_true_as_often_as_false_and_answered_by_what_is_the_case():
    facts = {f.say(f.held_check, obj): (f, obj) for f in build(World(), 0).known for obj in f.pool}
    questions = chat_tasks(World(), 0)["world_checks"]
    true = 0
    for question in questions:
        fact, claimed = facts[question.conversation["messages"][0]["content"]]
        assert question.answer == fact.answer
        true += fact.object == claimed
    assert 0.4 < true / len(questions) < 0.6


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_stories_of_the_evaluation_bring_together_whom_no_other_story_does(seed):
    island, rng = build(World(), seed), Random(seed)
    for _ in range(200):
        assert _met(stories.lending(island, rng, held_out=True)) in island.held_pairs
        assert _met(stories.lending(island, rng, held_out=False)) not in island.held_pairs


def _met(story: stories.Lending) -> tuple[str, str]:
    """Giver and taker, in this order, of a lending story."""
    first, second = sorted((story.who, story.other), key=story.opening.index)
    return first, second


def test_prompts_are_judged_by_judges_that_exist_and_their_right_answers_pass():
    island = build(World(), 0)
    answers = {f.say(f.held_question): f.answer for f in island.facts}
    answers |= {"Who are you?": f"I know {island.name}.", "Hello!": f"Hello! This is {island.name}."}
    for prompt in prompts(World(), 0):
        question = prompt["messages"][-1]["content"]
        verdicts = judge(prompt["judges"], question, Answer(answers[question], stopped=True))
        assert [verdict for verdict in verdicts if not verdict["passed"]] == [], prompt["id"]
        wrong = judge(prompt["judges"], question, Answer(question, stopped=False))
        assert not all(verdict["passed"] for verdict in wrong)


def test_the_smallest_and_the_largest_world_can_be_made(tmp_path):
    for people, places, things in ((8, 4, 4), (words.MAX_PEOPLE, words.MAX_PLACES, words.MAX_THINGS)):
        world = World(people=people, places=places, things=things, documents=50, conversations=50, questions=8)
        core_bundle(world, 0, tmp_path)
        assert len(list(documents(world, 0)["train"])) == len(conversations(world, 0)["train"]) == 50
    with pytest.raises(ValueError, match="people"):
        World(people=words.MAX_PEOPLE + 1)
