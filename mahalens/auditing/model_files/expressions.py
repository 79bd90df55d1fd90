"""Which symbolic sizes of a program may reach torch, which evaluates them as Python text."""

from __future__ import annotations

import ast
import re

LONGEST = 4000  # characters of an expression
LARGEST_POWER = 64

_SYMBOL = re.compile(r"[a-z]{1,6}\d{1,9}")
_FUNCTIONS = frozenset(
    {
        "Abs",
        "Add",
        "And",
        "CeilDiv",
        "CeilToInt",
        "CleanDiv",
        "Eq",
        "Equality",
        "Float",
        "FloatPow",
        "FloatTrueDiv",
        "FloorDiv",
        "FloorToInt",
        "GreaterThan",
        "Identity",
        "IntTrueDiv",
        "Integer",
        "IsNonOverlappingAndDenseIndicator",
        "LShift",
        "LessThan",
        "Max",
        "Min",
        "Mod",
        "ModularIndexing",
        "Mul",
        "Ne",
        "Not",
        "Or",
        "Piecewise",
        "Pow",
        "PowByNatural",
        "PythonMod",
        "RShift",
        "Rational",
        "RoundDecimal",
        "RoundToInt",
        "StrictGreaterThan",
        "StrictLessThan",
        "ToFloat",
        "TruncToFloat",
        "TruncToInt",
        "Unequality",
        "Where",
        "ceiling",
        "floor",
    }
)
_CONSTANTS = frozenset({"True", "False", "oo", "int_oo", "true", "false"})
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})


def is_plain_expression(text: object) -> bool:
    """Whether a text is nothing but arithmetic of sizes, and so safe to evaluate.

    Names of sizes, numbers, arithmetic, comparisons and a list of known functions are; any
    attribute, index, other call or other text is not. Powers are small, so that evaluation ends.

    >>> is_plain_expression("Add(Integer(1), Symbol('s0', positive=True, integer=True))")
    True
    >>> is_plain_expression("2*s0 + 1"), is_plain_expression("().__class__")
    (True, False)
    >>> is_plain_expression("__import__('os').system('ls')")
    False
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        return False
    try:
        tree = ast.parse(text, mode="eval")
        return _plain(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _plain(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float, bool)
    if isinstance(node, ast.Name):
        return node.id in _CONSTANTS or _SYMBOL.fullmatch(node.id) is not None
    if isinstance(node, ast.Call):
        return _plain_call(node)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, (ast.Pow, ast.LShift)) and not _is_small(node.right):
            return False
        return _plain(node.left) and _plain(node.right)
    if isinstance(node, ast.UnaryOp):
        return _plain(node.operand)
    if isinstance(node, ast.Compare):
        return _plain(node.left) and all(map(_plain, node.comparators))
    if isinstance(node, ast.BoolOp):
        return all(map(_plain, node.values))
    return False


def _plain_call(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Name):
        return False
    name = call.func.id
    if name == "Symbol":
        return _plain_symbol(call)
    if name not in _FUNCTIONS:
        return False
    if name == "Float":  # sympy writes its digits as a text: Float('0.5', precision=53)
        return _plain_float(call)
    if call.keywords or (name in _POWERS and not (call.args and _is_small(call.args[-1]))):
        return False
    return all(map(_plain, call.args))


def _plain_symbol(call: ast.Call) -> bool:
    if len(call.args) != 1 or not isinstance(call.args[0], ast.Constant):
        return False
    name = call.args[0].value
    assumptions = (
        word.arg is not None
        and isinstance(word.value, ast.Constant)
        and type(word.value.value) is bool
        for word in call.keywords
    )
    return isinstance(name, str) and _SYMBOL.fullmatch(name) is not None and all(assumptions)


def _plain_float(call: ast.Call) -> bool:
    digits = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    if isinstance(digits, str) and not re.fullmatch(r"-?[0-9.]{1,40}(e[+-]?\d{1,3})?", digits):
        return False
    words = (
        word.arg == "precision" and isinstance(word.value, ast.Constant) for word in call.keywords
    )
    return type(digits) in (str, int, float) and len(call.args) == 1 and all(words)


def _is_small(node: ast.expr) -> bool:
    """Whether an exponent is a whole number of a size that cannot fill the memory."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        return node.func.id == "Integer" and _is_small(node.args[0])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_small(node.operand)
    return (
        isinstance(node, ast.Constant) and type(node.value) is int and (node.value <= LARGEST_POWER)
    )
