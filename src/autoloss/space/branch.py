"""A branch of a network, its samples, and the criterion that trains it (Section 3.1)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.space.form import PROBABILITIES, BranchForm, Kernel, TargetKind
from autoloss.space.ranges import BINARY, UNIT, Range

POOLS, CHANNEL_MEANS = ("max_pool", "min_pool"), ("mean_c",)
"""Operators of Table 1 that change nothing where a plane has one position, and where there is one channel."""


class Role(Enum):
    """The dependence of a leaf. A tree is a loss only if it depends on both prediction and target."""

    PREDICTION = "prediction"
    TARGET = "target"
    BOTH = "both"
    """Prediction and target at once, such as the areas i, u, e of two boxes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sample of an untrained network: an image, the boxes of an image, or a batch of rows.

    Args:
        prediction: The raw output, before any activation, (N, C, H, W).
        context: All other tensors that the branch needs, such as the target; batch dimension first.
    """

    prediction: Tensor
    context: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    def crop(self, size: Sequence[int]) -> Sample:
        """Return the middle of the sample, of this size (H, W) or (D, H, W), with all tensors that have its space."""
        have = tuple(self.prediction.shape[2:])
        if have == tuple(size):
            return self
        middle = tuple(slice((old - new) // 2, (old - new) // 2 + new) for old, new in zip(have, size, strict=True))
        # A target may lack the channels, and that of a sequence (N, C, L, 1) the last axis, but has the prediction's space.
        spaces = (have, have[:-1]) if have[-1] == 1 else (have,)

        def crop(tensor: Tensor) -> Tensor:
            for space in spaces:
                if tuple(tensor.shape[-len(space) :]) == space:
                    return tensor[(..., *middle[: len(space)])]
            return tensor

        return Sample(crop(self.prediction), {name: crop(tensor) for name, tensor in self.context.items()})


class Branch(ABC):
    """One output of a network that a loss is applied to, and the owner of every fact about it.

    `prediction` is raw everywhere: logits, heatmap values, box deltas. A new kind of branch is a subclass in one file: it declares
    its leaves with their roles, its weight, and the abstract methods. Every other member has a default that is correct for any
    branch, if not the fastest.
    """

    leaves_and_roles: Mapping[str, Role]
    """The leaves of this branch's trees and their roles, such as y and p, or i, u and e; without the constant 1."""
    weight: float
    """Factor of this branch's loss in the sum over branches."""
    is_single: ClassVar[bool] = False
    """Whether the leaves have one number for each item: one channel and no space."""

    @abstractmethod
    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the values of the leaves, (N, C, H, W), differentiable in `prediction`."""

    @abstractmethod
    def mask(self, context: Mapping[str, Tensor]) -> Tensor | None:
        """Return True where a position counts, broadcastable to (N, C, H, W), or None when all do."""

    @abstractmethod
    def divisor(self, context: Mapping[str, Tensor]) -> float | Tensor:
        """Return the divisor of the sum over all elements in training, usually N·H·W."""

    @abstractmethod
    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        """Return the metric of one sample, higher is better; NaN where it is undefined."""

    @abstractmethod
    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        """Return the raw prediction that matches the target exactly, in the shape of a prediction."""

    def make_context(self, prediction: Tensor, target: Tensor) -> Mapping[str, Tensor]:
        """Return what the other methods need besides the prediction: the target, and what is derived from it once.

        Args:
            prediction: Raw; what is derived from it is a constant for the gradient.
            target: As the data set provides it.
        """
        return {"target": target}

    def is_empty(self, context: Mapping[str, Tensor]) -> bool:
        """Return True if no loss can be computed of a batch; training skips it."""
        return False

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The values that leaves can take; a leaf without a range can take any. They are used to simplify formulas."""
        return {}

    def find_idle_operators(self, samples: Sequence[Sample]) -> frozenset[str]:
        """Return the names of operators that change no value on the branch's shape, as its samples show it.

        Pools need space: on rows, H = W = 1, they return what they are given. So does a mean over a single channel.

        Args:
            samples: Those of the run; without any, nothing is known.
        """
        leaves = [self.leaves(sample.prediction.detach(), sample.context) for sample in samples]
        shapes = [value.shape for one in leaves for value in one.values()]
        flat = bool(shapes) and all(math.prod(shape[2:]) == 1 for shape in shapes)
        single = bool(shapes) and all(shape[1] == 1 for shape in shapes)
        return frozenset((*(POOLS if flat else ()), *(CHANNEL_MEANS if single else ())))

    @property
    def has_classes(self) -> bool:
        """True if the prediction's leaf holds the probabilities of classes of which one is right, as after a softmax."""
        return False

    @property
    def predicts_probabilities(self) -> bool:
        """True if all leaves that depend on the prediction alone are probabilities."""
        predicted = [name for name, role in self.leaves_and_roles.items() if role is Role.PREDICTION]
        return bool(predicted) and all(self.ranges.get(name) == UNIT for name in predicted)

    @property
    def pair(self) -> tuple[str, str] | None:
        """The names of the prediction's leaf and of the target's, where the branch has these two and no others."""
        names = {role: name for name, role in self.leaves_and_roles.items()}
        alone = len(self.leaves_and_roles) == 2 and names.keys() == {Role.PREDICTION, Role.TARGET}
        return (names[Role.PREDICTION], names[Role.TARGET]) if alone else None

    @property
    def step_to_ideal(self) -> float:
        """Share of the way to the ideal prediction by which a partly right one is moved.

        Logits of the ideal prediction are so large that a tenth makes a probability of 0.8 to 0.9 of eleven classes.
        """
        return 0.1 if self.predicts_probabilities else 0.5

    @property
    def overshoots(self) -> bool:
        """True if a prediction may lie on either side of the ideal one, as a number may: |p − y| and −p differ on one side only."""
        return self.pair is not None and not self.predicts_probabilities

    def has_competition(self, channels: int) -> bool:
        """Return True if a prediction of so many channels passes through a softmax; one logit is a softmax over two channels."""
        return self.has_classes or (channels == 1 and self.predicts_probabilities)

    @property
    def kernel(self) -> Kernel | None:
        """How compiled code computes the leaves; None where it cannot, and the reference runs instead."""
        return None

    def with_kernel(self, kernel: str) -> Branch:
        """Return the branch with leaves of another kernel, or itself if it does not support that one."""
        return self

    def fits(self, kernel: str, channels: int) -> bool:
        """Return True if a loss that was published for leaves of this kernel means the same here.

        Args:
            channels: Of the raw prediction. One logit becomes two, of which softmax and sigmoid make the same probabilities.
        """
        return kernel == self.kernel or (channels == 1 and {kernel, self.kernel} == {*PROBABILITIES})

    def fixed_inputs(self, sample: Sample, precision: torch.dtype) -> Tensor:
        """Return what compiled code needs besides the prediction, (N, C, H, W): the leaf of the target."""
        assert self.pair is not None
        return self.leaves(sample.prediction.detach().to(precision), sample.context)[self.pair[1]]

    def form(self, samples: Sequence[Sample] = ()) -> BranchForm:
        """Return what a run stores of the branch, and exports need.

        Args:
            samples: Those of the run, which tell what kind of target the branch has.
        """
        kind = self.find_target_kind(samples)
        known = dict(self.ranges)
        if kind in ("one_hot", "binary"):
            known |= {name: BINARY for name, role in self.leaves_and_roles.items() if role is Role.TARGET}
        return BranchForm(
            leaves=tuple(self.leaves_and_roles),
            from_prediction=False,
            activation="none",
            weight=float(self.weight),
            target_kind=kind,
            bounds=tuple((name, *found.to_bounds()) for name, found in known.items()),
            is_single=self.is_single,
        )

    def find_target_kind(self, samples: Sequence[Sample]) -> TargetKind | None:
        """Return what the targets are on samples; None where no leaf is a target alone.

        Class indices are one-hot by construction. Of floating-point targets the samples are the evidence, and only where the
        prediction says that they are probabilities: the counts of a regression are 0 or 1 by chance.
        """
        names = [name for name, role in self.leaves_and_roles.items() if role is Role.TARGET]
        if not names or not samples:
            return None
        one_hot = True
        for sample in samples:
            leaves, mask = self.leaves(sample.prediction, sample.context), self.mask(sample.context)
            for value in (leaves[name] for name in names):
                counted = value if mask is None else torch.where(mask, value, 0)
                if not bool(((counted == 0) | (counted == 1)).all()):
                    return "values"
                sums = counted.sum(dim=1, keepdim=True)
                one_hot &= bool((sums == 1 if mask is None else (sums == 1) | ~mask).all())
        indices = all("target" in one.context and not one.context["target"].is_floating_point() for one in samples)
        if not self.predicts_probabilities and not indices:
            return "values"
        return "one_hot" if one_hot else "binary"


def require_measure(measure: Callable[..., float] | None) -> Callable[..., float]:
    """Return the metric of a branch, which a search needs."""
    if measure is None:
        raise RequestError("This branch has no metric; give it one to search with it: measure=….")
    return measure


BranchLoss = Callable[[Tensor, Mapping[str, Tensor]], Tensor]
"""(raw prediction, context) → scalar: a bound tree or a hand-written loss."""

Criterion = Mapping[str, BranchLoss]
"""Branch name → its loss; a network applies each to the output of that branch."""
