"""The declaration of a detector's head: its stage, branch and standard loss, and the arguments of its loss (Section 4.2).

A head of the stage `RCNN` may also declare layers of its own, and further targets of each object: a mask head is one file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import Tensor, nn

from autoloss.space.boxes import AreaUnit
from autoloss.space.branch import Branch, Sample


class Stage(Enum):
    """The stage of a network that samples boxes to train on, and calls the losses of its heads."""

    RPN = "rpn"
    """Anchors of the region proposal network, with one class: object."""
    RCNN = "rcnn"
    """Regions that were proposed, with all classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLayers:
    """Layers that a head adds to the second stage of a network, on pooled features of its own.

    They are trained on the regions with an object, and applied to the detections in evaluation: each image's detections
    then hold their output under the name of the head. `build` maps (channels of the features, C without background) to
    layers from (N, channels, `roi_size`, `roi_size`) to the raw prediction (N, …), after the rest of the network has been
    built; a cell has `roi_points` sampling points along each side.
    """

    build: Callable[[int, int], nn.Module]
    roi_size: int = 14
    roi_points: int = 2


@dataclass(frozen=True, slots=True)
class ObjectTarget:
    """A target `name`, (G, …), that a head needs of each object of an image besides its box and class.

    The network's transform resizes `masks`, (G, H, W), and `keypoints` with the image, and nothing else. `mirror` maps
    values and the width of the image to the values in the mirrored image, `usable` values to the objects (G,) that can be
    trained on; all when None.
    """

    name: str
    mirror: Callable[[Tensor, int], Tensor]
    usable: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOutput:
    """The predictions (N, …) of a head's layers, in float32, for the N sampled regions with an object, and the object of each.

    Beside regions (N, 4) and their classes, `image` (N,) is the index of their image and `assigned` (N,) that of their
    object in it; `objects` are, for each image, `boxes`, `labels` and the declared targets, (G, …) each.
    """

    prediction: Tensor
    region: Tensor
    target: Tensor
    image: Tensor
    assigned: Tensor
    objects: Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBoxes:
    """The N boxes that a stage samples in one step, positive and negative, with what the network predicts for them.

    Logits of the classes are (N, K), deltas of each box's own class (N, 4), `target` its class, 0 for a negative, and `box`
    its assigned ground-truth box, of a negative its own `reference` box, an anchor or region. `deviations`, (1, 4), are the
    unit of the deltas; `truth` (G, 4) and `truth_target` (G,) the ground truth of the batch; `own` the output of the head's
    own layers.
    """

    logits: Tensor
    deltas: Tensor
    target: Tensor
    box: Tensor
    reference: Tensor
    deviations: Tensor
    truth: Tensor
    truth_target: Tensor
    own: OwnOutput | None = None

    @property
    def context(self) -> dict[str, Tensor]:
        """The context of every head's loss."""
        return {name: getattr(self, name) for name in ("target", "box", "truth", "truth_target")}


class Head(ABC):
    """A head of a detector, with one branch of its name and one loss, `standard` by the zoo's name.

    A network calls `inputs` once per step with the boxes that its stage sampled, and the criterion's loss of this name with
    the result. The rejection protocol does the same on an untrained network, and makes a sample of it. In the stage `RCNN`
    it may have layers of its own, and `targets` of each object besides box and class.
    """

    name: str
    stage: Stage
    standard: str
    layers: RegionLayers | None = None
    targets: tuple[ObjectTarget, ...] = ()

    @abstractmethod
    def branch(self, classes: int, unit: AreaUnit) -> Branch:
        """Return the branch that losses of this head are applied to, for C classes without background and a unit of areas."""

    @abstractmethod
    def inputs(self, boxes: SampledBoxes) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the raw prediction and the context that the loss is called with; it is not called without a region with an object.

        The prediction is (N, C, 1, 1) for boxes, (N, C, H, W) for layers that predict maps.
        """

    def detect(self, found: Mapping[str, Tensor], size: tuple[int, int]) -> Mapping[str, Any]:
        """Return the fields of `Detections` that its own layers add for an image of a height and width; in evaluation only.

        `found` holds `boxes` (D, 4) in pixels of the image, `scores` and `labels` (D,), and the layers' output under
        the head's name, (D, …).
        """
        return {}

    def sample(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Sample:
        """Return the result of `inputs` for one image as a sample of the rejection protocol."""
        return Sample(prediction, context)


def collect_targets(heads: Iterable[Head]) -> tuple[ObjectTarget, ...]:
    """Return the targets that heads need of each object, each once."""
    return tuple({target.name: target for head in heads for target in head.targets}.values())
