"""A formula in the form that people write: sums and products of many parts, natural powers, and numbers.

Trees have neither: `2` is `add(1, 1)` there, `p³` is `mul(square(p), p)`. Terms are what `simplify` works on; they are immutable,
equal by structure, evaluate to the value of the tree they come from, and their text parses back to such a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from typing import Literal, TypeVar, final

import torch
from markupsafe import Markup
from torch import Tensor

from autoloss.formulas.notations import LATEX, MATHML, TEXT, UNICODE, Notation, Written, opposite
from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.operators import OPERATORS, Operator, is_own, upcast
from autoloss.space.parsing import MAXIMUM_NUMBER, parse

T = TypeVar("T")

Head = Literal["number", "leaf", "sum", "product", "power", "call"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A node with what is below it; made by `number`, `variable`, `total`, `product`, `power` and `call`.

    Args:
        value: Of a number: exact where it is rational and small, floating point otherwise.
        name: Of a leaf; of a floating-point number the formula that it is the value of, such as `exp(1)`.
        exponent: Of a power.
        operator: Of a call: any row of Table 1 but `add`, `mul`, `neg` and `square`, or an operator of the user.
        size: Nodes of the formula as it is written: a minus or a fraction bar between two operands is one node, and so is a
            natural power or a number.
        key: Tells terms apart and orders them.
    """

    head: Head
    parts: tuple[Term, ...] = ()
    value: Fraction | float = Fraction(0)
    name: str = ""
    exponent: int = 0
    operator: Operator | None = None
    size: int = field(init=False)
    depth: int = field(init=False)
    key: str = field(init=False)

    def __post_init__(self) -> None:
        below = " ".join(part.key for part in self.parts)
        label = self.exponent or self.head
        if self.operator is not None:
            label = f"{'@' if self.is_call(self.operator.name) else '~'}{self.operator.name}"
        own = self.name or (str(self.value) if self.head == "number" else f"({label} {below})")
        object.__setattr__(self, "size", _count_nodes(self))
        object.__setattr__(self, "depth", 1 + max((part.depth for part in self.parts), default=0))
        object.__setattr__(self, "key", own)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Term) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        """Return text that `autoloss.parse` reads, wherever its limits on numbers and length allow."""
        return self.write(TEXT)

    def __repr__(self) -> str:
        return f"Term({str(self)!r})"

    @property
    def latex(self) -> str:
        """LaTeX without dollar signs."""
        return self.write(LATEX)

    @property
    def unicode(self) -> str:
        """One line for readers, `−y·log(p)`."""
        return self.write(UNICODE)

    @property
    def mathml(self) -> Markup:
        """A `math` element, which browsers display by themselves and screen readers read as its line of text."""
        inner = Markup(self.write(MATHML))
        return Markup('<math displaystyle="true" alttext="{}">{}</math>').format(self.unicode, inner)

    def write(self, notation: Notation) -> str:
        """Write the term in a notation."""
        return fold(self, lambda term, parts: _write(term, parts, notation)).text

    @property
    def leaves(self) -> frozenset[str]:
        """The names of the leaves in the term."""

        def join(term: Term, parts: list[frozenset[str]]) -> frozenset[str]:
            return frozenset({term.name}) if term.head == "leaf" else frozenset[str]().union(*parts)

        return fold(self, join)

    @property
    def called(self) -> Operator:
        """The operator of a call."""
        assert self.operator is not None
        return self.operator

    def is_call(self, name: str) -> bool:
        """Return True if the term is a call of this operator of Table 1."""
        return self.operator is not None and self.operator is OPERATORS.get(name)

    def expression(self) -> Expression:
        """Return the tree over Table 1's operators and the constant 1 that this is the readable form of."""
        return parse(str(self), leaves=self.leaves, operators={**OPERATORS, **find_own_operators(self)})

    def evaluate(self, leaves: Mapping[str, Tensor]) -> Tensor:
        """Compute the output tensor (N, C, H, W), as `Expression.evaluate` does."""
        tensors = {name: upcast(tensor) for name, tensor in leaves.items()}
        like = next(iter(tensors.values()))
        return fold(
            self, lambda term, parts: tensors[term.name] if term.head == "leaf" else evaluate_node(term, parts, like)
        )


def number(value: Fraction | int | float, name: str = "") -> Term:
    """Return a constant; a floating-point one needs the formula that it is the value of."""
    if isinstance(value, float):
        return Term("number", value=value, name=name)
    exact = Fraction(value)
    if max(abs(exact.numerator), exact.denominator) > MAXIMUM_NUMBER and name:
        return Term("number", value=float(exact), name=name)
    return Term("number", value=exact)


def variable(name: str) -> Term:
    """Return a leaf."""
    return Term("leaf", name=name)


def total(*parts: Term) -> Term:
    """Return the sum, largest parts first and a number last; nothing is computed."""
    ordered = sorted(parts, key=lambda part: (part.head == "number", -part.size, part.key))
    return ordered[0] if len(ordered) == 1 else Term("sum", tuple(ordered)) if ordered else ZERO


