"""How long simplifying takes, on trees as a search makes them, and what it saves; times are of the processor, not of the wall.

python bench/simplify.py --out results/simplify.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from random import Random
from statistics import fmean, quantiles
from typing import Any

from autoloss.formulas.simplify import simplify
from autoloss.search.initialization import initial_expression
from autoloss.search.mutation import mutate
from autoloss.space.branch import Role
from autoloss.space.expression import Alphabet, Expression
from autoloss.zoo.entries import ENTRIES
from machine import machine
from output import emit

ALPHABET = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
DEPTH = 3
"""D of Appendix A."""
LARGEST = 64
"""Operators: the search's own limit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="a hundred trees")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    emit(measured(100 if arguments.quick else arguments.trees), arguments, show)


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
        "machine": machine(),
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
