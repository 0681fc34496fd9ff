"""The wordings themselves: what is held out in one of them must not be readable in another one."""

import re
from collections import Counter
from itertools import product
from random import Random

import pytest

from tasks.world import words
from tasks.world.forms import RELATIONS

_FORMS = {
    (name, role, form)
    for name, relation in RELATIONS.items()
    for role in ("statements", "questions", "checks")
    for form in getattr(relation, role)
}


def _asked(role: str, form: str) -> str:
    """What an evaluation would show: a statement up to its object, a question or check as it is."""
    return form.removesuffix("{o}.").rstrip() if role == "statements" else form


def test_no_form_up_to_its_object_is_part_of_another_form():
    contained = [
        (form, other)
        for (name, role, form), (other_name, other_role, other) in product(_FORMS, _FORMS)
        if (name, role, form) != (other_name, other_role, other) and _asked(role, form) in other
    ]
    assert contained == []


@pytest.mark.parametrize("relation", RELATIONS.values(), ids=RELATIONS)
def test_every_relation_leaves_something_to_learn_from_when_one_form_is_held_out(relation):
    assert len(relation.completions) >= 3
    assert len(relation.questions) >= 4
    assert len(relation.checks) >= 2 or relation.kind == "word"
    assert len(set(relation.statements)) == len(relation.statements)


def test_forms_use_only_the_places_that_say_fills():
    for name, role, form in _FORMS:
        places = set(re.findall(r"{(\w+)}", form))
        assert places <= {"s", "o", "a", "b"}
        assert {"s"} <= places or {"a", "b"} <= places, (name, role, form)
        assert ("o" in places) == (role != "questions"), (name, role, form)


def test_nouns_take_the_article_a_and_names_are_no_part_of_each_other():
    nouns = (*words.TRADES, *words.PETS, *words.LANDMARKS, *words.THINGS)
    assert [noun for noun in nouns if noun[0] in "aeiou"] == []
    names = words.people_names(words.MAX_PEOPLE, Random(0)) + words.place_names(words.MAX_PLACES, Random(0))
    assert [(a, b) for a, b in product(names, names) if a != b and a in b] == []


def test_first_letters_are_spread_evenly():
    for names in (words.people_names(50, Random(0)), words.place_names(12, Random(0)), words.THINGS[:24]):
        counts = Counter(name[0] for name in names).values()
        assert max(counts) - min(counts) <= 1
