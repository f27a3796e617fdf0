"""Structural similarity of probabilities and classes, written by hand since its means are over Gaussian windows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.zoo.cross_entropies import negative_log
from autoloss.zoo.regions import Regions

WINDOW, DEVIATION = 11, 1.5
"""Side of the window and standard deviation of its Gaussian, in pixels."""
STABLE_MEAN, STABLE_VARIANCE = 0.01**2, 0.03**2
"""C₁ and C₂ for values from 0 to 1."""


def ssim_loss(regions: Regions) -> Tensor:
    """Return one minus the structural similarity of p and y, averaged over classes and positions.

    Means, variances and covariance are taken in a Gaussian window of 11 pixels; outside the image and at positions that do
    not count, p and y are 0.

    Used alone, it has a plateau that a network without pre-training may not leave: if all positions are predicted as the most
    frequent class, the other classes match their targets nearly everywhere. See `ssim_with_cross_entropy`.

    Source: Wang et al., 2004, Eq. 13; as a loss of segmentation Qin et al., 2019, BASNet, Eq. 4, here applied to every class.
    """
    similar = compute_ssim(regions.p, regions.y)
    counted = regions.counted.expand_as(similar)
    return torch.where(counted, 1 - similar, torch.zeros_like(similar)).sum() / counted.sum().clamp(min=1)


def ssim_with_cross_entropy(regions: Regions) -> Tensor:
    """Return `ssim_loss` plus cross entropy.

    Source: Qin et al., 2019, BASNet, Eq. 2, without its third term, IoU.
    """
    return ssim_loss(regions) + (regions.y * negative_log(regions.p)).sum() / regions.divisor


def compute_ssim(one: Tensor, other: Tensor) -> Tensor:
    """Compute the SSIM at each position, (N, C, H, W)."""
    window = _make_window(one)

    def mean(values: Tensor) -> Tensor:
        flat = values.flatten(0, 1).unsqueeze(1)
        across = F.conv2d(flat, window.view(1, 1, 1, -1), padding=(0, WINDOW // 2))
        return F.conv2d(across, window.view(1, 1, -1, 1), padding=(WINDOW // 2, 0)).view(values.shape)

    first, second = mean(one), mean(other)
    variances = mean(one.square()) + mean(other.square()) - first.square() - second.square()
    covariance = mean(one * other) - first * second
    luminance = (2 * first * second + STABLE_MEAN) / (first.square() + second.square() + STABLE_MEAN)
    return luminance * (2 * covariance + STABLE_VARIANCE) / (variances + STABLE_VARIANCE)


def _make_window(like: Tensor) -> Tensor:
    distance = torch.arange(WINDOW, device=like.device, dtype=like.dtype) - WINDOW // 2
    weights = (-distance.square() / (2 * DEVIATION**2)).exp()
    return weights / weights.sum()
