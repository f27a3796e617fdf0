"""Hand-written losses of boxes and of scores: smooth L1 on deltas, the classification loss of CSE-AutoLoss-A, and those over lists.

Losses over lists and risk sets, whose sums in a logarithm are no tree, and of single items are means over what they count, so that
their rates compare with those of trees, which are means over pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.space.boxes import BoxRegression, encode
from autoloss.space.branch import Branch
from autoloss.space.loss import mean_over_positions
from autoloss.space.operators import signed_log, upcast
from autoloss.space.pair_lists import number_groups
from autoloss.space.pairs import PairBranch

BETA = 1 / 9
"""Absolute error at which smooth L1 turns from quadratic to linear."""


@dataclass(frozen=True, slots=True)
class SmoothL1:
    """Smooth L1 on the deltas of positive boxes, divided by the number of sampled ones; the branch's weight is not used.

    Source: Ren et al., 2015, Faster R-CNN; threshold and divisor are torchvision's.
    """

    branch: Branch

    def __post_init__(self) -> None:
        if not isinstance(self.branch, BoxRegression):
            raise RequestError(
                "Smooth L1 compares the deltas of boxes; this branch has the leaves "
                f"{', '.join(self.branch.leaves_and_roles)}. Use baseline/mse for plain values."
            )

    def __call__(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast(prediction.device.type, enabled=False):
            positive = context["target"] > 0
            deltas = upcast(prediction).flatten(1)[positive]
            box, reference = context["box"][positive], context["reference"][positive]
            wanted = encode(box, reference, context["deviations"]).to(deltas)
            return F.smooth_l1_loss(deltas, wanted, beta=BETA, reduction="sum") / max(1, len(positive))


@dataclass(frozen=True, slots=True)
class WeightedByOverlap:
    """Cross entropy with the weight 1 + sin(w), where w is the IoU of the predicted box of a positive, and 1 for a negative.

    Source: Liu et al., 2021, Loss Function Discovery for Object Detection via Convergence-Simulation Driven Search,
    CSE-AutoLoss-A; the value of w for a negative is that of the authors' code.
    """

    branch: Branch

    def __post_init__(self) -> None:
        if self.branch.pair is None:
            raise RequestError(
                "CSE-AutoLoss-A's classification compares probabilities with a target; this branch has the leaves "
                f"{', '.join(self.branch.leaves_and_roles)}. Its other half is baseline/cse_auto_a_reg."
            )

    def __call__(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Compute the loss from the raw prediction, in at least float32."""
        if "overlap" not in context:
            raise RequestError("CSE-AutoLoss-A's classification needs the IoU of predicted boxes: use detection.")
        with torch.autocast(prediction.device.type, enabled=False):
            leaves = self.branch.leaves(upcast(prediction), context)
            p, y = (leaves[name] for name in self.branch.pair or ())
            importance = 1 + context["overlap"].detach().to(p)[:, None, None, None].sin()
            value = -importance * y * signed_log(p)
            return self.branch.weight * mean_over_positions(
                value, self.branch.mask(context), self.branch.divisor(context)
            )


