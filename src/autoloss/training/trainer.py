"""One training of a built-in or supervised task, from its seed to its score, for any kind of network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from autoloss.training.checkpoints import save_network
from autoloss.training.distribution import run_on_first, take_shares
from autoloss.training.execution import Execution
from autoloss.training.loop import Curve, Pace, fit, seed_generators, shuffle_batches
from autoloss.training.recipe import Recipe, shorten_steps
from autoloss.training.training import Diverged, Observe, Replicates, Scored, Training

Network = TypeVar("Network", bound=nn.Module)
Batch = TypeVar("Batch")
Result = TypeVar("Result")

SKIPPED = "skipped_batches"
"""Name of the further figure that tells how many batches were skipped, where any was."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The score, further metrics by name, and the score on resamples where it was asked for."""

    score: float
    also: Mapping[str, float]
    replicates: Replicates | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer(Generic[Network, Batch]):
    """Trains a network with a recipe and evaluates it.

    Args:
        build: Makes the network.
        examples: Number of training examples.
        batches: (indices of the remaining batches, number of the first of them) → these batches.
        make_loss: Network → function from a batch to its loss, in float32 at any precision of the network; None for a batch
            that is to be skipped.
        evaluate: (trained network, share of the schedule) → its figures, or the reason why they are not finite.
        groups: Network → its parameter groups, each with a `factor` on the learning rate.
        fit_elsewhere: Trains a network with the trainer of another library instead of `fit`.
        draw_order: (recipe, generator) → indices of the examples of each batch of a whole training; shuffled if None.
    """

    build: Callable[[], Network]
    recipe: Recipe
    execution: Execution
    examples: int
    batches: Callable[[Sequence[Tensor], int], Iterable[Batch]]
    make_loss: Callable[[Network], Callable[[Batch], Tensor | None]]
    evaluate: Callable[[Network, float], Figures | str]
    groups: Callable[[Network], Iterable[Mapping[str, Any]]] | None = None
    draw_order: Callable[[Recipe, torch.Generator], Sequence[Tensor]] | None = None
    fit_elsewhere: Callable[[Network, Training, Observe | None], Curve | Diverged] | None = None

    def train(self, training: Training, observe: Observe | None = None, pace: Pace | None = None) -> Scored | Diverged:
        """Train a network and evaluate it.

        Args:
            training: Its seed decides everything random; its schedule is written to checkpoints.
            observe: Called with (step, training loss) after each step.
            pace: Norms of the gradients that are replayed.
        """
        with seed_generators(training.seed) as generator:
            network, curve, skipped = self._fit(generator, training, observe, pace)
            if isinstance(curve, Diverged):
                return curve
            figures = run_on_first(lambda: self._evaluate(network, training.fidelity))
        if isinstance(figures, str):
            return Diverged(curve[-1][0], figures)
        also = {**figures.also, SKIPPED: float(skipped)} if skipped else figures.also
        return Scored(figures.score, also, curve, figures.replicates)

    def record_norms(self, training: Training) -> Pace | Diverged:
        """Train a network as `train` does; return the norms of its gradients, to be replayed in another training."""
        found = Pace()
        with seed_generators(training.seed) as generator:
            _, curve, _ = self._fit(generator, training, None, found)
        return curve if isinstance(curve, Diverged) else replace(found, replays=True)

    def apply(self, training: Training, function: Callable[[Network], Result]) -> Result | Diverged:
        """Train a network as `train` does, and apply a function to it in evaluation mode."""
        with seed_generators(training.seed) as generator:
            network, curve, _ = self._fit(generator, training, None)
            return curve if isinstance(curve, Diverged) else function(network.eval())

    def untrained(self, seed: int) -> float | None:
        """Return the score of the initial network of a training with this seed, or None if it is not finite."""
        with seed_generators(seed):
            figures = self._evaluate(self.execution.place(self.build()), 1.0)
        return None if isinstance(figures, str) else figures.score

    def _fit(
        self, generator: torch.Generator, training: Training, observe: Observe | None, pace: Pace | None = None
    ) -> tuple[Network, Curve | Diverged, int]:
        """Return the trained network, its curve, and the number of batches that were skipped."""
        network = self.execution.place(self.build())
        if self.fit_elsewhere is not None:
            curve = self.fit_elsewhere(network, training, observe)
            # The trainer may have left it on another device.
            network = self.execution.place(network)
            if self.execution.checkpoints and not isinstance(curve, Diverged):
                save_network(network, self.execution.checkpoints.with_metadata(_make_metadata(training, self.examples)))
            return network, curve, 0
        skipped: list[int] = []
        # The first batches of the whole schedule, so that a short training sees as many different examples as possible.
        if self.draw_order is None:
            batches: Sequence[Tensor] = shuffle_batches(self.examples, self.recipe, generator)
        else:
            batches = self.draw_order(self.recipe, generator)
        order = take_shares(batches[: shorten_steps(len(batches), training.fidelity)])
        curve = fit(
            network,
            lambda done: self.batches(order[done:], done),
            self.make_loss(network),
            self.recipe.shorten(training.fidelity),
            len(order),
            groups=None if self.groups is None else self.groups(network),
            observe=observe,
            execution=self.execution,
            metadata=_make_metadata(training, self.examples),
            report_skipped=skipped.append,
            pace=pace,
        )
        return network, curve, sum(skipped)

    def _evaluate(self, network: Network, fidelity: float) -> Figures | str:
        figures = self.evaluate(network.eval(), fidelity)
        if isinstance(figures, str):
            return figures
        if not math.isfinite(figures.score):
            return "the metric is not finite"
        # Undefined figures are left out: records hold finite numbers only.
        return replace(figures, also={name: value for name, value in figures.also.items() if math.isfinite(value)})


def _make_metadata(training: Training, examples: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"seed": training.seed, "schedule": training.schedule, "examples": examples}
    facts |= {} if training.fidelity == 1 else {"fidelity": training.fidelity}
    return {**facts, "fold": training.fold} if training.fold else facts


def select_examples(count: int, fidelity: float, least: int) -> Tensor:
    """Return the indices of the examples on which a training at a share of the schedule is evaluated.

    Their number falls with the square root of the share: the error of the measurement stays small compared with the variance of
    training, and its time below that of the training. The choice is fixed, so that losses are compared on the same examples.

    Args:
        count: Number of examples of the split.
        least: Minimum number of examples to evaluate, at most `count`.
    """
    kept = min(count, max(least, math.ceil(count * math.sqrt(fidelity))))
    if kept == count:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:kept].sort().values
