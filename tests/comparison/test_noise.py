"""The noise of a mean score and of a difference: of training seeds and of examples."""

import math

import numpy as np
import pytest

from autoloss.comparison.entrant import Measurements, compare_paired
from autoloss.comparison.noise import Estimate, estimate_mean, shrink_means
from autoloss.training.training import Replicates

RESAMPLES = 64


def test_without_resamples_the_noise_is_that_of_the_seeds():
    estimate = estimate_mean([0.5, 0.6, 0.7])
    # Student's t with two degrees of freedom: 4.3027.
    assert estimate.half_width == pytest.approx(4.3027 * 0.1 / math.sqrt(3), rel=1e-4)
    assert estimate.resolution is None


def test_examples_widen_an_interval():
    estimate = estimate_mean([0.5, 0.6, 0.7], [Replicates(50, tuple(0.4 + 0.03 * at for at in range(20)))] * 3)
    assert estimate.half_width > estimate_mean([0.5, 0.6, 0.7]).half_width
    assert estimate.examples == 50


def test_one_seed_has_no_error_but_its_examples_have():
    estimate = estimate_mean([0.5], [Replicates(50, tuple(0.4 + 0.01 * at for at in range(20)))])
    assert estimate.error is None
    assert estimate.p_value is None
    assert estimate.resolution > 0


def test_equal_seeds_leave_the_noise_of_the_examples():
    replicates = Replicates(50, tuple(0.4 + 0.01 * at for at in range(20)))
    assert estimate_mean([0.5, 0.5], [replicates] * 2).p_value < 0.05
    assert estimate_mean([0.5, 0.5]).p_value is None


def test_a_resample_without_a_score_is_dropped_for_both_losses():
    first = Replicates(50, (None, *(0.5 + 0.01 * at for at in range(20))))
    second = Replicates(50, (0.9, *(0.4 + 0.01 * at for at in range(20))))
    estimate = compare_paired(Measurements((0.5, 0.6), (first,) * 2), Measurements((0.4, 0.5), (second,) * 2))
    assert estimate.hangs_on_few
    # The same difference on all other resamples.
    assert estimate.examples_error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    "second",
    [None, Replicates(49, (0.5,) * 20), Replicates(50, (None,) * 15 + (0.5,) * 5)],
    ids=["not resampled", "another split", "nearly always undefined"],
)
def test_what_cannot_be_paired_is_not_counted(second):
    first = Replicates(50, tuple(0.5 + 0.01 * at for at in range(20)))
    estimate = compare_paired(Measurements((0.5, 0.6), (first,) * 2), Measurements((0.4, 0.5), (second,) * 2))
    assert estimate.examples_error is None
    assert estimate.examples is None


def test_few_examples_have_few_degrees_of_freedom():
    values = [0.5, 0.6, 0.7]
    estimate = estimate_mean(values, [Replicates(3, tuple(0.01 * at for at in range(20)))] * 3)
    assert estimate.examples_freedom == 2


@pytest.mark.parametrize("rare", [1, 2, 3, 5, 30])
def test_equal_losses_are_rarely_told_apart_by_a_few_examples_of_a_class(rare):
    """The mean recall of two classes, undefined without the rare one, of two networks that are equally good."""
    rng, trials, wrong = np.random.default_rng(rare), 100, 0
    is_rare = np.arange(150) < rare

    def recall(hits, rows=slice(None)):
        found, drawn = hits[rows], is_rare[rows]
        return float((found[drawn].mean() + found[~drawn].mean()) / 2) if drawn.any() else None

    for _ in range(trials):
        resamples, both = rng.integers(150, size=(RESAMPLES, 150)), []
        for _ in range(2):
            network = rng.random(150) < np.where(is_rare, 0.5, 0.9)
            # Four seeds that differ on one row in fifty.
            seeds = [np.where(rng.random(150) < 0.02, ~network, network) for _ in range(4)]
            replicates = (Replicates(150, tuple(recall(hits, rows) for rows in resamples)) for hits in seeds)
            both.append(Measurements(tuple(map(recall, seeds)), tuple(replicates)))
        estimate = compare_paired(*both)
        assert math.isfinite(estimate.half_width or 0)
        wrong += estimate.p_value is not None and estimate.p_value < 0.05
    assert wrong <= (0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)) * trials


def draw_null(rng, seeds, examples, common, single, between):
    """Draw differences of two equal losses: of each example, of each example and seed, and of each seed."""
    differences = (
        common * rng.standard_normal(examples)
        + single * rng.standard_normal((seeds, examples))
        + between * rng.standard_normal((seeds, 1))
    )
    counts = rng.multinomial(examples, np.full(examples, 1 / examples), size=RESAMPLES) / examples
    return differences.mean(axis=1).tolist(), [
        Replicates(examples, tuple(row)) for row in (differences @ counts.T).tolist()
    ]


@pytest.mark.parametrize("seeds", [2, 5])
@pytest.mark.parametrize(
    ("common", "single", "between"), [(1.0, 0.0, 0.02), (0.5, 1.0, 0.05), (0.0, 1.0, 0.0), (0.1, 0.1, 0.3)]
)
def test_equal_losses_are_rarely_told_apart(seeds, common, single, between):
    rng, trials = np.random.default_rng(seeds), 200
    nulls = [estimate_mean(*draw_null(rng, seeds, 60, common, single, between)) for _ in range(trials)]
    # 5 %, and three standard deviations of such a share.
    assert sum(one.p_value < 0.05 for one in nulls) <= (0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)) * trials


def test_seeds_alone_would_tell_equal_losses_apart():
    rng = np.random.default_rng(0)
    nulls = [estimate_mean(draw_null(rng, 5, 60, 0.5, 1.0, 0.05)[0]) for _ in range(200)]
    assert sum(one.p_value < 0.05 for one in nulls) > 0.09 * 200


def test_a_difference_far_above_its_noise_is_told():
    estimate = Estimate(0.3, 0.02, 5, 0.05, 113, 63)
    assert estimate.p_value < 0.001
    assert estimate.resolution == pytest.approx(0.1, abs=0.001)


def test_a_high_mean_of_few_seeds_counts_for_less_than_one_of_many():
    few, many, low = [0.9, 0.69], [0.78, 0.8, 0.79, 0.79], [0.6, 0.7, 0.65, 0.65]
    shrunken = shrink_means([few, many, low])
    assert shrunken[1] > shrunken[0] > shrunken[2]


def test_equally_many_seeds_keep_their_order_and_exact_scores_stay():
    scores = [[0.5, 0.6], [0.7, 0.5], [0.9, 0.8]]
    shrunken = shrink_means(scores)
    assert sorted(range(3), key=shrunken.__getitem__) == [0, 1, 2]
    assert shrink_means([[0.5, 0.5], [0.7, 0.7]]) == [0.5, 0.7]
    assert shrink_means([[0.5], [0.7]]) == [0.5, 0.7]
