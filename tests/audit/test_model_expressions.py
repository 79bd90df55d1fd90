"""Which sizes of a program are plain arithmetic: only those are ever evaluated."""

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from mahalens.auditing.model_files.expressions import LONGEST, is_plain_expression

SYMBOLS = sympy.symbols("s0 s77 u1", integer=True, positive=True)


@pytest.mark.parametrize(
    "text",
    [
        "s0",
        "Symbol('s31', positive=True, integer=True)",
        "4*s0 - 1",
        "Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-3))",
        "Pow(Symbol('s0', integer=True), Integer(2))",
        "s0**2",
        "s0**-1",
        "FloorDiv(s0 + 1, 2)",
        "Max(1, s0)",
        "Eq(s0, 3)",
        "s0 < 3 and s0 > 1",
        "Float('0.5', precision=53)",
        "oo",
        "True",
        "-7",
    ],
)
def test_plain(text):
    assert is_plain_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "__import__('os').system('ls')",
        "().__class__.__bases__",
        "s0.args",
        "s0[0]",
        "'text'",
        "Symbol('a b')",
        "Symbol('__import__')",
        "Symbol(Symbol('s0'))",
        "Symbol('s0', positive=print())",
        "Symbol('s0', **{})",
        "Symbol(*[])",
        "Add(*[s0])",
        "Add(s0, evaluate=False)",
        "Integer('os')",
        "Float('exit()', precision=53)",
        "Float(s0)",
        "lambda: 0",
        "[s0 for s0 in s1]",
        "(s0 := 3)",
        "f'{s0}'",
        "sympify('1')",
        "eval('1')",
        "exit()",
        "open",
        "_",
        "S0__",
        "2**9999999",
        "Pow(Integer(9), Integer(99999))",
        "Pow(9, Pow(9, 9))",
        "Pow(9, s0)",
        "1 << 9999999",
        "1 if s0 else 2",
        "s0; s1",
        "(" * 3000 + "1" + ")" * 3000,
        "1" + "+1" * LONGEST,
        3,
        None,
        "1j",
        "b'x'",
        "...",
    ],
)
def test_not_plain(text):
    assert not is_plain_expression(text)


@given(
    st.recursive(
        st.sampled_from([*SYMBOLS, sympy.Integer(3), sympy.Rational(1, 2)]),
        lambda inner: st.tuples(st.sampled_from([sympy.Add, sympy.Mul, sympy.Max]), inner, inner),
        max_leaves=8,
    )
)
def test_what_sympy_writes_is_plain(tree):
    def built(node):
        return node[0](built(node[1]), built(node[2])) if isinstance(node, tuple) else node

    written = sympy.srepr(built(tree))
    assert is_plain_expression(written)


@given(st.text(alphabet="s0_.()'[]*+-,= :ePowx", max_size=30))
def test_any_text_is_judged(text):
    if is_plain_expression(text):
        assert "__" not in text
        assert "[" not in text
