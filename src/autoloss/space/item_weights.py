"""Weights of single items in a loss, by their class or by the network's confidence: how a loss treats items, apart from its form.

An item is a row or a pixel; of predictions that do not compete, as after a sigmoid or in a regression, each number is one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from autoloss.errors import unknown
from autoloss.space.activated import spatial
from autoloss.space.branch import Branch, BranchLoss, Sample
from autoloss.space.operators import upcast

BINS = 16
"""Number of groups of the confidence."""
SHARES = (0.0, 1.0, 2.0, 4.0)
"""How far items are moved to the ideal prediction where weights are measured, in the branch's `step_to_ideal`."""
LEAST, MOST = -0.3, 1.0
"""Range of the factors on these shares that single items get: some become more wrong."""
DIGITS = 3


def _group_by_class(branch: Branch, p: Tensor, y: Tensor, *, competes: bool) -> Tensor | None:
    if competes:
        return y.argmax(dim=1, keepdim=True)
    if not branch.predicts_probabilities:
        return None
    channels = torch.arange(y.shape[1], device=y.device).view(1, -1, *[1] * (y.ndim - 2))
    return 2 * channels + (y >= 0.5).long()


def _group_by_confidence(branch: Branch, p: Tensor, y: Tensor, *, competes: bool) -> Tensor:
    if competes:
        right = (p * y).sum(dim=1, keepdim=True)
    elif branch.predicts_probabilities:
        right = torch.where(y >= 0.5, p, 1 - p)
    else:
        right = 1 / (1 + (p - y).abs())
    return (right * BINS).long().clamp(0, BINS - 1)


_GROUPINGS: Mapping[str, Callable[..., Tensor | None]] = {"class": _group_by_class, "confidence": _group_by_confidence}
GROUPINGS = tuple(_GROUPINGS)
"""`class`: the target's class, or for each label yes or no. `confidence`: the probability of what is right, or for values how near
the prediction is to them, 1 / (1 + |p − y|)."""


def find_groups(branch: Branch, grouping: str, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor | None:
    """Return the number of each item's group, (N, 1, H, W) or (N, C, H, W).

    Returns:
        None where the branch has no such groups: classes of a regression, or leaves that are no pair of prediction and target.
    """
    if grouping not in _GROUPINGS:
        raise unknown("grouping of items", grouping, GROUPINGS)
    if branch.pair is None:
        return None
    with torch.no_grad():
        raw = spatial(prediction)
        leaves = branch.leaves(upcast(prediction), context)
        p, y = (leaves[name] for name in branch.pair)
        return _GROUPINGS[grouping](branch, p, y, competes=branch.has_competition(raw.shape[1]))


def weigh_items(loss: BranchLoss, branch: Branch, grouping: str, weights: Sequence[float]) -> BranchLoss:
    """Return a loss of the same value, in whose gradient the part of each item is multiplied by the weight of its group.

    >>> from autoloss import ActivatedBranch, bind, Loss
    >>> branch = ActivatedBranch()
    >>> loss = weigh_items(bind(Loss("-y * log(p)"), {"main": branch})["main"], branch, "class", [1.0, 3.0])
    >>> prediction = torch.zeros(2, 2, requires_grad=True)
    >>> loss(prediction, {"target": torch.tensor([0, 1])}).backward()
    >>> prediction.grad.tolist()
    [[-0.25, 0.25], [0.75, -0.75]]
    """
    values = torch.tensor(weights)

    def compute(prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        groups = find_groups(branch, grouping, prediction, context)
        if groups is None:
            return loss(prediction, context)
        raw = spatial(prediction)
        kept = raw.detach()
        factors = values.to(raw)[groups.clamp(max=len(values) - 1)]
        return loss((kept + factors * (raw - kept)).reshape(prediction.shape), context)

    return compute


def measure_weights(
    loss: BranchLoss, standard: BranchLoss, branch: Branch, samples: Sequence[Sample], grouping: str, seed: int
) -> tuple[float, ...] | None:
    """Measure which weights of the groups bring the gradient of a standard loss nearest to that of another loss.

    The gradients are those at the prediction, on samples whose items are moved some way to or from the ideal prediction, so that
    all confidences occur. In each group the weight is the least-squares factor between the two; the mean weight is 1.

    Args:
        samples: Of an untrained network.
        seed: Of how far each item is moved.

    Returns:
        One weight, at least 0, for each group; None where the branch has no such groups.
    """
    products, squares = torch.zeros(0), torch.zeros(0)
    for state in list_states(branch, samples, seed):
        groups = find_groups(branch, grouping, state.prediction, state.context)
        if groups is None:
            return None
        mine, theirs = (differentiate(one, state) for one in (loss, standard))
        size = max(int(groups.max()) + 1, len(products), BINS if grouping == "confidence" else 0)
        product, square = (_sum_by_group(theirs * other, groups, size) for other in (mine, theirs))
        if not float(product.sum()) > 0:
            continue
        # A loss that shrinks as training proceeds counts as much at the end of it as at its beginning.
        product, square = product / product.sum(), square / square.sum()
        grown = size - len(products)
        products = torch.cat([products, products.new_zeros(grown)]) + product
        squares = torch.cat([squares, squares.new_zeros(grown)]) + square
    found = torch.where(squares > 0, products / squares.clamp(min=1e-12), torch.ones_like(squares)).clamp(min=0)
    return tuple(float(f"{float(weight):.{DIGITS}g}") for weight in found)


def list_states(branch: Branch, samples: Sequence[Sample], seed: int) -> list[Sample]:
    """Return samples as a training may meet them: their items moved by random shares to or from the ideal prediction."""
    generator = torch.Generator().manual_seed(seed)
    joined = _join(samples)
    return [replace(one, prediction=_move(branch, one, share, generator)) for one in joined for share in SHARES]


def _join(samples: Sequence[Sample]) -> list[Sample]:
    """Return one sample of all items where they have one shape, as a batch of a training has several images."""
    shapes = {
        (one.prediction.shape[1:], *((name, tensor.shape[1:]) for name, tensor in sorted(one.context.items())))
        for one in samples
    }
    if len(shapes) > 1:
        return list(samples)
    context = {name: torch.cat([one.context[name] for one in samples]) for name in samples[0].context}
    return [Sample(torch.cat([one.prediction for one in samples]), context)]


def _move(branch: Branch, sample: Sample, share: float, generator: torch.Generator) -> Tensor:
    prediction = sample.prediction.detach()
    ideal = branch.ideal(sample.context).to(prediction).reshape(prediction.shape)
    shape = (prediction.shape[0], 1, *prediction.shape[2:])
    factors = LEAST + (MOST - LEAST) * torch.rand(shape, generator=generator).to(prediction)
    return prediction + share * branch.step_to_ideal * factors * (ideal - prediction)


def differentiate(loss: BranchLoss, state: Sample) -> Tensor:
    """Return the gradient of a loss at the raw prediction; 0 where it is not finite."""
    prediction = state.prediction.double().requires_grad_(True)
    value = loss(prediction, state.context)
    if not value.requires_grad:
        return torch.zeros_like(prediction)
    return torch.nan_to_num(torch.autograd.grad(value, prediction)[0])


def _sum_by_group(values: Tensor, groups: Tensor, size: int) -> Tensor:
    """Sum values, (N, C, H, W), over the items of each group."""
    whole = spatial(values)
    if groups.shape[1] == 1:
        whole = whole.sum(dim=1, keepdim=True)
    return torch.zeros(size, dtype=whole.dtype).index_add_(0, groups.flatten(), whole.flatten())
