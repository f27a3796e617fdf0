"""Hand-written losses of classification, segmentation and images of values: weighted cross entropies, soft Dice, Lovász and SSIM.

Such a loss is a function of `Regions`; `RegionLoss` applies it to a branch with mask, weight and precision. None is a tree: they
divide one sum over the batch by another, sort the errors of a batch, or take means over Gaussian windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.space.activated import ActivatedBranch, flatten_depth
from autoloss.space.branch import Branch
from autoloss.space.operators import EPSILON, upcast

POSITIONS = (0, 2, 3)
"""All dimensions of (N, C, H, W) except the classes."""
TOLERANCE = 5
"""Default tolerance in pixels, for branches without one."""
LEAST_SIZE = 1e-7
"""Keeps the quotient of Dice finite for a class that is neither predicted nor in the target."""
WINDOW, DEVIATION = 11, 1.5
"""Of SSIM: side of the window and standard deviation of its Gaussian, in pixels."""
STABLE_MEAN, STABLE_VARIANCE = 0.01**2, 0.03**2
"""C₁ and C₂ of SSIM for values from 0 to 1."""
SSIM_SHARE = 0.84
"""Share of SSIM beside the absolute error of images."""


@dataclass(frozen=True, slots=True)
class Regions:
    """Probabilities and target classes at each position, in at least float32.

    Args:
        p: Probabilities, (N, C, H, W), zero at positions that do not count.
        y: One-hot classes, (N, C, H, W), zero at the same positions. They are whole regions even if the branch trains trees on
            borders: a hand-written loss for borders derives them itself.
        counted: True at positions that count, (N, 1, H, W); of labels some of which are missing (N, C, H, W).
        divisor: Divisor of the branch: N·H·W, or the number of positions that count.
        tolerance: Tolerance of border metrics, in pixels.
        shares: Of the classes in the training data, one each.
    """

    p: Tensor
    y: Tensor
    counted: Tensor
    divisor: float | Tensor
    tolerance: int = TOLERANCE
    shares: Sequence[float] = ()


@final
@dataclass(frozen=True, slots=True)
class RegionLoss:
    """A hand-written loss of one branch."""

    branch: Branch
    value: Callable[[Regions], Tensor]

    def __post_init__(self) -> None:
        if self.branch.pair is None:
            raise RequestError(
                f"This loss needs probabilities and classes; the branch has {', '.join(self.branch.leaves_and_roles)}."
            )

    def __call__(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Compute the loss from the raw prediction."""
        with torch.autocast(prediction.device.type, enabled=False):
            return self.branch.weight * self.value(read_regions(self.branch, prediction, context))


def read_regions(branch: Branch, prediction: Tensor, context: Mapping[str, Tensor]) -> Regions:
    """Return the regions of a raw prediction and its target; those of a volume are its slices."""
    tolerance, shares = TOLERANCE, ()
    if isinstance(branch, ActivatedBranch):
        tolerance, shares = branch.tolerance, branch.shares
        if branch.encoding != "one_hot":
            branch = replace(branch, encoding="one_hot")
    leaves = branch.leaves(upcast(prediction), context)
    p, y = (leaves[name] for name in branch.pair or ())
    counted = branch.mask(context)
    if counted is None:
        counted = torch.ones_like(p[:, :1], dtype=torch.bool)
    else:
        p, y = (torch.where(counted, values, torch.zeros_like(values)) for values in (p, y))
    p, y, counted = map(flatten_depth, (p, y, counted))
    return Regions(p, y, counted, branch.divisor(context), tolerance, shares)


def average_over_classes(losses: Tensor, y: Tensor) -> Tensor:
    """Average the losses of the classes, (C,); a class that is not in y adds 0 and has no gradient."""
    present = y.sum(POSITIONS) > 0
    return torch.where(present, losses, torch.zeros_like(losses)).mean()


def weighted_cross_entropy(regions: Regions, weights: Sequence[float] | Tensor | None = None) -> Tensor:
    """Return cross entropy with a weight for each class, divided by the sum of all positions' weights as in torch.

    Args:
        weights: One per class; by default the inverse frequencies in the batch, so that each class of its target has the
            same share in the loss.

    Source: Ronneberger et al., 2015, U-Net, Eq. 1 and 2: the term w_c that balances the class frequencies. The second
    term, which separates touching cells of one class, does not apply without instances.
    """
    y = regions.y
    if weights is None:
        count = y.sum(POSITIONS)
        scale = torch.where(count > 0, 1 / count.clamp(min=EPSILON), torch.zeros_like(count))
    elif len(weights) == y.shape[1]:
        scale = torch.as_tensor(weights).to(y)
    else:
        raise RequestError(f"{len(weights)} class weights were given for {y.shape[1]} classes; give one for each.")
    share = y * scale.view(1, -1, 1, 1)
    return (share * negative_log(regions.p)).sum() / share.sum().clamp(min=EPSILON)


