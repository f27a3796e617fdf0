"""The noise of a mean score, or of a difference of two: of the training seeds, and of the examples it was measured on.

A score would be another one with other seeds, and on other examples of the same kind. The variance of a mean over seeds is the sum
of two: that of the scores between seeds, divided by their number, and that of the mean on bootstrap resamples of the examples. What
examples do to single seeds is in both, so the sum is rather too large than too small. Its degrees of freedom are Welch and
Satterthwaite's. With two seeds these can be far too many; no interval is therefore narrower, and no p-value smaller, than by the
seeds alone. Where resamples have no score, since they lack the few examples that a metric needs, these few count instead of all.

Source: Satterthwaite, 1946, An Approximate Distribution of Estimates of Variance Components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, mean, stdev, variance

from autoloss.training.training import Replicates

LEAST_RESAMPLES = 10
"""With fewer resamples on which all scores are defined, the noise of the examples is not known."""
LEAST_DECIDING = 1.5
"""One example tells nothing of others, which half a degree of freedom says: only 400 standard errors are significant then."""
LEVEL = 0.975
"""Quantile at the ends of a 95 % confidence interval."""
ROUNDING = 1e-12
"""Equal differences of floating-point numbers differ by less, in their last digits."""
NEGLIGIBLE = 0.1
"""Share of its standard error below which a difference decides nothing: its p-value is above 0.9."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over training seeds with its noise.

    Args:
        value: The mean.
        seeds_error: Its standard error between seeds; None for one seed.
        seeds: Number of seeds.
        examples_error: Its standard error over the examples of the split; None where the metric was not measured on resamples.
        examples: Number of examples of the split; None likewise.
        examples_freedom: Degrees of freedom of `examples_error`.
        hangs_on_few: Whether the metric is undefined on some resamples, since they lack the few examples that it needs.
    """

    value: float
    seeds_error: float | None
    seeds: int
    examples_error: float | None = None
    examples: int | None = None
    examples_freedom: float = 0
    hangs_on_few: bool = False

    @property
    def error(self) -> float | None:
        """The standard error over seeds and examples; None for one seed, or where neither changes the value."""
        if self.seeds_error is None:
            return None
        error = math.hypot(self.seeds_error, self.examples_error or 0.0)
        return error if error > ROUNDING else None

    @property
    def least_error(self) -> float:
        """The standard error as far as it is known: of one seed, that over the examples; 0 where nothing is."""
        return math.hypot(self.seeds_error or 0.0, self.examples_error or 0.0)

    @property
    def freedom(self) -> float:
        """The degrees of freedom of `error`; at least those of the seeds."""
        squares = [(self.seeds_error or 0.0, self.seeds - 1), (self.examples_error or 0.0, self.examples_freedom)]
        total = sum(error**2 for error, _ in squares)
        spent = sum(error**4 / freedom for error, freedom in squares if freedom and error)
        return total**2 / spent if spent else self.seeds - 1

    @property
    def is_level(self) -> bool:
        """True where the value is 0, or below a tenth of its standard error.

        >>> Estimate(0.0001, 0.01, 8).is_level, Estimate(0.002, 0.01, 8).is_level, Estimate(0.1, None, 1).is_level
        (True, False, False)
        """
        return abs(self.value) <= max(ROUNDING, NEGLIGIBLE * (self.error or 0.0))

    @property
    def half_width(self) -> float | None:
        """Half the width of the 95 % confidence interval; None where there is no error."""
        if self.error is None:
            return None
        by_seeds = find_quantile(LEVEL, self.seeds - 1) * (self.seeds_error or 0.0)
        return max(find_quantile(LEVEL, self.freedom) * self.error, by_seeds)

    @property
    def p_value(self) -> float | None:
        """The two-sided p-value of the value 0; None where there is no error."""
        if self.error is None:
            return None
        both = find_p_value(self.value / self.error, self.freedom)
        return max(both, find_p_value(self.value / self.seeds_error, self.seeds - 1)) if self.seeds_error else both

    @property
    def resolution(self) -> float | None:
        """The smallest difference that these examples can show, with any number of seeds; None if it is not known."""
        error = self.examples_error
        return None if error is None else find_quantile(LEVEL, self.examples_freedom) * error

    @property
    def can_seeds_tell(self) -> bool:
        """True if more training seeds may tell the value from 0; otherwise only more examples can."""
        return self.resolution is None or abs(self.value) > self.resolution


def estimate_mean(values: Sequence[float], replicates: Sequence[Replicates | None] = ()) -> Estimate:
    """Estimate the noise of a mean.

    Args:
        values: One for each training seed, at least one.
        replicates: The values on resamples of the split, by seed; used where each seed has them.

    >>> estimate = estimate_mean([0.5, 0.6, 0.7])
    >>> round(estimate.value, 3), round(estimate.seeds_error, 3), estimate.examples_error
    (0.6, 0.058, None)
    """
    seeds_error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    means, missing, examples = _average_resamples(replicates)
    if len(means) < LEAST_RESAMPLES or examples < 2:
        return Estimate(mean(values), seeds_error, len(values))
    # Resamples without any of k examples, such as the only ones of a class, are a share e^-k: k with the highest likely share.
    share = (missing + 2 * math.sqrt(missing)) / (missing + len(means))
    count = min(examples, max(LEAST_DECIDING, -math.log(share))) if missing else examples
    # The variance on resamples is that of a mean over n, too small by the share of one example.
    error = math.sqrt(variance(means) * count / (count - 1))
    freedom = min(len(means), count) - 1
    return Estimate(mean(values), seeds_error, len(values), error, examples, freedom, missing > 0)


def combine(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of one difference that was measured on several splits; the plain mean where no noise is known.

    The variance between seeds is taken to be the same on all splits: that of two seeds alone is often far too small. Each split
    then counts by the inverse of its variance.

    >>> few, many = Estimate(0.2, 0.0001, 2), Estimate(-0.1, 0.05, 8)
    >>> round(combine([few, many]).value, 3)
    -0.04
    """
    seeds = sum(one.seeds for one in estimates)
    freedom = seeds - len(estimates)
    squares = sum((one.seeds_error or 0.0) ** 2 * one.seeds * (one.seeds - 1) for one in estimates)
    between = squares / freedom if freedom else 0.0
    variances = [between / one.seeds + (one.examples_error or 0.0) ** 2 for one in estimates]
    if not all(variances):
        return Estimate(mean(one.value for one in estimates), None, seeds)
    total = sum(1 / each for each in variances)
    value = sum(one.value / each for one, each in zip(estimates, variances, strict=True)) / total
    return Estimate(value, total**-0.5, seeds)


