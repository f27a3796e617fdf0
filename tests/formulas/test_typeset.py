"""A loss as LaTeX: as it was found, and simplified."""

from __future__ import annotations

import pytest

from autoloss.formulas.notations import UNICODE
from autoloss.formulas.simplify import simplify_loss, write_loss
from autoloss.run.export import to_latex
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss

AREAS = BranchForm(leaves=("i", "u", "e"), from_prediction=False)


def display(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    assert (lines[0], lines[-1]) == (r"\begin{align*}", r"\end{align*}")
    return lines[1:-1]


def test_the_tree_as_found_stands_above_its_simplified_form():
    lines = display(to_latex(Loss("neg(neg(neg(mul(y, log(p)))))"), {"main": BranchForm()}, title="", facts={}))
    assert len(lines) == 2
    assert lines[0].startswith("o &= ")
    assert lines[0].endswith(r" \\")
    assert lines[1] == r"&= -y \cdot \log\left(p\right)"


def test_what_cannot_be_shorter_stands_alone():
    lines = display(to_latex(Loss("-y * log(p)"), {"main": BranchForm()}, title="", facts={}))
    assert lines == [r"o &= -y \cdot \log\left(p\right)"]


def test_each_branch_has_a_line_of_its_own():
    loss = Loss({"rpn_cls": "-y * log(p)", "rpn_reg": "e / (i + u)"})
    lines = display(to_latex(loss, {"rpn_cls": BranchForm(), "rpn_reg": AREAS}, title="", facts={}))
    assert [line.partition(" &=")[0] for line in lines] == [r"o_{\text{rpn\_cls}}", r"o_{\text{rpn\_reg}}"]


def test_titles_and_facts_stay_in_comments():
    text = to_latex(Loss("p * y"), {"main": BranchForm()}, title="a\n\\input{x} {0}", facts={"run": "b\u2028\\end"})
    assert "% a \\input{x} {0}" in text.splitlines()
    assert "% run: b \\end" in text.splitlines()
    assert display(text) == [r"o &= p \cdot y"]


@pytest.mark.parametrize(
    ("text", "written", "latex"),
    [
        ("9.66 * neg(exp(mul(p, y)))", "−9.66·exp(p·y)", r"-9.66 \cdot \exp\left(p \cdot y\right)"),
        ("5.59 * inv(log(mul(y, p)))", "5.59 / log(p·y)", r"\frac{5.59}{\log\left(p \cdot y\right)}"),
        ("0.000001 * exp(mul(p, y))", "0.000001·exp(p·y)", r"0.000001 \cdot \exp\left(p \cdot y\right)"),
        ("inv(add(1, add(1, y)))", "1 / (y + 2)", r"\frac{1}{y + 2}"),
    ],
)
def test_the_factor_of_a_loss_is_a_short_decimal(text, written, latex):
    forms = {"main": BranchForm()}
    terms = simplify_loss(Loss.parse(text), forms)
    assert write_loss(terms, UNICODE) == written
    assert terms["main"].latex == latex
    assert simplify_loss(Loss.parse(write_loss(terms)), forms) == terms
