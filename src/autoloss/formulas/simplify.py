"""What the paper's authors did by hand (Appendix B): a shorter formula with the same value and the same gradient."""

from __future__ import annotations

from collections.abc import Mapping

from autoloss.errors import unknown
from autoloss.formulas.notations import LATEX, TEXT, Notation
from autoloss.formulas.rewriting import Rewriter, shared_rewriter
from autoloss.formulas.terms import Term, find_own_operators, to_term
from autoloss.space.activated import ActivatedBranch
from autoloss.space.boxes import BoxRegression
from autoloss.space.expression import Expression
from autoloss.space.form import BranchForm
from autoloss.space.loss_text import MAIN, join_branches
from autoloss.space.options import ACTIVATIONS, PAIR_KERNELS, Activation, Kernel
from autoloss.space.pairs import PairBranch
from autoloss.space.parsing import MAXIMUM_DEPTH, parse
from autoloss.space.ranges import BINARY, REAL, Range
from autoloss.space.stored import find_ranges

KNOWN_ACTIVATIONS = (*ACTIVATIONS, "box", *PAIR_KERNELS.values())


def simplify(formula: Expression | Term | str, activation: Kernel = "softmax", *, one_hot: bool = False) -> Term:
    """Return a formula of no more nodes with the same value, and the same gradient with respect to the prediction.

    Each step is checked in double precision where leaves are 0, 1, nearly 0, and between, and so is the result. The gradient is
    that of the raw prediction: where an activation has slope 0, at p = 0 and 1, every finite gradient counts as equal.

    Args:
        formula: A tree, its text, or a term.
        activation: What makes `p`: after softmax and sigmoid it is in [0, 1], and so is `y`. With `none` nothing is known of
            them. The areas `i`, `u` and `e` are never negative, nor is the weight `w` of a pair.
        one_hot: `y` is exactly 0 or 1 everywhere: classes, not soft labels.

    Returns:
        Equal terms for equal arguments; simplifying one again changes nothing. A tree deeper than text can be is returned
        unchanged.

    Raises:
        FormulaError: The text is not a formula.
        RequestError: The activation is unknown.

    >>> from autoloss import simplify
    >>> term = simplify("neg(mul(abs(y), log(p)))")
    >>> print(term, "|", term.unicode, "|", term.latex)
    -y * log(p) | −y·log(p) | -y \\cdot \\log\\left(p\\right)
    """
    if activation not in KNOWN_ACTIVATIONS:
        raise unknown("activation", str(activation), KNOWN_ACTIVATIONS)
    areas = BoxRegression().ranges
    pairs = [PairBranch(columns=("value", "weight"), activation=name, weigh="item") for name in PAIR_KERNELS]
    made = [branch for branch in pairs if branch.kernel == activation]
    plain: Activation = "softmax" if activation == "softmax" else "sigmoid" if activation == "sigmoid" else "none"
    known = made[0].ranges if made else ActivatedBranch(activation=plain).ranges
    read = parse(formula) if isinstance(formula, str) else formula
    term = read if isinstance(read, Term) else to_term(read)
    is_single = bool(term.leaves) and (bool(made) or term.leaves <= areas.keys())
    return simplify_term(term, {**areas, **known, **({"y": BINARY} if one_hot else {})}, is_single)


def simplify_loss(loss: Mapping[str, Expression], forms: Mapping[str, BranchForm] | None = None) -> dict[str, Term]:
    """Simplify each branch of a loss with what its form says of the leaves; without a form, p is a softmax."""
    found: dict[str, Term] = {}
    for name, tree in loss.items():
        form = (forms or {}).get(name)
        found[name] = (
            simplify(tree) if form is None else simplify_term(to_term(tree), find_ranges(form), form.is_single)
        )
    return found


def simplify_term(term: Term, ranges: Mapping[str, Range], is_single: bool = False) -> Term:
    """Simplify a term; a leaf without a range can take any value.

    Args:
        is_single: Whether leaves have one number for each item: one channel and no space.
    """
    if term.depth > MAXIMUM_DEPTH:
        return term
    known = {leaf: ranges.get(leaf, REAL) for leaf in sorted(term.leaves)}
    # A person's own operator is known by its name, which may mean another function the next time.
    if find_own_operators(term):
        return Rewriter(known, is_single).simplify(term)
    return shared_rewriter(tuple(known.items()), is_single).simplify(term)


def write_loss(terms: Mapping[str, Term], notation: Notation = TEXT) -> str:
    """Write the formula of each branch, `rpn_cls: −y·log(p); rpn_reg: e / u`; a branch named `main` alone has no label."""
    texts = {name: term.write(notation) for name, term in terms.items()}
    if notation is LATEX and set(texts) != {MAIN}:
        return " \\\\\n".join(rf"\text{{{escape_latex(name)}: }} {text}" for name, text in texts.items())
    return join_branches(texts)


def escape_latex(name: str) -> str:
    """Escape an identifier for LaTeX's text mode."""
    return name.replace("_", r"\_")
