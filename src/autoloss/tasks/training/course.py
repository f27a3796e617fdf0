"""One training of a ready-made task, from its seed to its score: the same course for every kind of network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from autoloss.tasks.task import Diverged, Observe, Scored, Training
from autoloss.tasks.training.distribution import run_on_first, take_shares
from autoloss.tasks.training.execution import Execution
from autoloss.tasks.training.loop import Curve, fit, seed_generators, shuffle_batches
from autoloss.tasks.training.recipe import Recipe

Network = TypeVar("Network", bound=nn.Module)
Batch = TypeVar("Batch")
Shown = TypeVar("Shown")

Figures = tuple[float, Mapping[str, float]]
"""The score, and whatever else was measured by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer(Generic[Network, Batch]):
    """What a schedule trains, on what, and what is measured in the end.

    Args:
        build: Makes the network.
        examples: How many there are to train on.
        batches: (indices of the batches that are left, number of the first of them) → the batches.
        loss_of: A network → (a batch → the loss), in float32 whatever the network computes in.
        measure: A trained network → what it scores, or what was not finite.
        groups: A network → its parameter groups, each with a `factor` on the learning rate.
    """

    build: Callable[[], Network]
    recipe: Recipe
    execution: Execution
    examples: int
    batches: Callable[[Sequence[Tensor], int], Iterable[Batch]]
    loss_of: Callable[[Network], Callable[[Batch], Tensor]]
    measure: Callable[[Network], Figures | str]
    groups: Callable[[Network], Iterable[Mapping[str, Any]]] | None = None

    def train(self, training: Training, observe: Observe | None = None) -> Scored | Diverged:
        """Train a network and measure it.

        Args:
            training: Its seed decides what is drawn; its schedule's name is held by checkpoints.
            observe: Called with (step, training loss) as training goes on.
        """
        with seed_generators(training.seed) as generator:
            network, curve = self._fitted(generator, training, observe)
            if isinstance(curve, Diverged):
                return curve
            found = run_on_first(lambda: self._figures(network))
        if isinstance(found, str):
            return Diverged(self.recipe.steps(self.examples), found)
        return Scored(*found, curve)

    def show(self, training: Training, show: Callable[[Network], Shown]) -> Shown | Diverged:
        """Train a network as `train` does, and return what is shown of it, in evaluation mode."""
        with seed_generators(training.seed) as generator:
            network, curve = self._fitted(generator, training, None)
            return curve if isinstance(curve, Diverged) else show(network.eval())

    def _fitted(
        self, generator: torch.Generator, training: Training, observe: Observe | None
    ) -> tuple[Network, Curve | Diverged]:
        """Train a fresh network; every generator is seeded already."""
        network = self.execution.placed(self.build())
        order = take_shares(shuffle_batches(self.examples, self.recipe, generator))
        curve = fit(
            network,
            lambda done: self.batches(order[done:], done),
            self.loss_of(network),
            self.recipe,
            len(order),
            groups=None if self.groups is None else self.groups(network),
            observe=observe,
            execution=self.execution,
            facts={"seed": training.seed, "schedule": training.schedule, "examples": self.examples},
        )
        return network, curve

    def untrained(self, seed: int) -> float | None:
        """Return what the network scores that a training with this seed begins with, None where that is no number."""
        with seed_generators(seed):
            found = self._figures(self.execution.placed(self.build()))
        return None if isinstance(found, str) else found[0]

    def _figures(self, network: Network) -> Figures | str:
        found = self.measure(network.eval())
        if isinstance(found, str):
            return found
        score, also = found
        if not math.isfinite(score):
            return "the metric is not finite"
        # What is undefined is left out: a score's record holds numbers only.
        return score, {name: value for name, value in also.items() if math.isfinite(value)}
