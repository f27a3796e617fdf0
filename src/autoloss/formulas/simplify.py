"""What the paper's authors did by hand (Appendix B): a shorter formula with the same value and the same gradient.

Rules are applied from the leaves up to the root, and each step is taken only if value and gradient stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import final

from autoloss.errors import unknown
from autoloss.formulas.notations import LATEX, TEXT, Notation
from autoloss.formulas.rules import rules_for
from autoloss.formulas.terms import Term, call, find_own_operators, fold, power, product, to_term, total
from autoloss.formulas.verification import Dual, Scene, are_equal, compute_dual, draw_scenes
from autoloss.space.activated import ActivatedBranch
from autoloss.space.boxes import BoxRegression
from autoloss.space.expression import Expression
from autoloss.space.form import ACTIVATIONS, PAIR_KERNELS, BranchForm, Kernel
from autoloss.space.loss_text import MAIN, join_branches
from autoloss.space.pairs import PairBranch
from autoloss.space.parsing import MAXIMUM_DEPTH, parse
from autoloss.space.ranges import BINARY, BOUNDS, LARGE, POSITIVE, REAL, Range, bound_power, bound_product, bound_sum

_PAIRS = [PairBranch(columns=("value", "weight"), activation=name, weigh="item") for name in PAIR_KERNELS]
_BRANCHES = [*(ActivatedBranch(activation=name) for name in ACTIVATIONS), BoxRegression(), *_PAIRS]
KNOWN: Mapping[Kernel | None, Mapping[str, Range]] = {branch.kernel: branch.ranges for branch in _BRANCHES}
"""What makes the leaves → what is known of them."""
KEPT = 20_000
"""Terms that a rewriter remembers before it starts anew; about 5 kB each."""


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
    if activation not in KNOWN:
        raise unknown("activation", str(activation), map(str, KNOWN))
    read = parse(formula) if isinstance(formula, str) else formula
    term = read if isinstance(read, Term) else to_term(read)
    is_single = bool(term.leaves) and (activation in PAIR_KERNELS.values() or term.leaves <= KNOWN["box"].keys())
    return simplify_term(term, {**KNOWN["box"], **KNOWN[activation], **({"y": BINARY} if one_hot else {})}, is_single)


def simplify_loss(loss: Mapping[str, Expression], forms: Mapping[str, BranchForm] | None = None) -> dict[str, Term]:
    """Simplify each branch of a loss with what its form says of the leaves; without a form, p is a softmax."""
    known = {name: (_find_ranges(form), form.is_single) for name, form in (forms or {}).items()}
    return {
        name: simplify_term(to_term(tree), *known[name]) if name in known else simplify(tree)
        for name, tree in loss.items()
    }


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
    return _share_rewriter(tuple(known.items()), is_single).simplify(term)


@lru_cache(maxsize=8)
def _share_rewriter(leaves: tuple[tuple[str, Range], ...], is_single: bool) -> Rewriter:
    return Rewriter(dict(leaves), is_single)


def write_loss(terms: Mapping[str, Term], notation: Notation = TEXT) -> str:
    """Write the formula of each branch, `rpn_cls: −y·log(p); rpn_reg: e / u`; a branch named `main` alone has no label."""
    texts = {name: term.write(notation) for name, term in terms.items()}
    if notation is LATEX and set(texts) != {MAIN}:
        return " \\\\\n".join(rf"\text{{{escape_latex(name)}: }} {text}" for name, text in texts.items())
    return join_branches(texts)


def escape_latex(name: str) -> str:
    """Escape an identifier for LaTeX's text mode."""
    return name.replace("_", r"\_")


