# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""The pairs of items that can be compared: which, in which order, and with which weight.

Items are rows of a target (N, K) whose columns have names: `value`, a relevance or a time; `event`, 1 where the event was observed
at that time and 0 where the observation ended before it; `group`, the query or stratum of an item; `weight`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autoloss.errors import RequestError

NEGATIVE_RELEVANCE = (
    "NDCG gains the relevance of an item; expected relevance of at least 0. Add the same number to all."
)


def number_groups(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of the group of each item, (N,), groups of equal values in the order of their values, and their sizes.

    >>> [part.tolist() for part in number_groups(torch.tensor([7.0, 3.0, 7.0]))]
    [[1, 0, 1], [1, 2]]
    """
    found: tuple[Tensor, Tensor, Tensor] = torch.unique(values, return_inverse=True, return_counts=True)
    return found[1:]


def list_pairs(groups: Tensor | None, count: int, limit: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the indices (P,) of the two items of each pair of items of one group, the smaller one first, on a device.

    Memory is of the order of the larger of `limit` and `count`, never of its square.

    Args:
        groups: Group of each item, (N,); None if all items are of one group.
        count: N.
        limit: Largest number of pairs. Each stands there once; if there are more, so many are drawn with replacement.
        seed: Seed of that draw, which is the same for equal groups.

    >>> [part.tolist() for part in list_pairs(torch.tensor([0, 1, 0, 0]), 4, 100, 0, torch.device("cpu"))]
    [[0, 0, 2], [2, 3, 3]]
    """
    if groups is None:
        if count * (count - 1) // 2 <= limit:
            first, second = torch.triu_indices(count, count, 1, device=device)
            return first, second
        order = torch.arange(count)
        sizes = torch.tensor([count])
    else:
        numbers, sizes = number_groups(groups.detach().cpu())
        order = numbers.argsort(stable=True)
    # Item k of a group of size n stands in n - 1 pairs, which have consecutive numbers.
    others = torch.repeat_interleave(sizes - 1, sizes)
    begins = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    ends = others.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    if total // 2 <= limit:
        numbers = torch.arange(total)
        place = torch.repeat_interleave(torch.arange(len(order)), others)
    else:
        numbers = torch.randint(total, (limit,), generator=torch.Generator().manual_seed(seed))
        place = torch.searchsorted(ends, numbers, right=True)
    partner = begins[place] + numbers - (ends - others)[place]
    partner = partner + (partner >= place)
    if total // 2 <= limit:
        place, partner = place[place < partner], partner[place < partner]
    # The order is stable, so that of two places in a group the smaller one is the smaller index.
    first, second = torch.minimum(place, partner), torch.maximum(place, partner)
    return order[first].to(device), order[second].to(device)


def find_pairs(
    value: Tensor, event: Tensor | None, groups: Tensor | None, limit: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the pairs that can be compared, (P,) each, with the item that should have the higher score first.

    Without events it is the item with the larger value, and ties are left out. With events it is the item whose event was observed
    earlier; a pair whose earlier time is censored is left out, and at equal times an event comes before a censoring.

    Args:
        value: Relevance or time of each item, (N,). NaN cannot be compared.
        event: Larger than 0 where the event was observed, (N,); None if values are compared.
        groups: Group of each item, (N,), whose items are compared with one another; None if all are.
        limit: Largest number of pairs, before those are left out that cannot be compared.
        seed: Seed of the draw beyond the limit.

    >>> times, events = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1, 1, 0])
    >>> [part.tolist() for part in find_pairs(times, events, None, 100, 0)]
    [[1, 1], [2, 0]]
    """
    # In this order the first item of a pair is the one that should come first.
    if event is None:
        order = value.argsort(descending=True, stable=True)
    else:
        order = (event <= 0).long().argsort(stable=True)
        order = order[value[order].argsort(stable=True)]
    keys = value[order]
    first, second = list_pairs(None if groups is None else groups[order], len(order), limit, seed, value.device)
    if event is not None:
        seen = event[order] > 0
        kept = seen[first] & ((keys[first] < keys[second]) | ((keys[first] == keys[second]) & ~seen[second]))
    elif bool((keys[1:] < keys[:-1]).all()):
        return order.index_select(0, first), order.index_select(0, second)
    else:
        kept = keys[first] > keys[second]
    rows = kept.nonzero().squeeze(1)
    first, second = first.index_select(0, rows), second.index_select(0, rows)
    return order.index_select(0, first), order.index_select(0, second)


def rank_items(scores: Tensor, groups: Tensor | None) -> Tensor:
    """Return the rank of each item in its group from 1, (N,), the highest score first; of equal scores the earlier item.

    >>> rank_items(torch.tensor([0.2, 0.9, 0.5]), torch.tensor([0, 1, 0])).tolist()
    [2, 1, 1]
    """
    order, begins = scores.argsort(descending=True, stable=True), 0
    if groups is not None:
        numbers, sizes = number_groups(groups)
        order = order[numbers[order].argsort(stable=True)]
        begins = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(1, len(order) + 1, device=order.device) - begins
    return ranks


def weigh_by_ndcg(scores: Tensor, value: Tensor, groups: Tensor | None, first: Tensor, second: Tensor) -> Tensor:
    """Return how much NDCG changes if the two items of each pair change places in the order of the scores, (P,).

    The gain of an item is its relevance, as in scikit-learn, and its discount the logarithm of its rank.

    Source: Burges, 2010, From RankNet to LambdaRank to LambdaMART, Section 4.

    >>> value, index = torch.tensor([1.0, 0.0]), torch.tensor([0])
    >>> weigh_by_ndcg(torch.tensor([0.0, 1.0]), value, None, index, index + 1)
    tensor([0.3691])
    """
    if bool((value < 0).any()):
        raise RequestError(NEGATIVE_RELEVANCE)
    discounts = 1 / (1 + rank_items(scores.detach(), groups).to(value.dtype)).log2()
    ideal = value / (1 + rank_items(value, groups).to(value.dtype)).log2()
    if groups is None:
        best = ideal.sum().expand_as(value)
    else:
        members, _ = number_groups(groups)
        best = torch.zeros_like(ideal).index_add(0, members, ideal)[members]
    change = (value[first] - value[second]).abs() * (discounts[first] - discounts[second]).abs()
    return change / best[first].clamp(min=1e-12)