@dataclass(frozen=True, slots=True)
class ScoreLoss(ABC):
    """A loss of the scores of all items of a batch: (raw prediction, context) → scalar, with the weight of the branch.

    Raises:
        RequestError: The branch is not one of pairs, or its values mean something else to the loss.
    """

    of_times: ClassVar[bool] = False
    """Whether values are times, with the column `event`, of which the earlier one comes first; otherwise a relevance."""
    branch: Branch

    def __post_init__(self) -> None:
        if not isinstance(self.branch, PairBranch):
            raise RequestError(
                f"{type(self).__name__} compares the scores of items; this branch has the leaves "
                f"{', '.join(self.branch.leaves_and_roles)}. It is for the tasks ranking and survival, or an autoloss.PairBranch."
            )
        if ("event" in self.branch.columns) != self.of_times:
            wanted = "times, with the column event" if self.of_times else "relevance, without the column event"
            raise RequestError(
                f"{type(self).__name__} is a loss of {wanted}; this branch has the columns {', '.join(self.branch.columns)}."
            )

    def __call__(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast(prediction.device.type, enabled=False):
            scores = upcast(prediction).flatten()
            return self.branch.weight * self.compute(scores, context["target"])

    @abstractmethod
    def compute(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return the loss; 0 with a gradient of 0 where nothing counts.

        Args:
            scores: (N,).
            target: (N, K), with the columns of the branch.
        """

    def get_column(self, target: Tensor, name: str) -> Tensor:
        assert isinstance(self.branch, PairBranch)
        found = self.branch.get_column(target, name)
        assert found is not None
        return found


@final
class Cox(ScoreLoss):
    """The negative partial likelihood of proportional hazards, averaged over the events.

    The risk set of an event holds all items with that time or a later one, of equal times each (Breslow).

    Source: Cox, 1972, Regression Models and Life-Tables; Katzman et al., 2018, DeepSurv, Eq. 4.
    """

    of_times = True

    def compute(self, scores: Tensor, target: Tensor) -> Tensor:
        event, times = self.get_column(target, "event") > 0, self.get_column(target, "value")
        # Unsigned integers have no negatives.
        times = times.double()
        order = times.argsort(descending=True, stable=True)
        scores, event, times = scores[order], event[order], times[order]
        # Of equal times, the sum over all of them stands at the last.
        last = torch.searchsorted(-times, -times, right=True) - 1
        at_risk = scores.logcumsumexp(0)[last]
        return torch.where(event, at_risk - scores, 0 * scores).sum() / event.sum().clamp(min=1)


@final
class ListNet(ScoreLoss):
    """Cross entropy between the softmax over a query's scores and the share of each item in the query's relevance.

    Source: Cao et al., 2007, Learning to Rank: From Pairwise Approach to Listwise Approach; with shares of the relevance as in
    Bruch et al., 2019, An Analysis of the Softmax Cross Entropy Loss for Learning-to-Rank with Binary Relevance.
    """

    def compute(self, scores: Tensor, target: Tensor) -> Tensor:
        assert isinstance(self.branch, PairBranch)
        groups = self.branch.get_column(target, "group")
        members, sizes = number_groups(torch.zeros_like(scores) if groups is None else groups)
        relevance = self.get_column(target, "value").to(scores)
        relevance = relevance - relevance.min() if len(relevance) else relevance
        largest = scores.new_full((len(sizes),), -torch.inf).scatter_reduce(0, members, scores.detach(), "amax")
        shifted = scores - largest[members]
        totals = torch.zeros_like(largest).index_add(0, members, shifted.exp())
        sums = torch.zeros_like(largest).index_add(0, members, relevance)
        share = relevance / sums.clamp(min=1e-12)[members]
        return (share * (totals.log()[members] - shifted)).sum() / (sums > 0).sum().clamp(min=1)


@final
class AucMargin(ScoreLoss):
    """The AUC margin loss: variances of the probabilities of both classes, and the missing margin between their means.

    LibAUC trains a, b and α of its min-max form beside the network; here they take their best values for the batch.

    Source: Yuan et al., 2021, Large-scale Robust Deep AUC Maximization, Eq. 5, with the margin 1.
    """

    def compute(self, scores: Tensor, target: Tensor) -> Tensor:
        value = self.get_column(target, "value")
        positive = value > value.min() if len(value) else value > 0
        if not bool(positive.any()):
            return 0 * scores.sum()
        p = scores.sigmoid()
        one, other = p[positive], p[~positive]
        missing = (1 + other.mean() - one.mean()).clamp(min=0)
        return one.var(correction=0) + other.var(correction=0) + missing.square()


@final
class Pointwise(ScoreLoss):
    """Binary cross entropy of each item alone, between the sigmoid of its score and its relevance over the batch's largest.

    Where some relevance is negative, the least of the batch counts as 0.

    Source: the standard loss of click prediction and of classification, see Burges et al., 2005, Section 2.
    """

    def compute(self, scores: Tensor, target: Tensor) -> Tensor:
        value = self.get_column(target, "value").to(scores)
        value = value - value.min().clamp(max=0) if len(value) else value
        return F.binary_cross_entropy_with_logits(scores, value / value.max().clamp(min=1e-12) if len(value) else value)