def class_weighted_cross_entropy(regions: Regions) -> Tensor:
    """Return cross entropy with the inverse shares of the classes in the training data as weights.

    Where a batch holds few rows of a rare class, its own shares are too uncertain for weights.

    Source: King & Zeng, 2001, Logistic Regression in Rare Events Data, Section 5.2.
    """
    return weighted_cross_entropy(regions, 1 / _get_shares(regions))


def class_weighted_binary_cross_entropy(regions: Regions) -> Tensor:
    """Return binary cross entropy of each label, yes and no with the inverse shares of both in the training data as weights.

    Source: King & Zeng, 2001, Logistic Regression in Rare Events Data, Section 5.2.
    """
    p, y, shares = regions.p, regions.y, _get_shares(regions).view(1, -1, 1, 1)
    weights = regions.counted * (y / shares + (1 - y) / (1 - shares).clamp(min=EPSILON))
    return (weights * (y * negative_log(p) + (1 - y) * negative_log(1 - p))).sum() / weights.sum().clamp(min=EPSILON)


def logit_adjusted_cross_entropy(regions: Regions) -> Tensor:
    """Return cross entropy of the logits plus the logarithms of the shares of the classes in the training data.

    Source: Menon et al., 2021, Long-tail learning via logit adjustment, Eq. 10, with τ = 1.
    """
    p, shares = regions.p, _get_shares(regions).view(1, -1, 1, 1)
    total = (p * shares).sum(1, keepdim=True)
    return (regions.y * (negative_log(p) - shares.log() - negative_log(total))).sum() / regions.divisor


def _get_shares(regions: Regions) -> Tensor:
    """Return the shares of the classes, (C,): those of the batch where the branch does not know those of the training data.

    A class that the training data lack, and those of another schedule may have, has the share of the rarest.
    """
    if not regions.shares:
        return (regions.y.sum(POSITIONS) / regions.counted.sum(POSITIONS).clamp(min=1)).clamp(min=EPSILON)
    if len(regions.shares) != regions.p.shape[1]:
        raise RequestError(f"The branch has shares of {len(regions.shares)} classes; expected {regions.p.shape[1]}.")
    rarest = min((share for share in regions.shares if share), default=1.0)
    return regions.p.new_tensor([share or rarest for share in regions.shares])


def distance_penalised_cross_entropy(regions: Regions) -> Tensor:
    """Return cross entropy times 1 + φ, where φ falls from 1 at the border of the target's region to 0 at its innermost point.

    φ = 1 − (d − 1) / (d_max − 1), with d a pixel's Euclidean distance to the nearest pixel outside its region (1 at the inner edge)
    and d_max the largest of its class in its image; in an image of one class φ is 0. Ignored positions are outside every
    region; the image border does not bound a region.

    Source: Caliva et al., 2019, Distance Map Loss Penalty Term for Semantic Segmentation (DPCE): (1 + φ)·CE with the
    reverted distance transform. They do not say whether φ is in pixels; here it is scaled to [0, 1] for each mask, so that the
    loss lies between one and two cross entropies for any image size.
    """
    with torch.no_grad():
        penalty = compute_border_proximity(regions.y)
    return (regions.y * (1 + penalty) * negative_log(regions.p)).sum() / regions.divisor


def compute_border_proximity(y: Tensor) -> Tensor:
    """Compute φ at each position of the target's region, (N, C, H, W); zero elsewhere."""
    from scipy.ndimage import distance_transform_edt

    classes = torch.where(y.sum(dim=1) > 0, y.argmax(dim=1), -1).numpy(force=True)
    distance = np.zeros(classes.shape)
    for image, found in zip(classes, distance, strict=True):
        labels = np.unique(image)
        for label in labels if len(labels) > 1 else ():
            found[image == label] = np.asarray(distance_transform_edt(image == label))[image == label]
    inside = torch.as_tensor(distance).to(y).unsqueeze(1) * (y > 0)
    depth = inside.amax(dim=(2, 3), keepdim=True) - 1
    relative = (inside - 1) / depth.clamp(min=1e-6)
    return torch.where(inside > 0, 1 - relative, torch.zeros_like(inside))


def negative_log(p: Tensor) -> Tensor:
    """Return −log p, finite with a finite gradient at 0."""
    return -(p + EPSILON).log()


def soft_dice(regions: Regions) -> Tensor:
    """Return one minus the Dice coefficient of probabilities, averaged over classes.

    The coefficient of a class is 2·Σpy / Σ(p + y) over all positions of the batch that count. A class that is not in the
    target of the batch adds 0 and has no gradient.

    Source: Milletari et al., 2016, V-Net, Section 3, with plain sums in the denominator; the class average and the treatment of
    absent classes are those of `DiceLoss` in segmentation-models-pytorch.
    """
    p, y = regions.p, regions.y
    overlap, size = (p * y).sum(POSITIONS), (p + y).sum(POSITIONS)
    return average_over_classes(1 - 2 * overlap / size.clamp(min=LEAST_SIZE), y)