@final
class Rewriter:
    """Simplifies terms over leaves of known ranges, and remembers what it has computed, verified and found.

    Args:
        is_single: Whether leaves have one number for each item: one channel and no space.
    """

    def __init__(self, leaves: Mapping[str, Range], is_single: bool = False) -> None:
        self._leaves = leaves
        # What an unbounded leaf is in practice, by which overflows are judged: logits, areas in pixels.
        self._usual = {
            name: Range(max(known.low, -30), min(known.high, 1e6 if known == POSITIVE else 30))
            for name, known in leaves.items()
        }
        self._scenes: tuple[Scene, ...] = draw_scenes(leaves, is_single)
        self.has_space = not is_single
        self.forget()

    def forget(self) -> None:
        """Empty what was computed for earlier terms."""
        self._duals: dict[str, tuple[Dual, ...]] = {}
        self._ranges: dict[str, Range] = {}
        self._sizes: dict[str, tuple[Range, bool]] = {}
        self._simple: dict[str, Term] = {}

    def simplify(self, term: Term) -> Term:
        """Return the simplified term; it has no more nodes, and its value and gradient are those of the given one."""
        if len(self._duals) > KEPT:
            self.forget()
        found = self._simplify_term(term)
        if not self.agree(term, found):
            # Every step held by itself; what follows, such as the logarithm of nearly 0, made a rounding error large.
            found = self._simplify_safely(term, lambda part: part, term)
        return found if found.size <= term.size else term

    def _simplify_term(self, term: Term) -> Term:
        """Simplify the parts, then the node."""
        known = self._simple.get(term.key)
        if known is None:
            parts = tuple(self._simplify_term(part) for part in term.parts)
            known = self._apply_rules(_rebuild(term, parts) if parts != term.parts else term)
            self._simple[term.key] = self._simple[known.key] = known
        return known

    def _apply_rules(self, term: Term) -> Term:
        for rule in rules_for(term):
            found = rule(term, self)
            if found is not None and found != term and self.agree(term, found):
                return self._simplify_term(found)
        return term

    def _simplify_safely(self, term: Term, put_back: Callable[[Term], Term], whole: Term) -> Term:
        """Simplify the largest parts that leave the whole as it is; `put_back` gives the whole with another term here."""
        found = self._simplify_term(term)
        if found != term and self.agree(whole, put_back(found)):
            return found
        parts = list(term.parts)
        for place, part in enumerate(term.parts):

            def inside(other: Term, place: int = place) -> Term:
                return put_back(_rebuild(term, (*parts[:place], other, *parts[place + 1 :])))

            parts[place] = self._simplify_safely(part, inside, whole)
        return _rebuild(term, tuple(parts))

    def bound(self, term: Term) -> Range:
        """Return the range of a term over the ranges of its leaves."""
        return fold(term, lambda node, parts: _bound_node(node, parts, self._leaves), self._ranges)

    def may_overflow(self, term: Term) -> bool:
        """Say whether the term, or what it is made of, can become infinite on usual leaves.

        Then 0 times it, or it minus itself, is no 0.
        """

        def join(node: Term, parts: list[tuple[Range, bool]]) -> tuple[Range, bool]:
            found = _bound_node(node, [known for known, _ in parts], self._usual)
            return found, not found.within(-LARGE, LARGE) or any(large for _, large in parts)

        return fold(term, join, self._sizes)[1]

    def is_constant_over(self, term: Term, mean: str) -> bool:
        """Say whether all elements that `mean` joins are equal: below are numbers and such means alone, or there is one."""
        if term.head == "number" or term.is_call(mean) or (mean == "mean_c" and not self.has_space):
            return True
        own = term.operator is None or term.is_call(term.operator.name)
        return term.head != "leaf" and own and all(self.is_constant_over(part, mean) for part in term.parts)

    def agree(self, first: Term, second: Term) -> bool:
        """Say whether two terms have the same value and derivatives on all scenes."""
        return all(are_equal(one, other) for one, other in zip(self._dual(first), self._dual(second), strict=True))

    def _dual(self, term: Term) -> tuple[Dual, ...]:
        def join(node: Term, parts: list[tuple[Dual, ...]]) -> tuple[Dual, ...]:
            given = enumerate(self._scenes)
            return tuple(compute_dual(node, [part[place] for part in parts], scene) for place, scene in given)

        return fold(term, join, self._duals)


def _rebuild(term: Term, parts: tuple[Term, ...]) -> Term:
    match term.head:
        case "sum":
            return total(*parts)
        case "product":
            return product(*parts)
        case "power":
            return power(parts[0], term.exponent)
        case "call":
            return call(term.called, *parts)
        case _:
            return term


def _bound_node(term: Term, parts: list[Range], leaves: Mapping[str, Range]) -> Range:
    """Return the range of a node from those of its parts."""
    match term.head:
        case "leaf":
            return leaves.get(term.name, REAL)
        case "number":
            return Range(float(term.value), float(term.value))
        case "sum":
            return bound_sum(*parts)
        case "product":
            return reduce(bound_product, parts)
        case "power":
            return bound_power(parts[0], term.exponent)
        case _:
            known = BOUNDS.get(term.called.name)
            return known(parts[0]) if known and term.is_call(term.called.name) else REAL


def _find_ranges(form: BranchForm) -> Mapping[str, Range]:
    """Return the values that the leaves can take, as far as that is known."""
    if form.from_prediction:
        binary = {"y": BINARY} if form.target_kind in ("one_hot", "binary") else {}
        return {**ActivatedBranch(activation=form.activation).ranges, **binary}
    return {name: Range.from_bounds(low, high, binary) for name, low, high, binary in form.bounds}
