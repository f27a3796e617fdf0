"""The one training loop of every proxy and retraining, with the guard against values that are no numbers (Section 3.2).

A loop is given the batches of the whole training and a function from a batch to its loss, so that it serves a network
whose criterion is called in several places as well as one with a single output.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.tasks.task import Diverged, Observe
from autoloss.tasks.training import distribution
from autoloss.tasks.training.checkpoints import Checkpoints, Metadata, TrainingState, save_network
from autoloss.tasks.training.execution import Execution
from autoloss.tasks.training.recipe import Recipe

Batch = TypeVar("Batch")
Curve = tuple[tuple[int, float], ...]

CURVE_POINTS = 100
DEFAULT_EXECUTION = Execution()


@contextmanager
def seed_generators(seed: int) -> Iterator[torch.Generator]:
    """Run with every global generator seeded, give back their states, and provide a generator for the data order.

    Initial weights, dropout and the augmentation of somebody's data set draw from global generators, Python's and NumPy's
    among them; nothing that ran before, and nothing that runs after, may notice.
    """
    python, numpy = random.getstate(), np.random.get_state()
    # All devices by name: torch warns where it has to guess that all of several are meant.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield torch.Generator().manual_seed(seed)
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def shuffle_batches(count: int, recipe: Recipe, generator: torch.Generator) -> list[Tensor]:
    """Draw the indices of all batches of a training, each epoch in an order of its own.

    Args:
        count: Training examples; below the batch size, every batch holds all of them.
    """
    size = min(recipe.batch_size, count)
    whole = count // size * size
    epochs = [torch.randperm(count, generator=generator)[:whole] for _ in range(recipe.epochs)]
    return list(torch.cat(epochs).split(size))


def fit(
    network: nn.Module,
    batches: Iterable[Batch] | Callable[[int], Iterable[Batch]],
    loss_of: Callable[[Batch], Tensor],
    recipe: Recipe,
    steps: int,
    *,
    groups: Iterable[Mapping[str, Any]] | None = None,
    observe: Observe | None = None,
    execution: Execution = DEFAULT_EXECUTION,
    facts: Metadata | None = None,
) -> Curve | Diverged:
    """Train a network; stop at the first step whose loss or gradient is not finite.

    With `execution.keep`, the training goes on from its newest checkpoint, if there is one, and its network is kept at the
    end. On a CPU the outcome is then that of an uninterrupted training, bit for bit.

    Args:
        network: Trained in place, and left in training mode.
        batches: The batches of the whole training, `steps` of them. As a function: those that are left after so many steps,
            so that a resumed training does not have to read the others again.
        loss_of: A batch → the loss, a scalar that depends on the network.
        groups: Parameter groups, each with a `factor` on the learning rate; all parameters at factor 1 when left out.
        observe: Told (step, loss) after each step's check.
        execution: How it runs; network and batches are where it says already.
        facts: What a checkpoint must have in common with this training beside its recipe, such as the seed.

    Returns:
        The training loss by step, thinned to about a hundred points, or where and why the training stopped.

    Raises:
        RequestError: The loss is no scalar, or does not depend on the network; or there is a checkpoint of another training.
    """
    network.train()
    distribution.synchronize(network)
    optimizer = _make_optimizer(groups or [{"params": [p for p in network.parameters() if p.requires_grad]}], recipe)
    training = TrainingState(network, optimizer, execution.scaler())
    keep = execution.keep and execution.keep.of({**_make_metadata(recipe, steps, execution), **(facts or {})})
    left = _remaining_batches(batches, training, keep)
    for step, batch in enumerate(left, start=training.step + 1):
        value = _take_step(training, loss_of(batch), recipe.rate(step, steps), recipe.clip_norm, execution)
        if isinstance(value, str):
            return Diverged(step, value)
        training.step = step
        training.curve.append((step, value))
        if keep and (step == steps or distribution.run_on_first(lambda now=step: keep.due(now))):
            training.save(keep)
        if observe is not None:
            observe(step, value)
    if not _all_finite([parameter.detach() for parameter in _list_parameters(optimizer)]):
        return Diverged(steps, "a weight is not finite")
    if keep:
        save_network(network, keep)
    return thin_curve(training.curve)


def _remaining_batches(
    batches: Iterable[Batch] | Callable[[int], Iterable[Batch]], training: TrainingState, keep: Checkpoints | None
) -> Iterable[Batch]:
    """Restore what was kept of a training, and return its remaining batches."""
    if keep is None:
        return batches(0) if callable(batches) else batches
    training.restore(keep)
    if callable(batches):
        return batches(training.step)
    left = iter(batches)
    collections.deque(itertools.islice(left, training.step), maxlen=0)
    # Reading what was trained on already may have drawn.
    training.restore(keep)
    return left


def _take_step(
    training: TrainingState, loss: Tensor, rate: float, clip_norm: float, execution: Execution
) -> float | str:
    """Take one step; return the loss, or what was not finite."""
    _check_loss(loss)
    optimizer, scaler = training.optimizer, training.scaler
    value = distribution.mean(loss.item(), execution.where)
    if not math.isfinite(value):
        return "the loss is not finite"
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    gradients = [parameter.grad for parameter in _list_parameters(optimizer) if parameter.grad is not None]
    distribution.average(gradients)
    scaler.unscale_(optimizer)
    # In float16 a gradient that overflows is scaled down and the step left out, down to where nothing was scaled up.
    if scaler.get_scale() <= 1.0 and not _all_finite(gradients):
        return "the gradient is not finite"
    if clip_norm:
        clip_gradients(gradients, clip_norm)
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)
    scaler.step(optimizer)
    scaler.update()
    return value


def clip_gradients(gradients: Sequence[Tensor], most: float) -> None:
    """Scale gradients down together such that their norm is `most`, where it is larger."""
    # In double precision: a square of 1e20 is no float32.
    norm = torch.stack([torch.linalg.vector_norm(slope, dtype=torch.float64) for slope in gradients]).norm().item()
    # Comparisons with NaN are false: what is not finite is left to the guard.
    if most < norm < math.inf:
        for slope in gradients:
            slope.mul_(most / norm)


def _all_finite(tensors: Sequence[Tensor]) -> bool:
    # The extremes are finite exactly when all are. On a CPU they are found eight times as fast as the largest norm.
    extremes = [extreme for tensor in tensors if tensor.numel() for extreme in tensor.detach().aminmax()]
    return not extremes or bool(torch.stack(extremes).isfinite().all())


def _list_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _make_metadata(recipe: Recipe, steps: int, execution: Execution) -> Metadata:
    """Return what decides a training's course, as far as it is known here."""
    settings = {f"recipe.{name}": value for name, value in dataclasses.asdict(recipe).items()}
    machine = {"precision": execution.precision, "channels_last": execution.channels_last}
    return {**settings, "steps": steps, **machine, "processes": distribution.size()}


def thin_curve(curve: list[tuple[int, float]]) -> Curve:
    """Keep the first and the last point and others at equal distances, `CURVE_POINTS` at most."""
    if len(curve) <= CURVE_POINTS:
        return tuple(curve)
    distance = (len(curve) - 1) / (CURVE_POINTS - 1)
    return tuple(curve[round(point * distance)] for point in range(CURVE_POINTS))


def _make_optimizer(groups: Iterable[Mapping[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    owned = [dict(group) for group in groups]
    if recipe.optimizer == "adam":
        return torch.optim.Adam(owned, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(owned, lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay)


def _check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(type(loss).__name__)
        raise RequestError(f"The loss is {found}; training needs a tensor with one element. Reduce it, e.g. by mean().")
    if not loss.requires_grad:
        raise RequestError(
            "The loss does not depend on the network's weights, so there is nothing to train. "
            "Compute it from the prediction with differentiable operations, and train at least one weight."
        )
