"""The rules of CORE on cases small enough to check by hand. Equality with nanochat is test_core_golden's part."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.score import (
    Question,
    Task,
    centre,
    common_prefix,
    common_suffix,
    core,
    draw_shots,
    judge,
    make_question,
    render,
    shuffled,
    truncate_left,
)

CHOICE = Task("choice", "multiple_choice", 2, "\nAnswer: ", 0.25)
SCHEMA = Task("schema", "schema", 1, " ", 0.5)
WORDS = Task("words", "language_modeling", 1, " ", 0.0)
ids = st.lists(st.integers(0, 3), min_size=1, max_size=8).map(tuple)


def test_multiple_choice_prompts_end_in_each_choice_and_show_solved_examples_first():
    item = {"query": "Q: sky?", "choices": ["blue", "red"], "gold": 0}
    shot = {"query": "Q: grass?", "choices": ["pink", "green"], "gold": 1}
    start = "Q: grass?\nAnswer: green\n\nQ: sky?\nAnswer: "
    assert render(CHOICE, item, [shot]) == [start + "blue", start + "red"]


def test_schema_prompts_begin_with_each_context_and_share_the_continuation():
    item = {
        "context_options": ["The cup did not fit since the cup", "… since the box"],
        "continuation": "was big.",
        "gold": 0,
    }
    shot = {"context_options": ["A", "B"], "continuation": "c", "gold": 1}
    assert render(SCHEMA, item, [shot]) == [f"B c\n\n{context} was big." for context in item["context_options"]]


def test_language_modeling_trims_contexts_but_never_continuations():
    item = {"context": "\n one two ", "continuation": "three "}
    assert render(WORDS, item, [{"context": " a ", "continuation": " b"}]) == [
        "a  b\n\none two",
        "a  b\n\none two three ",
    ]


def test_shots_are_other_examples_drawn_by_index_alone():
    for index in (0, 7, 49):
        shots = draw_shots(index, 50, 10)
        assert shots == random.Random(1234 + index).sample([i for i in range(50) if i != index], 10)
        assert index not in shots
        assert len(set(shots)) == 10
    assert draw_shots(3, 50, 0) == []


def test_the_order_of_a_file_is_seeded_and_leaves_the_file_alone():
    file = list(range(20))
    expected = list(range(20))
    random.Random(1337).shuffle(expected)
    assert shuffled(file) == expected
    assert file == list(range(20))


@given(st.lists(ids, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_common_ends_are_what_all_share_and_no_more(sequences):
    for count, take in (
        (common_prefix(sequences), lambda s, n: s[:n]),
        (common_suffix(sequences), lambda s, n: s[len(s) - n :]),
    ):
        assert len({take(s, count) for s in sequences}) == 1
        longer = [take(s, count + 1) for s in sequences if len(s) > count]
        assert len(longer) < len(sequences) or len(set(longer)) > 1


def test_spans_by_kind():
    assert spans(make_question(CHOICE, 0, 1, [(9, 1, 2, 3), (9, 1, 4)])) == [(2, 4), (2, 3)]
    assert spans(make_question(SCHEMA, 0, 1, [(9, 1, 5, 6), (9, 2, 3, 5, 6)])) == [(2, 4), (3, 5)]
    question = make_question(WORDS, 0, None, [(9, 1), (9, 1, 7, 8)])
    assert (spans(question), question.options, question.gold) == ([(2, 4)], ((9, 1, 7, 8),), None)
    assert question.rules == ()


def test_cutting_from_the_left_moves_the_spans_along():
    question = Question(0, ((0, 1, 2, 3, 4, 5), (0, 1, 2)), (4, 1), (6, 3), gold=0)
    assert truncate_left(question, 6) is question
    cut = truncate_left(question, 4)
    assert cut.options == ((2, 3, 4, 5), (0, 1, 2))
    assert spans(cut) == [(2, 4), (1, 3)]
    assert (cut.truncated, cut.rules) == (True, ())


@pytest.mark.parametrize(
    ("losses", "choice"),
    [((2.0, 1.0, 3.0), 1), ((1.0, 1.0), 0), ((math.nan, 5.0), 1), ((math.nan, math.nan), None), ((math.inf, 2.0), 1)],
)
def test_the_lowest_mean_loss_wins_the_first_of_equals_and_never_a_nan(losses, choice):
    question = Question(0, ((0, 1),) * len(losses), (1,) * len(losses), (2,) * len(losses), gold=1)
    verdict = judge(question, losses, exact=False)
    assert verdict.choice == choice
    assert verdict.correct == (choice == 1)


def test_language_modeling_is_right_only_if_every_token_was_predicted():
    question = Question(0, ((0, 1),), (1,), (2,), gold=None)
    assert judge(question, [0.1], exact=True).correct
    assert not judge(question, [0.1], exact=False).correct


def test_guessing_is_zero_and_everything_right_is_one():
    assert centre(0.25, 0.25) == 0
    assert centre(1.0, 0.62) == 1
    assert centre(0.552294, 0.62) == pytest.approx(-0.178175, abs=1e-5)  # GPT-2 on BoolQ, as published
    assert core([0.5, -0.1]) == pytest.approx(0.2)


def spans(question):
    return list(zip(question.starts, question.ends, strict=True))
