"""First and second derivative of an element-wise formula by its prediction: arithmetic on values that carry both.

Needs NumPy alone. An exported file holds these functions as they stand here, and the formula as a line that calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from autoloss.errors import RequestError
from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.operators import EPSILON, is_own


class Jet:
    """A formula's value and its first two derivatives by the prediction, each computed when it is first asked for.

    Args:
        value: An array, a number for all elements, or a function without arguments that returns one; so are `first` and `second`.
    """

    def __init__(self, value: Any, first: Any = 0.0, second: Any = 0.0) -> None:
        self.parts = [value, first, second]

    def get(self, order: int) -> Any:
        part = self.parts[order]
        if callable(part):
            part = self.parts[order] = part()
        return part

    value = property(lambda self: self.get(0))
    first = property(lambda self: self.get(1))
    second = property(lambda self: self.get(2))

    def __add__(self, other: Any) -> Jet:
        x, y = self, lift(other)
        return Jet(
            lambda: x.value + y.value, lambda: add_slopes(x.first, y.first), lambda: add_slopes(x.second, y.second)
        )

    def __mul__(self, other: Any) -> Jet:
        x, y = self, lift(other)

        def bend() -> Any:
            crossed = multiply_slope(x.first, lambda: multiply_slope(y.first, lambda: 2.0))
            outer = add_slopes(multiply_slope(x.second, lambda: y.value), multiply_slope(y.second, lambda: x.value))
            return add_slopes(outer, crossed)

        return Jet(
            lambda: x.value * y.value,
            lambda: add_slopes(multiply_slope(x.first, lambda: y.value), multiply_slope(y.first, lambda: x.value)),
            bend,
        )

    def __neg__(self) -> Jet:
        return Jet(lambda: -self.value, lambda: -self.first, lambda: -self.second)

    def __sub__(self, other: Any) -> Jet:
        return self + -lift(other)

    def __rsub__(self, other: Any) -> Jet:
        return -self + other

    def __pow__(self, two: int) -> Jet:
        return chain(self, lambda: self.value**2, lambda: 2.0 * self.value, lambda: 2.0)

    __radd__, __rmul__ = __add__, __mul__


def lift(x: Any) -> Jet:
    """Return a number or an array as a formula that does not depend on the prediction."""
    return x if isinstance(x, Jet) else Jet(x)


def is_zero(slope: Any) -> bool:
    """Return True for the slope of what does not depend on the prediction, which is no array."""
    return isinstance(slope, float) and slope == 0.0


def add_slopes(one: Any, other: Any) -> Any:
    return other if is_zero(one) else one if is_zero(other) else one + other


def multiply_slope(slope: Any, factor: Callable[[], Any]) -> Any:
    """Multiply by a factor, which is not computed where the slope is 0."""
    if is_zero(slope) or is_zero(found := factor()):
        return 0.0
    return found if isinstance(slope, float) and slope == 1.0 else slope * found


def chain(x: Jet, value: Any, slope: Any, bend: Any) -> Jet:
    """Return a function of x from its value and its two derivatives by x."""
    slope = cache(slope)
    return Jet(
        value,
        lambda: multiply_slope(x.first, slope),
        lambda: add_slopes(
            multiply_slope(multiply_slope(x.first, lambda: x.first), bend), multiply_slope(x.second, slope)
        ),
    )


def square(x: Any) -> Jet:
    return lift(x) ** 2


def absolute(x: Any) -> Jet:
    x = lift(x)
    return chain(x, lambda: np.abs(x.value), lambda: np.sign(x.value), lambda: 0.0)


def inv(x: Any) -> Jet:
    x, found = lift(x), cache(lambda: 1.0 / (lift(x).value + EPSILON))
    return chain(x, found, lambda: -(found() ** 2), lambda: 2.0 * found() ** 3)


def split_sign(value: Any) -> tuple[Any, Any]:
    """Return the sign, the number 1 where all are positive, and |x| + ε."""
    return (1.0, value + EPSILON) if np.min(value) > 0 else (np.sign(value), np.abs(value) + EPSILON)


def log(x: Any) -> Jet:
    """Return sign(x) · log(|x| + ε); the derivative of a sign is 0, so at 0 there is no slope."""
    x = lift(x)
    parts = cache(lambda: split_sign(x.value))
    slope = cache(lambda: parts()[0] / parts()[1])
    return chain(
        x,
        lambda: multiply_slope(parts()[0], lambda: np.log(parts()[1])),
        lambda: multiply_slope(parts()[0], slope),
        lambda: -slope() * multiply_slope(parts()[0], slope),
    )


def sqrt(x: Any) -> Jet:
    """Return sign(x) · √(|x| + ε)."""
    x = lift(x)
    parts = cache(lambda: split_sign(x.value))
    root = cache(lambda: multiply_slope(parts()[0], lambda: np.sqrt(parts()[1])))
    slope = cache(lambda: np.abs(parts()[0]) * 0.5 / np.sqrt(parts()[1]))
    return chain(x, root, slope, lambda: -parts()[0] * 0.5 * slope() / parts()[1])


def exp(x: Any) -> Jet:
    x, value = lift(x), cache(lambda: np.exp(lift(x).value))
    return chain(x, value, value, value)


def tanh(x: Any) -> Jet:
    x, value = lift(x), cache(lambda: np.tanh(lift(x).value))
    slope = cache(lambda: 1.0 - value() ** 2)
    return chain(x, value, slope, lambda: -2.0 * value() * slope())


ELEMENTWISE: Mapping[str, Callable[..., Jet]] = {
    "add": Jet.__add__,
    "mul": Jet.__mul__,
    "neg": Jet.__neg__,
    "abs": absolute,
    **{function.__name__: function for function in (inv, log, exp, tanh, square, sqrt)},
}
"""Operators of Table 1 that work on each element by itself."""


def differentiate(tree: Expression) -> Callable[[Jet, Jet], Jet]:
    """Return a tree over y and p as a function of these two, which differentiates it twice.

    Raises:
        RequestError: The tree holds an operator that is not element-wise or not of Table 1, or another leaf than y and p.

    >>> from autoloss import parse
    >>> found = differentiate(parse("-y * log(p)"))(lift(np.array([1.0, 0.0])), Jet(np.array([0.25, 0.25]), 1.0))
    >>> found.first.round(3).tolist(), found.second.round(3).tolist()
    ([-4.0, -0.0], [16.0, 0.0])
    """
    for operator in tree.operators:
        if is_own(operator):
            raise RequestError(
                f"The operator {operator.name!r} is your own, and its second derivative is not known; an objective for boosting "
                "needs operators of Table 1."
            )
        if operator.name not in ELEMENTWISE:
            raise RequestError(
                f"{str(tree)!r} holds {operator.name}, which mixes rows, classes or positions: the gradient of one row would "
                f"depend on others. An objective for boosting needs the element-wise operators {', '.join(ELEMENTWISE)}."
            )
    if strange := sorted(tree.leaves - {CONSTANT, "y", "p"}):
        raise RequestError(f"{str(tree)!r} has the leaves {', '.join(strange)}; a boosting objective has y and p.")
    # A function that can be pickled, as a fitted model is, with its objective.
    return partial(_evaluate, tree)


def _evaluate(tree: Expression, y: Jet, p: Jet) -> Jet:
    leaves = {"y": y, "p": p, CONSTANT: lift(1.0)}
    found = tree.fold(leaves.__getitem__, lambda one, parts: ELEMENTWISE[one.name](*parts))
    return found if tree.factor == 1 else found * tree.factor
