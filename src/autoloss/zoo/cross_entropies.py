"""Hand-written cross entropies with weights: by class frequency, and by distance to the border."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.space.operators import EPSILON
from autoloss.zoo.distances import compute_border_distances
from autoloss.zoo.regions import POSITIONS, Regions


def weighted_cross_entropy(regions: Regions, weights: Sequence[float] | None = None) -> Tensor:
    """Return cross entropy with a weight for each class, divided by the sum of all positions' weights as in torch.

    Args:
        weights: One per class; by default the inverse frequencies in the batch, so that each class of its target has the
            same share in the loss.

    Raises:
        RequestError: The number of weights differs from the number of classes.

    Source: Ronneberger et al., 2015, U-Net, Eq. 1 and 2: the term w_c that balances the class frequencies. The second
    term, which separates touching cells of one class, does not apply without instances.
    """
    y = regions.y
    if weights is None:
        count = y.sum(POSITIONS)
        scale = torch.where(count > 0, 1 / count.clamp(min=EPSILON), torch.zeros_like(count))
    elif len(weights) == y.shape[1]:
        scale = y.new_tensor(weights)
    else:
        raise RequestError(f"{len(weights)} class weights were given for {y.shape[1]} classes; give one for each.")
    share = y * scale.view(1, -1, 1, 1)
    return (share * negative_log(regions.p)).sum() / share.sum().clamp(min=EPSILON)


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
    classes = torch.where(y.sum(dim=1) > 0, y.argmax(dim=1), -1)
    distance = compute_border_distances(classes).to(y.dtype)
    inside = torch.where(distance.isfinite(), distance, torch.zeros_like(distance)).unsqueeze(1) * (y > 0)
    depth = inside.amax(dim=(2, 3), keepdim=True) - 1
    relative = (inside - 1) / depth.clamp(min=1e-6)
    return torch.where(inside > 0, 1 - relative, torch.zeros_like(inside))


def negative_log(p: Tensor) -> Tensor:
    """Return −log p, finite with a finite gradient at 0."""
    return -(p + EPSILON).log()
