"""The training loop of every proxy and retraining, and its execution on a machine: device, precision, memory format, checkpoints.

The loop takes the batches of the whole training and a function from a batch to its loss, so that it also works for networks that
call their criterion in several places. It stops at the first value that is not finite (Section 3.2). A `Recipe` decides the result
of a training and belongs to its record; an `Execution` may differ between machines.
"""

from __future__ import annotations

import cmath
import collections
import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, name_kind, unknown
from autoloss.options import check_arguments
from autoloss.training import distribution
from autoloss.training.checkpoints import Checkpoints, Metadata, TrainingState, save_network
from autoloss.training.optimization import Rates, make_optimizer
from autoloss.training.recipe import Recipe, require
from autoloss.training.structures import map_tensors
from autoloss.training.training import Curve, Diverged, Observe, thin_curve


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread inside the context, because sums on several threads round differently and would change scores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


Network = TypeVar("Network", bound=nn.Module)
Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Device, precision, memory format and checkpoints of a training.

    Args:
        device: Device of torch. Under torchrun, `cuda` is the GPU of this process.
        precision: Precision of the network's arithmetic; weights, losses and metrics stay float32.
        channels_last: Use the memory format (N, H, W, C) for images and weights; on GPUs, 16-bit convolutions are faster with it.
        checkpoints: Place of checkpoints and of the trained network; None saves nothing.

    Raises:
        RequestError: An unknown precision, or a device that this machine does not have.

    >>> Execution(precision="bfloat16").torch_device
    device(type='cpu')
    """

    device: str = "cpu"
    precision: Precision = "float32"
    channels_last: bool = False
    checkpoints: Checkpoints | None = None

    def __post_init__(self) -> None:
        check_arguments(Execution, {name: getattr(self, name) for name in ("device", "channels_last")})
        if self.precision not in PRECISIONS:
            raise unknown("precision", str(self.precision), PRECISIONS)
        try:
            kind = torch.device(self.device).type
            available = kind == "cpu" or torch.get_device_module(kind).is_available()
        except RuntimeError as error:
            raise RequestError(f"There is no device {self.device!r}: {error}. Name cpu, cuda or cuda:1.") from None
        if not available:
            raise RequestError(
                f"device is {self.device}, and torch finds no such GPU here. Use cpu.", argument="device"
            )

    @property
    def torch_device(self) -> torch.device:
        """The device of this process."""
        device = torch.device(self.device)
        if device.type == "cuda" and device.index is None and distribution.size() > 1:
            return torch.device("cuda", distribution.local_rank())
        return device

    def place(self, network: Network) -> Network:
        """Move a network to the device and memory format; on several GPUs, its batch normalisation is synchronised."""
        if self.torch_device.type == "cuda" and distribution.size() > 1:
            network = cast(Network, nn.SyncBatchNorm.convert_sync_batchnorm(network))
        network = network.to(self.torch_device)
        return network.to(memory_format=torch.channels_last) if self.channels_last else network  # type: ignore[call-overload]

    def move(self, inputs: Any) -> Any:
        """Move a network's inputs, in any structure, to the device and memory format."""
        return map_tensors(self._move, inputs)

    def _move(self, inputs: Tensor) -> Tensor:
        if self.channels_last and inputs.ndim == 4:
            return inputs.to(self.torch_device, memory_format=torch.channels_last)
        return inputs.to(self.torch_device)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which a network is called; losses are computed outside it, in float32."""
        return torch.autocast(self.torch_device.type, PRECISIONS[self.precision], enabled=self.precision != "float32")


Batch = TypeVar("Batch")

PATIENCE = 100
"""Batches after which a training ends of which every batch was skipped."""
DEFAULT_EXECUTION = Execution()
LEAST_NORM = 1e-30
"""Norm up to which a gradient counts as 0: the factor that brings it to norm 1 would overflow float32."""


@dataclass(slots=True)
class Pace:
    """Norms of the gradients that an optimizer got, one for each step: recorded in a training, or replayed in another.

    Args:
        replays: Scale the gradient of each step to its norm here, instead of recording the norm.
    """

    norms: list[float] = field(default_factory=list)
    replays: bool = False

    def apply(self, gradients: Sequence[Tensor], step: int) -> None:
        """Record the joint norm of the gradients of a step, counted from 1, or scale them to the one recorded."""
        if self.replays:
            scale_gradients(gradients, self.norms[step - 1], always=True)
        else:
            self.norms.append(measure_norm(gradients))

    def skip(self) -> None:
        """Keep the place of a step that is not taken."""
        if not self.replays:
            self.norms.append(0.0)


@contextmanager
def seed_generators(seed: int, *, on_gpus: bool = True) -> Iterator[torch.Generator]:
    """Seed every global generator for the duration of the context, and restore their states at its end.

    Initial weights, dropout and augmentation draw from the global generators of torch, Python and NumPy. With this context, a
    training does not depend on earlier code and does not affect later code.

    Args:
        on_gpus: Also those of the GPUs, which the loading of a batch does not use; it takes three times as long.

    Yields:
        A generator for the order of the data.
    """
    python, numpy = random.getstate(), np.random.get_state()
    # All devices explicitly: torch warns if it has to choose among several.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if on_gpus else ()):
        (torch.manual_seed if on_gpus else torch.default_generator.manual_seed)(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield torch.Generator().manual_seed(seed)
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def shuffle_batches(count: int, recipe: Recipe, generator: torch.Generator) -> list[Tensor]:
    """Draw the indices of all batches of a training, in a new order for each epoch.

    Args:
        count: Number of training examples; if it is below the batch size, every batch holds all of them.
    """
    recipe = recipe.choose(count)
    size = min(require(recipe.batch_size), count)
    whole = count // size * size
    epochs = [torch.randperm(count, generator=generator)[:whole] for _ in range(require(recipe.epochs))]
    return list(torch.cat(epochs).split(size))


def fit(
    network: nn.Module,
    batches: Iterable[Batch] | Callable[[int], Iterable[Batch]],
    compute_loss: Callable[[Batch], Tensor | None],
    recipe: Recipe,
    steps: int,
    *,
    groups: Iterable[Mapping[str, Any]] | None = None,
    observe: Observe | None = None,
    execution: Execution = DEFAULT_EXECUTION,
    metadata: Metadata | None = None,
    report_skipped: Callable[[int], None] | None = None,
    pace: Pace | None = None,
) -> Curve | Diverged:
    """Train a network; stop at the first step whose loss or gradient is not finite.

    With `execution.checkpoints`, the training resumes from its newest checkpoint, if there is one, and saves its network at the
    end. On a CPU the outcome is then that of an uninterrupted training, bit for bit.

    Args:
        network: Trained in place, and left in training mode.
        batches: The `steps` batches of the whole training, or a function: finished steps → remaining batches, so that a
            resumed training does not read the others again.
        compute_loss: Batch → loss, a scalar that depends on the network; None for a batch of which none can be computed, which is
            skipped. A training whose first `PATIENCE` batches are all skipped, or all of them, ends as diverged.
        groups: Parameter groups, each with a `factor` on the learning rate; by default all parameters with factor 1.
        observe: Called with (step, loss) after each step.
        execution: Network and batches are on its device already.
        metadata: Facts besides the recipe, such as the seed, that are stored in each checkpoint and must match on resuming.
        report_skipped: Called at the end with the number of skipped batches.
        pace: Records or replays the norms of the gradients; not with checkpoints, which do not hold them.

    Returns:
        The training loss by step, thinned to at most `CURVE_POINTS`, or the step and reason of the divergence.

    Raises:
        RequestError: The loss is no scalar or without the network, the optimizer needs a closure, there are more or fewer batches
            than steps, or a checkpoint is another's.
    """
    network.train()
    distribution.synchronize(network)
    optimizer = make_optimizer(groups or [{"params": [p for p in network.parameters() if p.requires_grad]}], recipe)
    if any(one.default is one.empty for one in inspect.signature(optimizer.step).parameters.values()):
        raise RequestError(
            f"The recipe's optimizer is {name_kind(optimizer)}, whose step() needs a closure; expected one without, such as "
            "torch.optim.AdamW."
        )
    if not {*map(id, _list_parameters(optimizer))} & {*map(id, network.parameters())}:
        raise RequestError(
            "The recipe's optimizer holds none of the network's weights, so that a training would change nothing. Give it the "
            "parameters that it is called with: lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr)."
        )
    rates = Rates(optimizer, recipe, steps)
    scaler = torch.amp.GradScaler(execution.torch_device.type, enabled=execution.precision == "float16")
    training = TrainingState(network, optimizer, scaler)
    checkpoints = execution.checkpoints
    if checkpoints:
        checkpoints = checkpoints.with_metadata({**_make_metadata(recipe, steps, execution), **(metadata or {})})
    remaining = _restore(batches, training, checkpoints)
    for step, batch in enumerate(remaining, start=training.step + 1):
        if step > steps:
            raise RequestError(
                f"A training of {steps} steps got more batches than that; expected one batch for each step."
            )
        loss = compute_loss(batch)
        rates.set(step)
        value = None if loss is None else _take_step(training, loss, recipe, execution, pace)
        if value is None and pace is not None:
            pace.skip()
        if isinstance(value, str):
            return Diverged(step, value)
        training.step = step
        if value is not None:
            training.curve.append((step, value))
        elif not training.curve and step >= min(steps, PATIENCE):
            return Diverged(step, f"none of the first {step} batches had a loss")
        if checkpoints and (step == steps or distribution.run_on_first(lambda now=step: checkpoints.is_due(now))):
            training.save(checkpoints)
        if observe is not None and value is not None:
            observe(step, value)
    if training.step < steps:
        raise RequestError(
            f"A training of {steps} steps got {training.step} batches; expected one batch for each step. Make the batches anew for "
            "each training: a generator is empty after the first."
        )
    if not _all_finite([parameter.detach() for parameter in _list_parameters(optimizer)]):
        return Diverged(steps, "a weight is not finite")
    if checkpoints:
        save_network(network, checkpoints)
    if report_skipped is not None:
        report_skipped(training.step - len(training.curve))
    return thin_curve(training.curve)


def _restore(
    batches: Iterable[Batch] | Callable[[int], Iterable[Batch]],
    training: TrainingState,
    checkpoints: Checkpoints | None,
) -> Iterable[Batch]:
    """Restore a training from its newest checkpoint and return the remaining batches."""
    if checkpoints is None:
        return batches(0) if callable(batches) else batches
    training.restore(checkpoints)
    if callable(batches):
        return batches(training.step)
    remaining = iter(batches)
    collections.deque(itertools.islice(remaining, training.step), maxlen=0)
    # Reading the batches of finished steps may have used the generators.
    training.restore(checkpoints)
    return remaining


def _take_step(
    training: TrainingState, loss: Tensor, recipe: Recipe, execution: Execution, pace: Pace | None
) -> float | str:
    """Take one optimizer step; return the loss, or the reason why the training diverged."""
    _check_loss(loss)
    optimizer, scaler = training.optimizer, training.scaler
    value = distribution.mean(loss.item(), execution.torch_device)
    if not math.isfinite(value):
        return "the loss is not finite"
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    gradients = [parameter.grad for parameter in _list_parameters(optimizer) if parameter.grad is not None]
    distribution.average(gradients)
    scaler.unscale_(optimizer)
    # In float16 a step whose gradient overflows is skipped and the scale reduced; at scale 1 the gradient itself is not finite.
    if scaler.get_scale() <= 1.0 and not _all_finite(gradients):
        return "the gradient is not finite"
    if recipe.one_norm or recipe.clip_norm:
        scale_gradients(gradients, 1.0 if recipe.one_norm else recipe.clip_norm, always=recipe.one_norm)
    if pace is not None:
        pace.apply(gradients, training.step + 1)
    scaler.step(optimizer)
    scaler.update()
    return value


def scale_gradients(gradients: Sequence[Tensor], norm: float, *, always: bool = False) -> None:
    """Scale all gradients by one factor so that their joint norm is at most `norm`, or equal to it if `always`.

    A gradient of nearly 0 stays as it is.
    """
    found = measure_norm(gradients)
    # Comparisons with NaN are false: the loop stops at gradients that are not finite.
    if (LEAST_NORM if always else norm) < found < math.inf:
        for gradient in gradients:
            gradient.mul_(norm / found)


def measure_norm(gradients: Sequence[Tensor]) -> float:
    """Return the joint norm of gradients."""
    # In double precision: the square of 1e20 overflows float32.
    real = [torch.view_as_real(each) if each.is_complex() else each for each in gradients]
    return torch.stack([torch.linalg.vector_norm(each, dtype=torch.float64) for each in real]).norm().item()


def _all_finite(tensors: Sequence[Tensor]) -> bool:
    # A finite sum has finite terms only. A sum of finite terms may overflow: then each term is checked.
    sums = [tensor.detach().sum() for tensor in tensors]
    if all(total.device.type == "cpu" for total in sums):
        pairs = zip(sums, tensors, strict=True)
        return all(cmath.isfinite(total.item()) or bool(tensor.isfinite().all()) for total, tensor in pairs)
    return bool(torch.stack(sums).isfinite().all()) or all(bool(tensor.isfinite().all()) for tensor in tensors)


def _list_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _make_metadata(recipe: Recipe, steps: int, execution: Execution) -> Metadata:
    settings = {f"recipe.{name}": value for name, value in recipe.as_values().items()}
    machine = {"precision": execution.precision, "channels_last": execution.channels_last}
    return {**settings, "steps": steps, **machine, "processes": distribution.size()}


def _check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(type(loss).__name__)
        raise RequestError(f"The loss is {found}; training needs a tensor with one element. Reduce it, e.g. by mean().")
    if not loss.requires_grad:
        raise RequestError(
            "The loss does not depend on the network's weights, so there is nothing to train. "
            "Compute it from the prediction with differentiable operations, and train at least one weight."
        )
