"""The calculator behind `<|python_start|> … <|python_end|>`: it computes, and never evaluates anything else.

What it knows: decimal numbers, `+ - * /`, parentheses, signs, and `.count("…")` on a string literal, which
is how the spelling tasks count letters. The text is parsed into a syntax tree and the tree is walked; there
is no `eval`, no name, no power, no other method. Length, digits and depth are bounded first, so that an
answer takes microseconds. Values follow Python (`7/2` is 3.5, `6/2` is 3.0), as in nanochat's tool.
"""

import ast
import operator
import warnings
from collections.abc import Callable

MAX_CHARS = 256  # longer than any expression of the training data
MAX_DIGITS = 64  # of an integer result; products cannot grow past it

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_UNARY: dict[type[ast.unaryop], Callable[[float], float]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(expression: str) -> str | None:
    """The result as text, or None where the expression is anything but a small calculation."""
    if len(expression) > MAX_CHARS or "\0" in expression:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # a model's odd escapes are no news for the log
            tree = ast.parse(_without_thousands_separators(expression.strip()), mode="eval")
        return str(_value(tree.body))
    except (_Refused, SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


class _Refused(Exception):
    """Outside the calculator's language."""


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left), _value(right)))
        case ast.UnaryOp(op, operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(text)), attr="count"),
            args=[ast.Constant(value=str(part))],
            keywords=[],
        ):
            return text.count(part)
    raise _Refused


def _bounded(value: float) -> float:
    if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
        raise _Refused
    if isinstance(value, float) and not abs(value) < float("inf"):
        raise _Refused
    return value


def _without_thousands_separators(expression: str) -> str:
    """`1,234 * 2` is how people write numbers; a comma inside a string literal is a letter like any other."""
    if any(quote in expression for quote in "'\""):
        return expression
    return expression.replace(",", "")
