"""Section 3.2, Initialization: a tree with D operators on every path from the root to a leaf."""

from __future__ import annotations

from random import Random

from autoloss.space.expression import Alphabet, Expression, Symbol


def initial_expression(alphabet: Alphabet, depth: int, rng: Random) -> Expression:
    """Draw a tree from nothing; operators are all equally likely, leaves are drawn with replacement.

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
