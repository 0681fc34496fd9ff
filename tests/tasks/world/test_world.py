"""What the sample world promises to those who use it."""

import hashlib
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from conf.schema import World
from tasks.calculator import calculate
from tasks.world import chat_tasks, conversations, documents
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
            timeout=60,
        ).stdout
        for hash_seed in ("0", "1", "random")
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


def test_a_choice_asks_for_the_letter_of_the_right_option():
    island = build(World(), 0)
    for question in chat_tasks(World(), 0)["world_choices"]:
        *lines, form = question.conversation["messages"][0]["content"].splitlines()
        options = dict(line.removeprefix("- ").split("=")[::-1] for line in lines)
        assert tuple(options) == question.letters
        (fact,) = [f for f in island.known if f.say(f.held_question) == form]
        assert options[question.answer] == fact.object


def test_checks_are_true_as_often_as_false_and_say_so_rightly():
    island = build(World(), 0)
    facts = {f.say(f.held_check, obj): (f, obj) for f in island.known for obj in f.pool}
    claims = 0
    for question in chat_tasks(World(), 0)["world_checks"]:
        fact, claimed = facts[question.conversation["messages"][0]["content"]]
        claims += fact.object == claimed
        verdict = "yes" if fact.object == claimed else "no"
        assert question.answer == f"{fact.answer[:-1]}, so {verdict}."
    assert 0.4 < claims / len(chat_tasks(World(), 0)["world_checks"]) < 0.6
