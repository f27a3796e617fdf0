"""A person's own operators: tried before anything is drawn from them, each fault named."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.space.branch import Role
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.own_operators import build_operator_table, select_operators

ROLES = {"main": {"y": Role.TARGET, "p": Role.PREDICTION}}
AREAS = {"reg": {"i": Role.BOTH, "u": Role.BOTH}}
SINE = Operator("sine", 1, torch.sin)
LARGER = Operator("larger", 2, torch.maximum, r"\max({0}, {1})")
numbers = itertools.count()


def test_own_operators_stand_behind_table_1():
    assert list(build_operator_table([SINE, LARGER])) == [*OPERATORS, "sine", "larger"]
    assert list(build_operator_table()) == list(OPERATORS)


def test_latex_is_the_name_where_none_is_given():
    assert SINE.latex.format("x") == r"\mathrm{sine}\left(x\right)"
    assert Operator("soft_max", 2, torch.add).latex.format("a", "b") == r"\mathrm{soft\_max}\left(a, b\right)"
    assert LARGER.latex.format("a", "b") == r"\max(a, b)"


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (Operator("total", 1, torch.sum), "returns () of torch.float32; expected the operands' shape"),
        (Operator("halved", 1, lambda x: x.half()), "of torch.float16"),
        (Operator("number", 1, lambda x: 1.0), "returns float"),
        (Operator("plain_log", 1, torch.log), "is not finite"),
        (Operator("plain_sqrt", 1, lambda x: x.abs().sqrt()), "no finite gradient in each operand"),
        (Operator("first", 2, lambda x, y: x * 2), "no finite gradient in each operand"),
        (Operator("kept", 1, lambda x: x.detach()), "has no gradient"),
        (Operator("drops", 1, lambda x: F.dropout(x, 0.5)), "returns another result the second time"),
        (Operator("counts", 1, lambda x: x * next(numbers)), "returns another result the second time"),
        (Operator("two", 1, torch.maximum), "raises TypeError"),
        (Operator("images", 1, lambda x: F.avg_pool2d(x, 5)), "raises RuntimeError"),
        (Operator("in_place", 1, lambda x: x.mul_(2)), "changes its operands in place"),
        (Operator("log", 1, torch.sin), "The name 'log' is taken"),
        (Operator("p", 1, torch.sin), "The name 'p' is taken"),
        (torch.sin, "found a builtin_function_or_method"),
    ],
)
def test_what_cannot_be_an_operator_is_refused_with_its_fault(operator, message):
    with pytest.raises(RequestError, match=re.escape(message)):
        build_operator_table([operator])


def test_one_name_twice_is_refused():
    with pytest.raises(RequestError, match="The name 'sine' is taken"):
        build_operator_table([SINE, SINE])


def test_operators_that_are_off_are_not_drawn():
    left = select_operators(build_operator_table([SINE]), ["max_pool", "log"], ROLES)
    assert [operator.name for operator in left] == [n for n in [*OPERATORS, "sine"] if n not in ("max_pool", "log")]


def test_what_is_left_must_make_a_loss():
    with pytest.raises(RequestError, match=r"no operator named 'maxpool'. Did you mean 'max_pool'"):
        select_operators(OPERATORS, ["maxpool"], ROLES)
    with pytest.raises(RequestError, match="All operators are excluded"):
        select_operators(OPERATORS, list(OPERATORS), ROLES)
    with pytest.raises(RequestError, match="no operator of two operands is left"):
        select_operators(OPERATORS, ["add", "mul"], ROLES)
    assert select_operators(OPERATORS, ["add", "mul"], AREAS)
    assert select_operators(build_operator_table([LARGER]), ["add", "mul"], ROLES)
