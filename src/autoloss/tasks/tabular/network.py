"""The network of the task `tabular`: a multilayer perceptron."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def mlp(inputs: int, outputs: int, *, hidden: int = 32, layers: int = 2) -> nn.Sequential:
    """Build a multilayer perceptron (N, inputs) → (N, outputs) with ReLU between layers and raw outputs.

    Args:
        hidden: Units of each hidden layer.
        layers: Number of hidden layers; 0 gives a linear model.
    """
    stages: list[nn.Module] = []
    for entering, leaving in pairwise([inputs, *[hidden] * layers]):
        stages += [nn.Linear(entering, leaving), nn.ReLU()]
    return nn.Sequential(*stages, nn.Linear(hidden if layers else inputs, outputs))
