"""The calculator knows arithmetic and counting, agrees with Python on both, and refuses everything else."""

import ast
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.calculator import MAX_CHARS, calculate


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("3*4", "12"),
        (" 12 / 5 ", "2.4"),
        ("6/2", "3.0"),
        ("(1+2)*-3", "-9"),
        ("1,234*2", "2468"),
        ("0.1+0.2", "0.30000000000000004"),
        ("'strawberry'.count('r')", "3"),
        ('"a,b,c".count(",")', "2"),
        ("'ab'.count('b') + 1", "2"),
        ("'naïve'.count('ï')", "1"),
    ],
)
def test_it_computes(expression: str, result: str) -> None:
    assert calculate(expression) == result


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "2**8",
        "9**9**9",
        "1//2",
        "5 % 2",
        "1/0",
        "1 << 40",
        "True + 1",
        "2j",
        "1 if 1 else 2",
        "x",
        "[1]",
        "1 == 1",
        "'a' * 10",
        "'a' + 'b'",
        "'a'",
        "'a'.upper()",
        "'ab'.count",
        "'ab'.count('a', 1)",
        "'ab'.count(sub='a')",
        "'{0.__class__}'.format(1)",
        "().__class__",
        "f'{1}'.count('1')",
        "b'ab'.count(b'a')",
        "'ab'.count(open('/etc/passwd').read())",
        "__import__('os').system('true')",
        "(lambda: 1)()",
        "1; 2",
        "1\n2",
        "(x := 3)",
        "1e999",
        "1e308*10",
        "nan",
        "0x10 @ 2",
        "\0",
        "'a'.count('",
        "<|python_end|>",
    ],
)
def test_it_refuses(expression: str) -> None:
    assert calculate(expression) is None


def test_time_and_size_are_bounded() -> None:
    began = time.process_time()
    digits = "9" * 60
    assert calculate(f"{digits}*{digits}*{digits}") is None
    assert calculate("(" * 120 + "1" + ")" * 120) in ("1", None)
    assert calculate("-" * 250 + "1") in ("1", None)
    assert calculate("1+" * 10_000 + "1") is None
    assert calculate("'" + "a" * MAX_CHARS + "'.count('a')") is None
    assert calculate("9" * 5000) is None
    assert time.process_time() - began < 5  # a bound on runaway work, not a benchmark


numbers = st.one_of(st.integers(0, 10**6), st.floats(0, 1e6, allow_nan=False).map(lambda x: round(x, 3)))
expressions = st.recursive(
    numbers.map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
    max_leaves=5,
)


@given(expressions)
@settings(max_examples=100, deadline=None)
def test_arithmetic_is_pythons(expression: str) -> None:
    got = calculate(expression)
    try:
        expected = str(eval(compile(ast.parse(expression, mode="eval"), "", "eval")))
    except ZeroDivisionError:
        expected = None
    assert got == expected or (got is None and len(expression) > MAX_CHARS)


@given(st.text(max_size=80))
@settings(max_examples=100, deadline=None)
def test_no_text_makes_it_fail(text: str) -> None:
    assert calculate(text) is None or isinstance(calculate(text), str)