def product(*parts: Term) -> Term:
    """Return the product, numbers first, then from small to large; nothing is computed but factors of 1 left out."""
    kept = [part for part in parts if part != ONE]
    ordered = sorted(kept, key=lambda part: (part.head != "number", part.is_call("inv"), part.size, part.key))
    return ordered[0] if len(ordered) == 1 else Term("product", tuple(ordered)) if ordered else ONE


def power(base: Term, exponent: int) -> Term:
    """Return the power; 1 for the exponent 0, and the base for 1."""
    if exponent == 0:
        return ONE
    return base if exponent == 1 else Term("power", (base,), exponent=exponent)


def call(operator: Operator | str, *parts: Term) -> Term:
    """Return an operator of Table 1, or one of the user, applied to terms."""
    return Term("call", parts, operator=OPERATORS[operator] if isinstance(operator, str) else operator)


def to_term(expression: Expression) -> Term:
    """Return the tree as a term, node by node."""
    tree = expression.fold(lambda name: ONE if name == CONSTANT else variable(name), _convert_node)
    # The number as people read it: 0.25 is a quarter, not the nearest binary fraction.
    return tree if expression.factor == 1 else product(number(Fraction(str(expression.factor))), tree)


def _convert_node(operator: Operator, parts: list[Term]) -> Term:
    if is_own(operator):
        return call(operator, *parts)
    match operator.name:
        case "add":
            return total(*parts)
        case "mul":
            return product(*parts)
        case "neg":
            return product(MINUS, parts[0])
        case "square":
            return power(parts[0], 2)
        case _:
            return call(operator.name, *parts)


def fold(term: Term, join: Callable[[Term, list[T]], T], known: dict[str, T] | None = None) -> T:
    """Combine values from the leaves up to the root, each term once; `known` holds what is known by a term's key."""
    known = {} if known is None else known
    if term.key in known:
        return known[term.key]
    stack = [term]
    while stack:
        current = stack[-1]
        missing = [part for part in current.parts if part.key not in known]
        if missing:
            stack.extend(missing)
        else:
            stack.pop()
            if current.key not in known:
                known[current.key] = join(current, [known[part.key] for part in current.parts])
    return known[term.key]


def evaluate_node(term: Term, parts: list[Tensor], like: Tensor) -> Tensor:
    """Compute one node, which is no leaf, from the values of its parts."""
    match term.head:
        case "number":
            return torch.full_like(like, float(term.value))
        case "sum":
            return reduce(torch.add, parts)
        case "product":
            return reduce(torch.mul, parts)
        case "power":
            return parts[0].pow(term.exponent)
        case _:
            return term.called.function(*parts)


def split_coefficient(term: Term) -> tuple[Term, Term]:
    """Return the numerical factor and the rest."""
    if term.head == "number":
        return term, ONE
    if term.head == "product" and term.parts[0].head == "number":
        return term.parts[0], product(*term.parts[1:])
    return ONE, term


def list_factors(term: Term) -> tuple[Term, ...]:
    """Return the factors of a product, or the term itself."""
    return term.parts if term.head == "product" else (term,)


def is_negative(term: Term) -> bool:
    """Say whether the term is written with a minus in front."""
    return split_coefficient(term)[0].value < 0


def negate(term: Term) -> Term:
    """Return −term: signs change in its numbers, in those of each part of a sum."""
    if term.head == "sum":
        return total(*map(negate, term.parts))
    coefficient, rest = split_coefficient(term)
    name = opposite(coefficient.name) if coefficient.name else ""
    return product(number(-coefficient.value, name), *list_factors(rest))


def _write(term: Term, parts: list[Written], notation: Notation) -> Written:
    match term.head:
        case "number":
            return notation.write_number(term.value, term.name)
        case "leaf":
            return notation.write_leaf(term.name)
        case "sum":
            # A part without a minus comes first.
            return notation.write_sum(sorted(parts, key=lambda part: part.unsigned is not None))
        case "product":
            return notation.write_product(parts)
        case "power":
            return notation.write_power(parts[0], term.exponent)
        case _:
            return notation.write_call(term.called, parts)


def _count_nodes(term: Term) -> int:
    match term.head:
        case "number" | "leaf":
            return 1
        case "sum":
            signs = sum(part.head == "product" and part.parts[0] == MINUS for part in term.parts)
            lonely = all(map(is_negative, term.parts))
            return len(term.parts) - 1 + sum(part.size for part in term.parts) - signs + lonely
        case "product":
            below = [part for part in term.parts if part.is_call("inv")]
            has_numerator = len(below) + (term.parts[0] == MINUS) < len(term.parts)
            bars = len(below) if has_numerator else len(below) - 1
            return len(term.parts) - 1 + sum(part.size for part in term.parts) - bars - (term.parts[0] == MINUS)
        case _:
            return 1 + sum(part.size for part in term.parts)


def find_own_operators(term: Term) -> dict[str, Operator]:
    """Return the operators that are not of Table 1, by name."""
    found: dict[str, Operator] = {}

    def look(at: Term, below: list[None]) -> None:
        if at.operator is not None and not at.is_call(at.operator.name):
            found[at.operator.name] = at.operator

    fold(term, look)
    return found


ZERO, ONE, MINUS = number(0), number(1), number(-1)
