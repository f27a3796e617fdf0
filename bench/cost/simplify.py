"""Time of simplifying trees as a search draws them, and how much it shortens them; times are processor times.

python bench/cost/simplify.py --out results/simplify.json
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import time
from collections.abc import Sequence
from random import Random
from statistics import fmean, quantiles
from typing import Any

from autoloss.formulas.simplify import simplify
from autoloss.proposing.initialization import initial_expression
from autoloss.proposing.mutation import mutate
from autoloss.space.branch import Role
from autoloss.space.expression import Alphabet, Expression
from autoloss.zoo.entries import ENTRIES
from output import Figure, emit, make_parser, parse_arguments

ALPHABET = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
DEPTH = 3
"""D of Appendix A."""
FIGURES = {
    "milliseconds, mean": Figure(("mean_ms",), digits=1),
    "milliseconds, median": Figure(("median_ms",), digits=1),
    "nodes before": Figure(("nodes",), digits=1),
    "nodes after": Figure(("nodes_left",), digits=1),
    "shortened": Figure(("shortened",), digits=0, percent=True),
}
LARGEST = 64
"""Operators: the search's own limit."""


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(make_parser(__doc__, trees=10_000), argv, trees=100)
    emit(measured(arguments.trees), arguments, show)


def measured(count: int) -> dict[str, Any]:
    """Simplify trees of zero to eleven mutations."""
    simplify("p")
    drawn = [tree for seed in range(count) if len((tree := grown(seed)).operators) <= LARGEST]
    milliseconds, nodes, left = [], [], []
    for tree in drawn:
        began = time.process_time()
        term = simplify(tree)
        milliseconds.append(1e3 * (time.process_time() - began))
        nodes.append(len(tree.symbols))
        left.append(term.size)
    cuts = quantiles(milliseconds, n=100)
    return {
        "trees": len(drawn),
        "mean_ms": fmean(milliseconds),
        "median_ms": cuts[49],
        "p99_ms": cuts[98],
        "slowest_ms": max(milliseconds),
        "nodes": fmean(nodes),
        "nodes_left": fmean(left),
        "shortened": sum(after < before for before, after in zip(nodes, left, strict=True)) / len(drawn),
        "zoo": {
            name: {"simplified": str(term), "nodes": term.size}
            for name, row in ENTRIES.items()
            if row.formula and (term := simplify(row.formula, row.activation))
        },
    }


def grown(seed: int) -> Expression:
    rng = Random(seed)
    tree = initial_expression(ALPHABET, DEPTH, rng)
    for _ in range(seed % 12):
        tree = mutate(tree, ALPHABET, rng)
    return tree


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['trees']} trees: {result['mean_ms']:.1f} ms each, median {result['median_ms']:.1f}, "
        f"99 % below {result['p99_ms']:.0f}, slowest {result['slowest_ms']:.0f}"
    )
    print(f"nodes {result['nodes']:.1f} → {result['nodes_left']:.1f}; {result['shortened']:.0%} became shorter")


if __name__ == "__main__":
    main()
