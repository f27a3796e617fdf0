"""Table 1 and the evaluation of a tree, written a second time in NumPy and by recursion over text: the tests' oracle."""

from __future__ import annotations

import re

import numpy as np

EPSILON = 1e-12


def pooled(x, choose, padding):
    """3×3, stride 1: each window by hand, the padding such that it never wins."""
    n, c, height, width = x.shape
    wide = np.full((n, c, height + 2, width + 2), padding, dtype=x.dtype)
    wide[:, :, 1:-1, 1:-1] = x
    result = np.empty_like(x)
    for row in range(height):
        for column in range(width):
            result[:, :, row, column] = choose(wide[:, :, row : row + 3, column : column + 3], axis=(2, 3))
    return result


FUNCTIONS = {
    "add": lambda x, z: x + z,
    "mul": lambda x, z: x * z,
    "neg": lambda x: -x,
    "abs": np.abs,
    "inv": lambda x: 1.0 / (x + EPSILON),
    "log": lambda x: np.where(x == 0, 0.0, np.sign(x) * np.log(np.abs(x) + EPSILON)),
    "exp": np.exp,
    "tanh": np.tanh,
    "square": lambda x: x * x,
    "sqrt": lambda x: np.where(x == 0, 0.0, np.sign(x) * np.sqrt(np.abs(x) + EPSILON)),
    "mean_nhw": lambda x: np.broadcast_to(x.mean(axis=(0, 2, 3), keepdims=True), x.shape),
    "mean_c": lambda x: np.broadcast_to(x.mean(axis=1, keepdims=True), x.shape),
    "max_pool": lambda x: pooled(x, np.max, -np.inf),
    "min_pool": lambda x: pooled(x, np.min, np.inf),
}


def evaluate(text, leaves):
    """Evaluate prefix text."""
    tokens = re.findall(r"\w+|[(),]", text)

    def read(position):
        name = tokens[position]
        if position + 1 == len(tokens) or tokens[position + 1] != "(":
            some = next(iter(leaves.values()))
            return (np.ones_like(some) if name == "1" else leaves[name]), position + 1
        operands = []
        position += 1
        while tokens[position] != ")":
            # Past the parenthesis that opens, or the comma.
            operand, position = read(position + 1)
            operands.append(operand)
        return FUNCTIONS[name](*operands), position + 1

    with np.errstate(all="ignore"):
        value, end = read(0)
    assert end == len(tokens)
    return value
