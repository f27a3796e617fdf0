"""How fast expressions are evaluated by the compiled engine and by Operon, a symbolic-regression engine.

Operon (`pip install autoloss[bench]`, package pyoperon) is the fastest engine on the package index. Both get the same trees
without means and pools, on as many elements, in single precision and on one thread. Operon computes values, with its plain
logarithm and root; the compiled engine takes one step of the protocol, which is softmax, value, gradient, and SGD.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import torch

from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.space.expression import Expression, build, leaf
from output import NOT_RUN, Figure, emit, make_parser, parse_arguments
from rejection import draws, scenes

FIGURES = {
    "Operon, values per second": Figure(("operon_values_per_second",), digits=-2),
    "engine, steps per second": Figure(("engine_steps_per_second",), digits=-2),
    "ratio": Figure(("ratio",), digits=1),
}
REPEATS = 5
STEPS = 20
OPERON: Mapping[str, str] = {
    "add": "({} + {})",
    "mul": "({} * {})",
    "neg": "((-1) * {})",
    "abs": "abs({})",
    "inv": "(1 / {})",
    "log": "log(abs({}))",
    "exp": "exp({})",
    "tanh": "tanh({})",
    "square": "square({})",
    "sqrt": "sqrt(abs({}))",
}
"""Operator → how Operon writes it; what is not here couples elements and is left out."""
VARIABLES = {"p": "X1", "y": "X2"}


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(make_parser(__doc__, trees=100), argv, trees=20)
    if find_spec("pyoperon") is None:
        emit({NOT_RUN: "needs the extra bench"}, arguments, lambda result: print(f"not run: {result[NOT_RUN]}"))
        return
    torch.set_num_threads(1)
    engine = scenes()
    roles = engine.branch.leaves_and_roles
    emit(compare(engine, (tree for tree in draws(engine, 0) if tree.holds(roles)), arguments.trees), arguments, _print)


def _print(result: dict[str, Any]) -> None:
    print(f"on {result['trees']} element-wise trees of {result['elements']} elements, medians per second: ", end="")
    print(f"engine {result['engine_steps_per_second']:.0f} steps with gradient, ", end="")
    print(f"Operon {result['operon_values_per_second']:.0f} values, ratio {result['ratio']:.1f}")


def compare(engine: CompiledEngine, trees: Iterable[Expression], count: int) -> dict[str, Any]:
    """Time both on the first `count` trees whose element-wise part holds p and y.

    Returns:
        Evaluations per second of each, medians over the trees, and their ratio.
    """
    import pyoperon

    roles = engine.branch.leaves_and_roles
    parts = (elementwise(tree) for tree in trees)
    kept = [part for part, _ in zip((part for part in parts if part.holds(roles)), range(count), strict=False)]
    layout = engine.samples[0].layout
    elements = layout.channels * layout.positions
    data = pyoperon.Dataset(np.asfortranarray(np.random.default_rng(0).random((elements, 2)), dtype=np.float32))
    names = {variable.Name: variable.Hash for variable in data.Variables}
    ours: list[float] = []
    theirs: list[float] = []
    for tree in kept:
        found = pyoperon.InfixParser.Parse(infix(tree), names)
        theirs.append(_seconds(lambda found=found: pyoperon.Evaluate(found, data, pyoperon.Range(0, elements))))
        descent = engine.start_descent(tree)
        descent.advance(0, 1)
        steps = iter(range(1 + STEPS, 10**6, STEPS))
        ours.append(_seconds(lambda descent=descent, steps=steps: descent.advance(0, next(steps))) / STEPS)
    return {
        "trees": len(kept),
        "elements": elements,
        "operon_values_per_second": 1 / median(theirs),
        "engine_steps_per_second": 1 / median(ours),
        "ratio": median(value / step for value, step in zip(theirs, ours, strict=True)),
    }


def elementwise(tree: Expression) -> Expression:
    """Return a tree without the operators that couple elements: each gives way to what it is applied to."""
    stack: list[Expression] = []
    for symbol in reversed(tree.symbols):
        if isinstance(symbol, str):
            stack.append(leaf(symbol))
            continue
        parts = [stack.pop() for _ in range(symbol.arity)]
        stack.append(build(symbol, *parts) if symbol.name in OPERON else parts[0])
    return stack.pop()


def infix(tree: Expression) -> str:
    """Return an element-wise tree as Operon reads it."""
    stack: list[str] = []
    for symbol in reversed(tree.symbols):
        if isinstance(symbol, str):
            stack.append(VARIABLES.get(symbol, symbol))
        else:
            stack.append(OPERON[symbol.name].format(*[stack.pop() for _ in range(symbol.arity)]))
    return stack.pop()


def _seconds(evaluate: Callable[[], object]) -> float:
    evaluate()
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        evaluate()
        found.append(time.process_time() - began)
    return min(found)


if __name__ == "__main__":
    main()
