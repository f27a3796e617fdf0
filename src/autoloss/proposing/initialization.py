"""Section 3.2, Initialization: a tree with D operators on every path from the root to a leaf."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import product
from random import Random

from autoloss.errors import RequestError
from autoloss.space.branch import Role
from autoloss.space.expression import CONSTANT, Alphabet, Expression, Symbol

Dependence = int
"""What a tree depends on, as a sum: 1 for the prediction, 2 for the target."""
WHOLE: Dependence = 3
_DEPENDENCES: dict[Role | None, Dependence] = {None: 0, Role.PREDICTION: 1, Role.TARGET: 2, Role.BOTH: WHOLE}
_PAIRS = [tuple(pair for pair in product(range(4), repeat=2) if pair[0] | pair[1] == whole) for whole in range(4)]
"""What a tree of two operands depends on → what the operands may depend on."""


def initial_expression(alphabet: Alphabet, depth: int, rng: Random) -> Expression:
    """Draw a random tree; operators are all equally likely, leaves are drawn with replacement.

    Args:
        depth: D ≥ 0, the number of operators on every path.

    >>> from autoloss.space.branch import Role
    >>> alphabet = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
    >>> initial_expression(alphabet, 3, Random(0)).depth
    3
    """
    symbols: list[Symbol] = []
    # Depths of the nodes still to draw, the next one last: prefix order without recursion.
    pending = [0]
    while pending:
        level = pending.pop()
        if level == depth:
            symbols.append(rng.choice(alphabet.leaves))
        else:
            operator = rng.choice(alphabet.operators)
            symbols.append(operator)
            pending.extend([level + 1] * operator.arity)
    return Expression(tuple(symbols))


def valid_expression(alphabet: Alphabet, depth: int, rng: Random) -> Expression:
    """Draw a tree as `initial_expression` does until one depends on prediction and target, but with a single draw.

    From the root down, an operator and what its operands depend on are drawn by the share of the trees below that fit; so each
    valid tree is as likely as it is among the valid trees of `initial_expression`.

    Args:
        depth: D ≥ 0, the number of operators on every path.

    Raises:
        RequestError: There is no such tree.

    >>> alphabet = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
    >>> valid_expression(alphabet, 3, Random(0)).holds(alphabet.leaves_and_roles)
    True
    """
    # Those that depend on nothing, on the prediction, on the target, and on both.
    leaves: list[list[str]] = [[], [], [], []]
    for name in alphabet.leaves:
        leaves[_DEPENDENCES[None if name == CONSTANT else alphabet.leaves_and_roles[name]]].append(name)
    arities = Counter(operator.arity for operator in alphabet.operators)
    shares = _find_shares(tuple(map(len, leaves)), arities[1], arities[2], depth)
    if not shares[depth][WHOLE]:
        raise RequestError(
            f"No tree of depth {depth} depends on both prediction and target: its operators are "
            f"{', '.join(operator.name for operator in alphabet.operators)}. Keep add or mul (space.without), or raise "
            "evolution.depth."
        )
    symbols: list[Symbol] = []
    # Operators below the nodes still to draw, and what these depend on; the next one last.
    pending = [(depth, WHOLE)]
    while pending:
        below, wanted = pending.pop()
        if below == 0:
            symbols.append(rng.choice(leaves[wanted]))
            continue
        pairs = _PAIRS[wanted]
        weights = [shares[below - 1][left] * shares[below - 1][right] for left, right in pairs]
        by_arity = {1: shares[below - 1][wanted], 2: sum(weights)}
        (operator,) = rng.choices(alphabet.operators, [by_arity[operator.arity] for operator in alphabet.operators])
        symbols.append(operator)
        if operator.arity == 1:
            pending.append((below - 1, wanted))
        else:
            ((left, right),) = rng.choices(pairs, weights)
            pending += [(below - 1, right), (below - 1, left)]
    return Expression(tuple(symbols))


@lru_cache(maxsize=64)
def _find_shares(leaves: tuple[int, ...], unary: int, binary: int, depth: int) -> list[list[float]]:
    """Return for each depth up to D which shares of the random trees depend on nothing, the prediction, the target and both."""
    shares = [[count / sum(leaves) for count in leaves]]
    for _ in range(depth):
        below = shares[-1]
        joined = [sum(below[left] * below[right] for left, right in pairs) for pairs in _PAIRS]
        shares.append([(unary * one + binary * two) / (unary + binary) for one, two in zip(below, joined, strict=True)])
    return shares
