"""What a head of a detector declares: its stage, its branch, its standard loss, and what its loss is called with (Section 4.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from autoloss.space.boxes import PLAIN, AreaUnit
from autoloss.space.branch import Branch, Sample


class Stage(Enum):
    """Where a network samples boxes to train on, and calls the losses of the heads that predict them."""

    RPN = "rpn"
    """Anchors of the region proposal network, with one class: object."""
    RCNN = "rcnn"
    """Regions that were proposed, with all classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSettings:
    """Settings that the branches of a detector share.

    Args:
        unit: Of the areas i, u and e: square `pixels`, the paper's, or the area of each `target` box.
        regression_weight: Weight of trees of areas; a hand-written loss on deltas keeps its own, 1.
        deviations: Standard deviations in which the rejection protocol counts deltas.
    """

    unit: AreaUnit = "pixels"
    regression_weight: float = 10.0
    deviations: tuple[float, float, float, float] = PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBoxes:
    """The N boxes that a stage samples in one step, positive and negative, with what the network predicts for them.

    Args:
        logits: Of the classes, (N, K).
        deltas: Of each box's own class, (N, 4).
        target: Class of each box, (N,); 0 for a negative.
        box: Assigned ground-truth box, (N, 4); of a negative its own reference box.
        reference: Anchors or regions, (N, 4).
        deviations: Unit of the deltas, (1, 4).
        truth: Ground-truth boxes of the batch, (G, 4).
        truth_target: Their classes, (G,).
    """

    logits: Tensor
    deltas: Tensor
    target: Tensor
    box: Tensor
    reference: Tensor
    deviations: Tensor
    truth: Tensor
    truth_target: Tensor

    @property
    def context(self) -> dict[str, Tensor]:
        """The context of every head's loss."""
        return {
            "target": self.target,
            "box": self.box,
            "truth": self.truth,
            "truth_target": self.truth_target,
        }


class Head(ABC):
    """One of a detector's losses.

    A network calls `inputs` once a step with the boxes that its stage sampled, and the criterion's loss of this name with what
    comes back. The rejection protocol calls the same on an untrained network, and turns it into a sample.

    Attributes:
        name: Of the branch.
        stage: Where the loss is called.
        standard: Name in the zoo of the usual loss.
    """

    name: str
    stage: Stage
    standard: str

    @abstractmethod
    def branch(self, classes: int, settings: BranchSettings) -> Branch:
        """Return the branch that losses of this head are applied to.

        Args:
            classes: C, without background.
        """

    @abstractmethod
    def inputs(self, boxes: SampledBoxes) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the raw prediction (N, C, 1, 1) and the context that the loss is called with."""

    def sample(self, prediction: Tensor, context: Mapping[str, Tensor], settings: BranchSettings) -> Sample:
        """Return what `inputs` gave for one image as a sample of the rejection protocol."""
        return Sample(prediction, context)
