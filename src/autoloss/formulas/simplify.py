"""What the paper's authors did by hand (Appendix B): a shorter formula with the same value and the same gradient.

term = simplify(parse("neg(mul(abs(y), log(p)))"))
str(term)       # "-y * log(p)", which `parse` reads
unicode(term)   # "−y·log(p)"
latex(term)     # r"-y \\cdot \\log\\left(p\\right)"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoloss.errors import unknown
from autoloss.formulas import notation
from autoloss.formulas.ranges import known_ranges
from autoloss.formulas.rewriting import Rewriter, rewriter
from autoloss.formulas.terms import Term, own_operators, translated
from autoloss.space.expression import Expression
from autoloss.space.form import BranchForm
from autoloss.space.loss import MAIN
from autoloss.space.options import ACTIVATIONS, Activation
from autoloss.space.parsing import MAXIMUM_DEPTH, parse

KNOWN_ACTIVATIONS = (*ACTIVATIONS, "box")

Formula = Expression | Term | str


def simplify(formula: Formula, activation: Activation = "softmax", *, one_hot: bool = False) -> Term:
    """Return a formula of no more nodes with the same value, and the same gradient with respect to the prediction.

    Each step is checked in double precision where leaves are 0, 1, nearly 0, and between, and so is the whole. The gradient is
    that of the raw prediction: where an activation has no slope, at p = 0 and 1, nothing that is finite passes.

    Args:
        formula: A tree, its text, or a term.
        activation: What makes `p`: after softmax and sigmoid it is in [0, 1], and so is `y`. With `none` nothing is known of
            them. The areas `i`, `u` and `e` are never negative.
        one_hot: `y` is exactly 0 or 1 everywhere: classes, not soft labels.

    Returns:
        The same for equal arguments, and unchanged when simplified again. A tree deeper than text can be is returned as it is.

    Raises:
        FormulaError: The text is no formula.
        RequestError: The activation is unknown.
    """
    if activation not in KNOWN_ACTIVATIONS:
        raise unknown("activation", str(activation), KNOWN_ACTIVATIONS)
    term = _term(formula)
    if term.depth > MAXIMUM_DEPTH:
        return term
    leaves = known_ranges(term.leaves, activation, one_hot)
    # An operator of the user is known by its name, which may mean another function the next time.
    kept = not own_operators(term)
    return (rewriter(tuple(leaves.items())) if kept else Rewriter(leaves)).shortest(term)


def simplified(loss: Mapping[str, Expression], forms: Mapping[str, BranchForm] | None = None) -> dict[str, Term]:
    """Simplify each branch of a loss, with what its form says of the leaves; softmax where there is no form."""
    known = forms or {}
    return {name: simplify(tree, _activation(known.get(name, BranchForm()))) for name, tree in loss.items()}


def _activation(form: BranchForm) -> Activation:
    """Return what is known of p and y: nothing where a branch makes its leaves in a way of its own."""
    return form.activation if form.from_prediction else "none"


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