def shrink_means(scores: Sequence[Sequence[float]]) -> list[float]:
    """Return the means of several losses, each drawn towards the mean of all by the share of its variance that is noise.

    The noise of single scores is taken to be the same for all losses. A high mean of few seeds thus counts for less than one of
    many; of equally many seeds the order stays.

    Args:
        scores: Of each loss, by seed, at least one each.

    Source: Efron & Morris, 1975, Data Analysis Using Stein's Estimator and Its Generalizations (empirical Bayes).

    >>> [round(mean, 3) for mean in shrink_means([[0.9, 0.69], [0.78, 0.8, 0.79, 0.79], [0.6, 0.7, 0.65, 0.65]])]
    [0.781, 0.783, 0.664]
    """
    means = [mean(one) for one in scores]
    freedom = sum(len(one) - 1 for one in scores)
    if len(scores) < 2 or not freedom:
        return means
    noise = sum((score - mean(one)) ** 2 for one in scores for score in one) / freedom
    if not noise:
        return means
    # Where all of the differences may be noise, a little is taken to be none: the number of seeds then decides the order.
    true = max(variance(means) - mean(noise / len(one) for one in scores), 0.01 * noise)
    weights = [1 / (true + noise / len(one)) for one in scores]
    centre = sum(weight * one for weight, one in zip(weights, means, strict=True)) / sum(weights)
    return [centre + true * weight * (one - centre) for weight, one in zip(weights, means, strict=True)]


def subtract_replicates(first: Replicates | None, second: Replicates | None) -> Replicates | None:
    """Return the differences of two scores on the same resamples; None where one was not measured on them."""
    if first is None or second is None or first.examples != second.examples:
        return None
    pairs = zip(first.scores, second.scores, strict=False)
    return Replicates(first.examples, tuple(None if a is None or b is None else a - b for a, b in pairs))


def _average_resamples(replicates: Sequence[Replicates | None]) -> tuple[list[float], int, int]:
    """Average over seeds on the resamples where all have a value.

    Returns:
        The means, the number of the other resamples, and the least number of examples of a split.
    """
    known = [one for one in replicates if one is not None]
    if not known or len(known) < len(replicates):
        return [], 0, 0
    columns = [*zip(*(one.scores for one in known), strict=False)]
    means = [fmean(column) for column in columns if None not in column]
    return means, len(columns) - len(means), min(one.examples for one in known)


def find_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution.

    >>> round(find_quantile(0.975, 2), 4)
    4.3027
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def find_p_value(statistic: float, freedom: float) -> float:
    """Return the two-sided p-value of a statistic with Student's t distribution.

    >>> find_p_value(0.0, 3)
    1.0
    """
    # What scipy.stats computes, whose import takes longer than all else that a reader does.
    from scipy.special import stdtr

    return 2 * float(stdtr(freedom, -abs(statistic)))
