"""The branch of most tasks: an activated prediction and an encoded target (Appendix A).

It serves classification, segmentation and regression, in a search and in any other training loop. One-channel logits z
become the two channels (0, z): with a single sigmoid channel, no term of −y·log(p) lowers p.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.errors import RequestError, quote
from autoloss.options import Amount, Natural, check_arguments
from autoloss.space.branch import Branch, Role, Sample, require_measure
from autoloss.space.form import PROBABILITIES, Activation, BranchForm, Divisor, Encoding, Kernel
from autoloss.space.operators import upcast
from autoloss.space.ranges import UNIT, Range

SURE = 20.0
"""A logit whose probability is 1 in float32, while its softmax keeps a gradient of about 1e-9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivatedBranch(Branch):
    """A branch with the leaves `p`, the prediction after softmax, sigmoid or no activation, and `y`, the target.

    The context holds `target` as the data set provides it: class indices (N, …), or values of the prediction's shape.

    Args:
        activation: softmax over channels, sigmoid on each, or none.
        measure: (activated prediction, target) → metric, higher is better; required for a search only.
        encoding: `one_hot` for regions; for boundary metrics `edge`, the 1-pixel inner edge of each class, or `band`, each
            class within `tolerance` pixels of a class border.
        tolerance: Half width of the band in pixels.
        channels: Number of channels of the raw prediction; required by `ideal` only.
        ignore_index: Class index whose positions are left out; of targets of the prediction's shape, such as several labels for
            each row, the value that stands for a missing one.
        divide_by: `all` positions N·H·W, as in the paper, or only the `valid` ones.
        shares: Of the classes in the training data, for losses with fixed class weights; a `SupervisedTask` finds them where
            its data are tensors. One logit has two classes.

    Raises:
        RequestError: An option is unknown or outside its range; on use, the shapes do not fit.

    >>> branch = ActivatedBranch(activation="sigmoid")
    >>> leaves = branch.leaves(torch.zeros(1, 2), {"target": torch.tensor([[1.0, 0.0]])})
    >>> leaves["p"].flatten().tolist(), leaves["y"].flatten().tolist()
    ([0.5, 0.5], [1.0, 0.0])
    """

    activation: Activation = "softmax"
    measure: Callable[[Tensor, Tensor], float] | None = None
    encoding: Encoding = "one_hot"
    tolerance: Natural = 5
    channels: int | None = None
    ignore_index: int | None = None
    divide_by: Divisor = "all"
    weight: Amount = 1.0
    shares: tuple[float, ...] = ()
    leaves_and_roles: Mapping[str, Role] = field(
        default_factory=lambda: {"y": Role.TARGET, "p": Role.PREDICTION}, init=False
    )

    def __post_init__(self) -> None:
        checked = ("activation", "encoding", "tolerance", "divide_by", "weight", "shares")
        check_arguments(ActivatedBranch, {name: getattr(self, name) for name in checked})
        index: Any = self.ignore_index
        # Of values, it may be one such as -1.0.
        if index is not None and (isinstance(index, bool | str) or index % 1):
            raise RequestError(f"ignore_index is {quote(index)}; expected a whole number or none.")
        if not all(0 <= share <= 1 for share in self.shares):
            raise RequestError(f"shares is {quote(self.shares)}; expected numbers from 0 to 1, one for each class.")

    @property
    def ranges(self) -> Mapping[str, Range]:
        known = self.predicts_probabilities and is_plain(self)
        return dict.fromkeys(self.leaves_and_roles, UNIT) if known else {}

    @property
    def has_classes(self) -> bool:
        return self.activation == "softmax"

    @property
    def predicts_probabilities(self) -> bool:
        return self.activation in PROBABILITIES

    @property
    def kernel(self) -> Kernel:
        return self.activation

    def form(self, samples: Sequence[Sample] = ()) -> BranchForm:
        if not is_plain(self):
            # Two arguments: `super()` does not know the class that a dataclass with slots becomes.
            return replace(super(ActivatedBranch, self).form(samples), activation=self.activation)
        return BranchForm(
            leaves=tuple(self.leaves_and_roles),
            activation=self.activation,
            encoding=self.encoding,
            tolerance=int(self.tolerance),
            ignore_index=None if self.ignore_index is None else int(self.ignore_index),
            divide_by=self.divide_by,
            weight=float(self.weight),
            target_kind=self.find_target_kind(samples),
        )

    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        activated = activate(spatial(prediction), self.activation)
        target = self.encode_target(context["target"], activated.shape[1])
        if target.shape != activated.shape:
            given = context["target"]
            fits = given.is_floating_point() and given.shape == prediction[:, 0].shape
            indices = (
                f", or class indices without the channels, the second dimension, as integers{': target.long()' * fits}"
            )
            raise RequestError(
                f"The target's shape {tuple(given.shape)} does not fit the prediction's {tuple(prediction.shape)}: expected the "
                f"same shape{indices * (self.activation != 'none')}."
            )
        return {"y": target.to(activated.dtype), "p": activated}

    def encode_target(self, target: Tensor, channels: int) -> Tensor:
        """Return the leaf y, (N, C, H, W); zero at ignored positions."""
        values = encode(target, channels, self.activation, self.ignore_index)
        if self.encoding == "one_hot":
            return values
        return inner_band(values, 1 if self.encoding == "edge" else self.tolerance)

    def mask(self, context: Mapping[str, Tensor]) -> Tensor | None:
        return None if self.ignore_index is None else mark_counted(context["target"], self.ignore_index)

    def divisor(self, context: Mapping[str, Tensor]) -> float | Tensor:
        target = context["target"]
        if self.divide_by == "valid" and (mask := self.mask(context)) is not None:
            return mask.sum().clamp(min=1) / mask.shape[1]
        channels = target.shape[1] if target.is_floating_point() and target.ndim > 1 else 1
        return float(target.numel() // channels)

    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        target = context["target"]
        return float(require_measure(self.measure)(activate_for_metric(prediction, target, self.activation), target))

    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        target = context["target"]
        if self.channels is None:
            raise RequestError("The number of channels is not set; give ActivatedBranch(channels=…).")
        if self.activation == "none":
            return encode(target, self.channels, self.activation, self.ignore_index)
        values = encode(target, max(self.channels, 2), self.activation, self.ignore_index).clamp(0, 1)
        is_softmax = self.activation == "softmax" and self.channels > 1
        raw = (values.log() + SURE if is_softmax else values.logit()).clamp(-SURE, SURE)
        # A single logit is that of the second of two channels.
        return raw[:, 1:] if self.channels == 1 else raw


def is_plain(branch: Branch) -> TypeGuard[ActivatedBranch]:
    """Say whether a branch makes leaves, mask and divisor as `ActivatedBranch` does: none of these is overridden."""
    decisive = ("leaves", "encode_target", "mask", "divisor")
    return isinstance(branch, ActivatedBranch) and all(
        getattr(type(branch), name) is getattr(ActivatedBranch, name) for name in decisive
    )


def spatial(prediction: Tensor) -> Tensor:
    """View a network's output as (N, C, H, W), with H = W = 1 where there is no space; a volume (N, C, D, H, W) stays as it is."""
    if prediction.ndim in (4, 5):
        return prediction
    if not 1 <= prediction.ndim <= 3:
        raise RequestError(
            f"The prediction has the shape {tuple(prediction.shape)}; expected (N, C, D, H, W), (N, C, H, W), (N, C, L), (N, C) or "
            "(N,). Reshape it before the loss."
        )
    return prediction.reshape(*prediction.shape, *[1] * (4 - prediction.ndim))


def flatten_depth(values: Tensor) -> Tensor:
    """View volumes (N, C, D, H, W) as their slices, (N·D, C, H, W); other values are unchanged."""
    return values.transpose(1, 2).flatten(0, 1) if values.ndim == 5 else values


def activate(prediction: Tensor, activation: str) -> Tensor:
    """Turn a raw prediction (N, C, H, W) into the leaf p; one logit becomes two channels."""
    if activation == "none":
        return upcast(prediction)
    logits, is_softmax = to_logits(prediction, activation)
    return logits.softmax(dim=1) if is_softmax else logits.sigmoid()


def to_logits(prediction: Tensor, activation: str) -> tuple[Tensor, bool]:
    """Return the logits (N, C, H, W) of all channels, a single one as the second of two, and whether p is their softmax."""
    logits = upcast(prediction)
    if logits.shape[1] > 1:
        return logits, activation == "softmax"
    return torch.cat([torch.zeros_like(logits), logits], dim=1), True


def activate_for_metric(prediction: Tensor, target: Tensor, activation: str) -> Tensor:
    """Apply the activation and return the prediction in the shape that metrics expect.

    It has the target's shape if both have the same number of elements. Otherwise it has the network's channels and the
    spatial dimensions of the target.
    """
    raw = spatial(prediction)
    activated = activate(raw, activation)
    if raw.shape[1] == 1 and activation != "none":
        activated = activated[:, 1:]
    if activated.numel() == target.numel():
        return activated.reshape(target.shape)
    # Class indices have no channel dimension; `spatial` added the dimensions that they lack.
    return activated if target.is_floating_point() else activated.reshape(activated.shape[: target.ndim + 1])


def fitting(target: Tensor, prediction: Tensor, activation: str) -> Tensor:
    """Return the target in the one form that branches know: integers are class indices, all else is floating point.

    Integers or booleans of the prediction's own shape are values (multi-label, binary), so they become floating point; so do all
    integers where there is one channel and no activation.
    """
    if target.is_floating_point():
        return target
    is_value = activation == "none" and prediction.ndim > 1 and prediction.shape[1] == 1
    if is_value or target.shape == prediction.shape or target.dtype == torch.bool:
        return target.to(torch.float32)
    return target.long()


def encode(
    target: Tensor,
    channels: int,
    activation: str,
    ignore_index: int | None,
) -> Tensor:
    """Return one-hot classes, zero where ignored, or the values themselves, as (N, C, H, W)."""
    if target.is_floating_point():
        values = upcast(spatial(target if target.ndim > 1 else target.unsqueeze(1)))
        if channels == 2 and values.shape[1] == 1 and activation != "none":
            values = torch.cat([1 - values, values], dim=1)
        if ignore_index is not None:
            values = values.masked_fill(~mark_counted(target, ignore_index), 0)
        return values
    indices = torch.arange(channels, device=target.device)
    classes = target.unsqueeze(1) == indices.view(-1, *[1] * (target.ndim - 1))
    ignored = None if ignore_index is None else target == ignore_index
    if not torch.compiler.is_compiling():
        kept = target if ignored is None else target.masked_fill(ignored, 0)
        check_range(target, kept, channels)
    if ignored is not None:
        classes = classes & ~ignored.unsqueeze(1)
    return spatial(classes.float())


def mark_counted(target: Tensor, ignore_index: int) -> Tensor:
    """Return where targets count: (N, 1, H, W) of classes, (N, C, H, W) of values."""
    has_channels = target.is_floating_point() and target.ndim > 1
    return spatial(target if has_channels else target.unsqueeze(1)) != ignore_index


def index_classes(target: Tensor, logits: Tensor, ignore_index: int | None) -> Tensor:
    """Return class indices as (N, 1, H, W), 0 where ignored."""
    classes = spatial(target.unsqueeze(1)).long()
    if ignore_index is not None:
        classes = classes.masked_fill(classes == ignore_index, 0)
    if not torch.compiler.is_compiling():
        check_range(target, classes, logits.shape[1])
    if classes.shape[0] != logits.shape[0] or classes.shape[2:] != logits.shape[2:]:
        raise RequestError(
            f"Class indices of shape {tuple(target.shape)} do not fit the prediction's {tuple(logits.shape)}: expected one index "
            "for each position."
        )
    return classes


def check_range(target: Tensor, classes: Tensor, channels: int) -> None:
    """Raise RequestError unless all classes, the target's without ignored ones, are channels."""
    if not classes.numel():
        return
    low, high = classes.aminmax()
    if bool((low < 0) | (high >= channels)):
        raise RequestError(
            f"The target holds class indices from {int(target.min())} to {int(target.max())}; the prediction has the "
            f"channels 0 to {channels - 1}. Name the index to leave out as ignore_index; give values as floating point."
        )


def dilate(edges: Tensor, width: int) -> Tensor:
    """Return the largest value within `width` pixels (square window); the image border bounds the window."""
    if edges.requires_grad:
        # Backwards, pooling goes to one position of each window; minima of pairs would go through all of them.
        across = F.max_pool2d(edges, (1, 2 * width + 1), stride=1, padding=(0, width))
        return F.max_pool2d(across, (2 * width + 1, 1), stride=1, padding=(width, 0))
    return -erode(-edges, width)


def inner_band(values: Tensor, width: int) -> Tensor:
    """Keep the values where a position lies in its class within `width` pixels (square window) of a position outside it.

    Args:
        values: One-hot classes, (N, C, H, W), or soft ones: the value of a position is then multiplied by how far outside the
            class its window reaches. What is ignored counts as outside every class; the image border does not.
        width: Pixels; 1 gives the inner edge.
    """
    return values * (1 - erode(values, width))


def erode(values: Tensor, width: int) -> Tensor:
    """Return the smallest value within `width` pixels (square window); the image border bounds the window."""
    # Minima of pairs, a direction at a time: faster than pooling for small images on a CPU.
    for dimension in range(2, values.ndim):
        reach, size = 0, values.shape[dimension]
        while reach < min(width, size - 1):
            # A longer step would leave a gap at the image border.
            step = min(reach + 1, width - reach, size - 1 - reach)
            kept = size - step
            first = values.narrow(dimension, 0, step)
            last = values.narrow(dimension, kept, step)
            later = values.narrow(dimension, step, kept)
            least = torch.minimum(values.narrow(dimension, 0, kept), later)
            before = torch.cat([first, least], dimension)
            values = torch.minimum(before, torch.cat([least, last], dimension))
            reach += step
    return values
