"""One training, from its seed to its score, for any kind of network, and by any library's trainer."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, name_kind
from autoloss.training.checkpoints import save_network
from autoloss.training.distribution import run_on_first, take_shares
from autoloss.training.loop import Execution, Pace, fit, seed_generators, shuffle_batches
from autoloss.training.recipe import Recipe, shorten_steps
from autoloss.training.training import Curve, Diverged, Observe, Scored, Training, thin_curve

FitElsewhere = Callable[[nn.Module, nn.Module, Training], object]
"""Called with a new network, the loss (prediction, target) → scalar, and the training; trains the network in place."""


class _NotFiniteError(Exception):
    """Ends the trainer of another library at a loss that is not finite."""


class _WatchedLoss(nn.Module):
    """A loss that records its value at each call with gradients, and raises at the first one that is not finite."""

    def __init__(self, compute: Callable[[Tensor, Tensor], Tensor], observe: Observe | None) -> None:
        super().__init__()
        self._compute = compute
        self._observe = observe
        self.curve: list[tuple[int, float]] = []

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        for name, given in (("prediction", prediction), ("target", target)):
            if not isinstance(given, Tensor):
                raise RequestError(
                    f"The trainer calls the loss with a {name} that is {name_kind(given)}; expected loss(prediction, target) with "
                    "two tensors."
                )
        value = self._compute(prediction, target)
        if torch.is_grad_enabled():
            self.curve.append((len(self.curve) + 1, value.item()))
            if not math.isfinite(self.curve[-1][1]):
                raise _NotFiniteError
            if self._observe is not None:
                self._observe(*self.curve[-1])
        return value


def fit_elsewhere(
    fit: FitElsewhere,
    compute: Callable[[Tensor, Tensor], Tensor],
    network: nn.Module,
    training: Training,
    observe: Observe | None,
) -> Curve | Diverged:
    """Train a network with the trainer of another library; stop at the first loss that is not finite.

    `compute` maps raw prediction and target to the loss, `observe` gets (call, loss). Return the training loss by call,
    thinned, or where and why the training diverged.
    """
    loss = _WatchedLoss(compute, observe)
    with contextlib.suppress(_NotFiniteError):
        # Seeds of 64 bits are too large for NumPy, which other libraries seed.
        fit(network.train(), loss, replace(training, seed=training.seed % 2**32))
    # A trainer may catch exceptions and go on.
    for step, value in loss.curve:
        if not math.isfinite(value):
            return Diverged(step, "the loss is not finite")
    if not loss.curve:
        share = training.fidelity
        few = f"At {share:g} of the schedule, train one step at least: max(1, round({share:g} * steps)). " * (share < 1)
        raise RequestError(
            f"The trainer never called the loss that it was given. {few}Let it compute loss(prediction, target) in each step, "
            "with raw predictions, and train the network that it was given in place."
        )
    if not all(bool(parameter.isfinite().all()) for parameter in network.parameters()):
        return Diverged(len(loss.curve), "a weight is not finite")
    return thin_curve(loss.curve)


Network = TypeVar("Network", bound=nn.Module)
Batch = TypeVar("Batch")
Result = TypeVar("Result")

SKIPPED = "skipped_batches"
"""Name of the further figure that tells how many batches were skipped, where any was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer(Generic[Network, Batch]):
    """Trains the network that `build` makes, with a recipe, and evaluates it.

    `batches` maps the indices of the remaining batches and the number of the first of them to these; `make_loss` a network
    to a function from a batch to its loss, in float32 at any precision, None for a batch that is to be skipped; `evaluate`
    the trained network and the share of the schedule to what it scores, or the reason why that is not finite; `draw_order` a
    recipe and a generator to the indices of each batch of a whole training, shuffled if None. `fit_elsewhere` trains with
    the trainer of another library.
    """

    build: Callable[[], Network]
    recipe: Recipe
    execution: Execution
    examples: int
    batches: Callable[[Sequence[Tensor], int], Iterable[Batch]]
    make_loss: Callable[[Network], Callable[[Batch], Tensor | None]]
    evaluate: Callable[[Network, float], Scored | str]
    groups: Callable[[Network], Iterable[Mapping[str, Any]]] | None = None
    draw_order: Callable[[Recipe, torch.Generator], Sequence[Tensor]] | None = None
    fit_elsewhere: Callable[[Network, Training, Observe | None], Curve | Diverged] | None = None

    def train(self, training: Training, observe: Observe | None = None, pace: Pace | None = None) -> Scored | Diverged:
        """Train a network by a training's seed, which decides everything random, and evaluate it; `pace` holds norms to replay."""
        with seed_generators(training.seed) as generator:
            network, curve, skipped = self._fit(generator, training, observe, pace)
            if isinstance(curve, Diverged):
                return curve
            figures = run_on_first(lambda: self._evaluate(network, training.fidelity))
        if isinstance(figures, str):
            return Diverged(curve[-1][0], figures)
        also = {**figures.also, SKIPPED: float(skipped)} if skipped else figures.also
        return replace(figures, also=also, curve=curve)

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
            # The warm-up of a share of the schedule is shorter in proportion.
            replace(self.recipe, warmup_steps=math.ceil(self.recipe.warmup_steps * training.fidelity)),
            len(order),
            groups=None if self.groups is None else self.groups(network),
            observe=observe,
            execution=self.execution,
            metadata=_make_metadata(training, self.examples),
            report_skipped=skipped.append,
            pace=pace,
        )
        return network, curve, sum(skipped)

    def _evaluate(self, network: Network, fidelity: float) -> Scored | str:
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
    """Return the indices of the examples, of `count`, on which a training at a share of the schedule is evaluated; at least some.

    Their number falls with the square root of the share: the error of the measurement stays small compared with the
    variance of training, and its time below that of the training. The choice is fixed, so that losses are compared on the
    same examples.
    """
    kept = min(count, max(least, math.ceil(count * math.sqrt(fidelity))))
    if kept == count:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:kept].sort().values
