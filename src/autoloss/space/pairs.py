"""The branch of pairs: a network gives one score to each item, and a loss is a tree over the pairs that can be compared.

It serves ranking and survival: AUC, NDCG and the concordance index are about the order of items. The leaves have one number for
each pair, (P, 1, 1, 1), so that `mean_nhw` is the mean over the pairs of a batch, and pools and `mean_c` change nothing. Ties, and
pairs that censoring forbids, are no elements at all: a mean over pairs does not count them.

A sum over the list of one item, as in Cox's partial likelihood, is no operator: an operator is a function of values alone, which
both engines, the simplifier and exports rely on. Such losses stand in the zoo, written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.options import Amount, check_arguments
from autoloss.space.branch import Branch, Role, Sample, require_measure
from autoloss.space.form import PAIR_KERNELS, BranchForm, Kernel, PairActivation, PairColumn, PairForm, PairWeight
from autoloss.space.operators import upcast
from autoloss.space.pair_lists import find_pairs, number_groups, weigh_by_ndcg
from autoloss.space.ranges import BINARY, POSITIVE, UNIT, Range

MOST_PAIRS = 2**17
"""Default of the largest number of pairs of a batch: all of 512 items."""
HIGHEST_SCORE = 10.0
"""Largest score of an ideal prediction."""
PairMeasure = Callable[[Tensor, Tensor], float]
"""(scores (N,), target (N, K)) → metric, higher is better, NaN if undefined."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PairBranch(Branch):
    """A branch of scores (N, 1), with one element of the leaves for each pair of items that can be compared.

    The leaves are `p`, the probability σ(s_i − s_j) that item i comes first, or the difference s_i − s_j itself; `y`, 1 when item i
    should come first, which is so for each pair, since its first item is the one that should; and `w`, the weight of a pair, if it
    has one. The order of a pair is the target's, so `p` alone depends on both. RankNet is `-y * log(p)`.

    The context holds `target` (N, K) and what `make_context` derives from it and the scores: `first` and `second`, the items of the
    pairs, and `pair_weight`. In the rejection protocol, which starts from an untrained network, weights stay those of its scores.

    Args:
        columns: Names of the columns of the target: `value`, and possibly `event`, `group` and `weight`. A single column may have
            the shape (N,). With events the earlier one comes first, otherwise the larger value.
        activation: `sigmoid` makes p a probability; `none` leaves it the difference of scores.
        weigh: The leaf w: `none`; the `item`'s own weight (of the column `weight`) of the one that should come first, such as the
            inverse probability of censoring; or `ndcg`, the change of NDCG if the two items change places (LambdaRank).
        limit: Largest number of pairs of a batch. If there are more, so many are drawn.
        seed: Seed of that draw.
        measure: (scores (N,), target) → metric, higher is better; required for a search only.

    Raises:
        RequestError: An option is unknown, or a column is missing.

    >>> import torch
    >>> branch = PairBranch()
    >>> context = branch.make_context(torch.zeros(3, 1), torch.tensor([2.0, 1.0, 1.0]))
    >>> context["first"].tolist(), context["second"].tolist()
    ([0, 0], [1, 2])
    >>> branch.leaves(torch.zeros(3, 1), context)["p"].flatten().tolist()
    [0.5, 0.5]
    """

    is_single: ClassVar[bool] = True
    columns: tuple[PairColumn, ...] = ("value",)
    activation: PairActivation = "sigmoid"
    weigh: PairWeight = "none"
    limit: int = MOST_PAIRS
    seed: int = 0
    measure: PairMeasure | None = None
    weight: Amount = 1.0
    leaves_and_roles: Mapping[str, Role] = field(default_factory=dict[str, Role], init=False)

    def __post_init__(self) -> None:
        checked = ("columns", "activation", "weigh", "limit", "weight")
        check_arguments(PairBranch, {name: getattr(self, name) for name in checked})
        leaves = {"y": Role.TARGET, "p": Role.BOTH} | ({} if self.weigh == "none" else {"w": Role.TARGET})
        object.__setattr__(self, "leaves_and_roles", leaves)
        self.form()

    @property
    def ranges(self) -> Mapping[str, Range]:
        known = {"y": BINARY} | ({"p": UNIT} if self.activation == "sigmoid" else {})
        return known | ({} if self.weigh == "none" else {"w": POSITIVE})

    @property
    def group(self) -> int | None:
        """Column of the target that numbers the list of each item; None where all are one list, or groups are strata of times."""
        return self.columns.index("group") if "group" in self.columns and "event" not in self.columns else None

    @property
    def step_to_ideal(self) -> float:
        return 0.1

    @property
    def kernel(self) -> Kernel:
        return PAIR_KERNELS[self.activation]

    def with_kernel(self, kernel: str) -> Branch:
        found = [name for name, known in PAIR_KERNELS.items() if known == kernel and name != self.activation]
        return replace(self, activation=found[0]) if found else self

    def form(self, samples: Sequence[Sample] = ()) -> BranchForm:
        return BranchForm(
            leaves=tuple(self.leaves_and_roles),
            from_prediction=False,
            activation=self.activation,
            weight=float(self.weight),
            target_kind="binary" if self.weigh == "none" else "values",
            bounds=tuple((name, *found.to_bounds()) for name, found in self.ranges.items()),
            is_single=True,
            pairs=PairForm(columns=self.columns, weigh=self.weigh, limit=self.limit, seed=self.seed),
        )

    def get_column(self, target: Tensor, name: str) -> Tensor | None:
        """Return a column of the target, (N,), or None if it has none of this name."""
        if name not in self.columns:
            return None
        return target.reshape(len(target), len(self.columns))[:, self.columns.index(name)]

    def make_context(self, prediction: Tensor, target: Tensor) -> Mapping[str, Tensor]:
        """Return the target, the pairs of its items that can be compared, and their weights.

        Args:
            prediction: Scores, (N, 1); only weights by NDCG depend on them, and these are constants for the gradient.
            target: (N, K), or (N,) with a single column.

        Raises:
            RequestError: The numbers of scores, items and columns do not fit.
        """
        given = target.reshape(len(target), -1).shape[1] if len(target) else len(self.columns)
        if given != len(self.columns) or prediction.numel() != len(target):
            raise RequestError(
                f"A target of shape {tuple(target.shape)} and scores of shape {tuple(prediction.shape)} do not fit: expected one "
                f"score for each item, and the columns {', '.join(self.columns)}. Examples that are lists are joined by a "
                "Data(collate_fn=…)."
            )
        names = ("value", "event", "group", "weight")
        value, event, groups, weights = (self.get_column(target, name) for name in names)
        assert value is not None
        # Codes such as 1 and 2 would make an event of each censored row.
        if event is not None and bool(((event.double() % 1 == 0) & (event != 0) & (event != 1)).any()):
            raise RequestError(
                f"The column event has values from {event.min():g} to {event.max():g}; expected 1 where the event was observed and "
                "0 where the observation ended before."
            )
        first, second = find_pairs(value, event, groups, self.limit, self.seed)
        context = {"target": target, "first": first, "second": second}
        if self.weigh == "ndcg":
            scores = prediction.detach().flatten()
            context["pair_weight"] = weigh_by_ndcg(scores, value.to(upcast(scores)), groups, first, second)
        elif weights is not None and self.weigh == "item":
            context["pair_weight"] = weights[first]
        return context

    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        first, second = _get_pairs(context)
        scores = prediction.flatten()
        difference = (scores.index_select(0, first) - scores.index_select(0, second)).reshape(-1, 1, 1, 1)
        p = difference.sigmoid() if self.activation == "sigmoid" else difference
        found = {"y": torch.ones_like(difference.detach()), "p": p}
        return found if self.weigh == "none" else {**found, "w": context["pair_weight"].to(p).reshape(p.shape)}

    def mask(self, context: Mapping[str, Tensor]) -> None:
        return None

    def divisor(self, context: Mapping[str, Tensor]) -> float:
        return float(max(1, len(_get_pairs(context)[0])))

    def is_empty(self, context: Mapping[str, Tensor]) -> bool:
        return not len(_get_pairs(context)[0])

    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        return float(require_measure(self.measure)(prediction.flatten(), context["target"]))

    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        """Return scores in the order of the target, from the negative of `HIGHEST_SCORE` to it, (N, 1, 1, 1)."""
        target = context["target"]
        value, event = self.get_column(target, "value"), self.get_column(target, "event")
        assert value is not None
        # The later a time, the lower its score; at equal times an event comes before a censoring.
        ranks, _ = number_groups(value.double() if event is None else -value.double())
        ranks, sizes = number_groups(ranks if event is None else 2 * ranks + (event > 0))
        spread = 2 * ranks.float() / max(1, len(sizes) - 1) - 1
        return (HIGHEST_SCORE * spread).reshape(-1, 1, 1, 1)

    def fixed_inputs(self, sample: Sample, precision: torch.dtype) -> Tensor:
        """Return the leaf y, one number for each pair; indices and weights are taken from the context."""
        return self.leaves(sample.prediction.detach().to(precision), sample.context)["y"]


def _get_pairs(context: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    if "first" not in context:
        raise RequestError(
            f"The context of a PairBranch holds {', '.join(context)}; expected the pairs as well. Make it by "
            "branch.make_context(prediction, target)."
        )
    return context["first"], context["second"]
