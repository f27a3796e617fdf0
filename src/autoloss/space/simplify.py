"""What the paper's authors did by hand (Appendix B): a shorter formula with the same value and the same gradient.

term = simplify(parse("neg(mul(abs(y), log(p)))"))
str(term)       # "-y * log(p)", which `parse` reads
unicode(term)   # "−y·log(p)"
latex(term)     # r"-y \\cdot \\log\\left(p\\right)"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoloss.space import notation
from autoloss.space.branch import Activation
from autoloss.space.expression import Expression
from autoloss.space.form import BranchForm
from autoloss.space.loss import MAIN
from autoloss.space.parsing import parse
from autoloss.space.terms import Term, translated

Formula = Expression | Term | str


def simplify(formula: Formula, activation: Activation = "softmax", *, one_hot: bool = False) -> Term:
    """Return a formula of no more nodes with the same value and gradient.

    Args:
        formula: A tree, its text, or a term.
        activation: What makes `p`: after softmax and sigmoid it is in [0, 1], and so is `y`. With `none` nothing is known of
            them. The areas `i`, `u` and `e` are never negative.
        one_hot: `y` is exactly 0 or 1 everywhere: classes, not soft labels.
    """
    return _term(formula)


def simplified(loss: Mapping[str, Expression], forms: Mapping[str, BranchForm] | None = None) -> dict[str, Term]:
    """Simplify each branch of a loss, with what its form says of the leaves; softmax where there is no form."""
    return {name: simplify(tree) for name, tree in loss.items()}


def latex(formula: Formula | Mapping[str, Formula]) -> str:
    """Write a formula as it is, without simplifying it, for a formula environment of LaTeX; several branches line by line."""
    if isinstance(formula, Mapping):
        return _branches(formula, r"\text{{{0}: }} {1}", " \\\\\n", notation.latex)
    return notation.latex(_term(formula))


def unicode(formula: Formula | Mapping[str, Formula]) -> str:
    """Write a formula as it is, without simplifying it, as one line for readers; several branches with semicolons between."""
    if isinstance(formula, Mapping):
        return _branches(formula, "{0}: {1}", "; ", notation.unicode)
    return notation.unicode(_term(formula))


def _term(formula: Formula) -> Term:
    if isinstance(formula, Term):
        return formula
    return translated(parse(formula) if isinstance(formula, str) else formula)


def _branches(formulas: Mapping[str, Formula], template: str, separator: str, write: Callable[[Term], str]) -> str:
    if set(formulas) == {MAIN}:
        return write(_term(formulas[MAIN]))
    return separator.join(template.format(name, write(_term(formula))) for name, formula in formulas.items())