def lovasz_softmax(regions: Regions) -> Tensor:
    """Return the Lovász extension of one minus the IoU at the errors |y − p|, averaged over classes.

    The IoU of a class is over all positions of the batch that count, not per image. The mean is over the classes in the
    target of the batch; if there are none, the loss is 0.

    Source: Berman et al., 2018, The Lovász-Softmax loss, Eq. 9 to 11 and Algorithm 1, with `classes="present"`.
    """
    y = regions.y.movedim(1, 0).flatten(1)
    errors = (y - regions.p.movedim(1, 0).flatten(1)).abs()
    # Positions that do not count have error 0: they are sorted last, where they have no influence.
    order = _sort_descending(errors.detach())
    weights = torch.zeros_like(y).scatter_(1, order, _compute_increments(y.gather(1, order)))
    present = regions.y.sum(POSITIONS) > 0
    losses = (errors * weights).sum(dim=1)
    return torch.where(present, losses, torch.zeros_like(losses)).sum() / present.sum().clamp(min=1)


def _sort_descending(values: Tensor) -> Tensor:
    """Return the order that sorts each row of values that are not negative, the largest first."""
    if values.device.type != "cpu" or values.dtype != torch.float32:
        return values.argsort(dim=1, descending=True)
    # Such floats are ordered as their bits are. One sort of bits and place together takes half the time of an argsort on a CPU.
    keys = ((-values.numpy().view(np.int32).astype(np.int64)) << 32) + np.arange(values.shape[1])
    keys.sort(axis=1)
    return torch.from_numpy(keys & 0xFFFFFFFF)


def _compute_increments(y: Tensor) -> Tensor:
    """Return the increase of the Jaccard loss by each further wrong position, in the order of y, (C, positions)."""
    size = y.sum(dim=1, keepdim=True)
    # Before the first wrong position intersection and union equal the class; the clamp avoids 0/0 for absent classes.
    jaccard = 1 - (size - y.cumsum(dim=1)) / (size + (1 - y).cumsum(dim=1)).clamp(min=1)
    return jaccard.diff(dim=1, prepend=torch.zeros_like(size))


def ssim_loss(regions: Regions) -> Tensor:
    """Return one minus the structural similarity of p and y, averaged over classes and positions.

    Means, variances and covariance are taken in a Gaussian window of 11 pixels; outside the image and at positions that do
    not count, p and y are 0.

    Used alone, it has a plateau that a network without pre-training may not leave: if all positions are predicted as the most
    frequent class, the other classes match their targets nearly everywhere. See `ssim_with_cross_entropy`.

    Source: Wang et al., 2004, Eq. 13; as a loss of segmentation Qin et al., 2019, BASNet, Eq. 4, here applied to every class.
    """
    return _average(regions, 1 - compute_ssim(regions.p, regions.y))


def ssim_with_absolute_error(regions: Regions) -> Tensor:
    """Return 0.84 times one minus the structural similarity of images of values, plus 0.16 times the absolute error.

    Both are of values in units of the range of the batch's targets that count, from its lower end on, or as they are if that is 0.

    Source: Zhao et al., 2017, Loss Functions for Image Restoration with Neural Networks, Section III-D, here with one scale.
    """
    # What does not count is 0, and may lie outside the range; the mean does not.
    low, high = torch.where(regions.counted, regions.y, _average(regions, regions.y)).aminmax()
    unit = torch.where(high > low, high - low, 1.0)
    p, y = ((values - low) / unit for values in (regions.p, regions.y))
    return _average(regions, SSIM_SHARE * (1 - compute_ssim(p, y)) + (1 - SSIM_SHARE) * (p - y).abs())


def _average(regions: Regions, values: Tensor) -> Tensor:
    """Average values, (N, C, H, W), over classes and the positions that count."""
    counted = regions.counted.expand_as(values)
    return torch.where(counted, values, torch.zeros_like(values)).sum() / counted.sum().clamp(min=1)


def ssim_with_cross_entropy(regions: Regions) -> Tensor:
    """Return `ssim_loss` plus cross entropy.

    Source: Qin et al., 2019, BASNet, Eq. 2, without its third term, IoU.
    """
    return ssim_loss(regions) + (regions.y * negative_log(regions.p)).sum() / regions.divisor


def compute_ssim(one: Tensor, other: Tensor) -> Tensor:
    """Compute the SSIM at each position, (N, C, H, W)."""
    distance = torch.arange(WINDOW, device=one.device, dtype=one.dtype) - WINDOW // 2
    weights = (-distance.square() / (2 * DEVIATION**2)).exp()
    window = weights / weights.sum()

    def mean(values: Tensor) -> Tensor:
        flat = values.flatten(0, 1).unsqueeze(1)
        across = F.conv2d(flat, window.view(1, 1, 1, -1), padding=(0, WINDOW // 2))
        return F.conv2d(across, window.view(1, 1, -1, 1), padding=(WINDOW // 2, 0)).view(values.shape)

    first, second = mean(one), mean(other)
    variances = mean(one.square()) + mean(other.square()) - first.square() - second.square()
    covariance = mean(one * other) - first * second
    luminance = (2 * first * second + STABLE_MEAN) / (first.square() + second.square() + STABLE_MEAN)
    return luminance * (2 * covariance + STABLE_VARIANCE) / (variances + STABLE_VARIANCE)
