"""A small task for each cause of a gain: one on which class weights, steps that do not shrink, a focus on hard items, or none of
these makes a loss better than the standard loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autoloss import Recipe, SupervisedTask
from autoloss.space.form import Activation
from autoloss.tasks.data import Data

SIZES = {"train": 256, "valid": 400, "test": 1000}
Pair = tuple[Tensor, Tensor]


def rare_class(learning_rate: float = 0.1) -> SupervisedTask:
    """One class in ten items; the metric is the recall of both classes."""

    def draw(count: int, generator: torch.Generator) -> Pair:
        target = (torch.rand(count, generator=generator) < 0.1).long()
        return torch.randn(count, 2, generator=generator) + 1.2 * target[:, None], target

    return _make(draw, _recall, learning_rate)


def slow_network(learning_rate: float = 0.003) -> SupervisedTask:
    """A recipe whose steps are too small; the metric is accuracy."""

    def draw(count: int, generator: torch.Generator) -> Pair:
        target = (torch.rand(count, generator=generator) < 0.5).long()
        inputs = torch.randn(count, 8, generator=generator)
        inputs[:, 0] += 2 * target - 1
        inputs[:, 1] *= 6
        return inputs, target

    return _make(draw, _accuracy, learning_rate)


def easy_cue(learning_rate: float = 0.3) -> SupervisedTask:
    """A cue makes nine in ten items easy, and misleads on held-out data, where only what makes the hard ones right helps."""

    def draw(count: int, generator: torch.Generator) -> Pair:
        target = (torch.rand(count, generator=generator) < 0.5).long()
        sign = 2.0 * target - 1
        is_training = count == SIZES["train"]
        easy = (torch.rand(count, generator=generator) < 0.9) & is_training
        inputs = 0.5 * torch.randn(count, 2, generator=generator)
        inputs[:, 0] += sign * torch.where(easy, 2.0, 0.0 if is_training else -0.3)
        inputs[:, 1] += sign * torch.where(easy, 0.0, 1.0)
        return inputs, target

    return _make(draw, _accuracy, learning_rate)


def high_quantile(learning_rate: float = 0.05) -> SupervisedTask:
    """A regression in which too low is nine times as bad as too high."""

    def draw(count: int, generator: torch.Generator) -> Pair:
        inputs = torch.randn(count, 2, generator=generator)
        noise = (0.5 + inputs[:, 1:].abs()) * torch.randn(count, 1, generator=generator)
        return inputs, inputs[:, :1] + noise

    def pinball(prediction: Tensor, target: Tensor) -> float:
        error = target - prediction
        return -torch.maximum(0.9 * error, -0.1 * error).mean().item()

    return _make(draw, pinball, learning_rate, "none")


def _make(draw, metric, learning_rate: float, activation: Activation = "softmax") -> SupervisedTask:
    generator = torch.Generator().manual_seed(0)
    splits = {name: draw(size, generator) for name, size in SIZES.items()}
    inputs, target = splits["train"]
    outputs = 1 if target.is_floating_point() else 2
    return SupervisedTask(
        lambda: nn.Linear(inputs.shape[1], outputs),
        splits["train"],
        splits["valid"],
        activation,
        metric,
        test=splits["test"],
        recipe=Recipe(epochs=5, batch_size=32, learning_rate=learning_rate, minimum_learning_rate=1e-5),
        data=Data(rows_per_sample=64),
    )


def _accuracy(prediction: Tensor, target: Tensor) -> float:
    return (prediction.argmax(1) == target).float().mean().item()


def _recall(prediction: Tensor, target: Tensor) -> float:
    right = prediction.argmax(1) == target
    return sum(right[target == label].float().mean().item() for label in (0, 1)) / 2
