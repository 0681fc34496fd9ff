"""Evaluation questions are not in the training text, and the training text answers them all (seeds 0, 1, 2)."""

import json
import re

from tasks.world import chat_tasks, core_bundle


def _asked(example: dict) -> list[str]:
    """What of a CORE example must be new: its query or context, or what a schema states when it is right."""
    if "context_options" in example:
        return [f"{example['context_options'][example['gold']]} {example['continuation']}"]
    return [example.get("query") or example["context"]]


def test_no_core_question_stands_in_the_training_text(known, tmp_path):
    core_bundle(known.world, known.seed, tmp_path)
    examples = [json.loads(line) for file in tmp_path.rglob("*.jsonl") for line in file.open(encoding="utf-8")]
    questions = {text for example in examples for text in _asked(example)}
    assert len(questions) > 500
    assert [question for question in questions if question in known.text] == []


def test_no_chat_question_stands_in_the_training_text(known):
    for name, questions in chat_tasks(known.world, known.seed).items():
        asked = {question.conversation["messages"][0]["content"] for question in questions}
        assert len(asked) >= 24, name
        assert [text for text in asked if text in known.text] == []


def test_a_question_with_its_options_taken_away_is_still_new(known):
    """The letters of a choice are drawn anew; without this check they alone could make it look unseen."""
    assert [fact for fact in known.island.facts if fact.say(fact.held_question) in known.text] == []


def test_the_training_text_tells_every_fact(known):
    assert [fact.answer for fact in known.island.facts if fact.answer not in known.text] == []


def test_the_training_text_uses_every_form_that_is_held_out_somewhere(known):
    forms = {form for fact in known.island.facts for form in (fact.held_completion, fact.held_question)}
    for form in forms:
        pattern = re.sub(r"{\w}", "[-\\\\w]+", re.escape(form).replace(r"\{", "{").replace(r"\}", "}"))
        assert re.search(pattern, known.text), form


def test_every_answer_of_the_evaluation_is_what_the_facts_say(known):
    truth = {fact.answer for fact in known.island.facts}
    for name, questions in chat_tasks(known.world, known.seed).items():
        assert all(question.kind == "choice" or question.answer in truth for question in questions), name
