"""The recommendation: the standard loss at its best, unless a known loss, or the one found, is significantly ahead."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autoloss.comparison.entrant import Entrant, Row
from autoloss.comparison.judgement import Recommendation, _weigh_lead, recommend
from autoloss.comparison.ladder import Ladder, Rung
from autoloss.proposing.records import Outcome, State
from autoloss.training.training import Replicates

GIVEN = Entrant("ce", "baseline/ce", baseline=True)
TUNED = Entrant("ce (one norm)", "baseline/ce", baseline=True, step_rule="one_norm", learning_rate=3.0)
SHELF = Entrant("#2", "shelf text", known=True, step_rule="one_norm")
FOUND = Entrant("#7", "found text", step_rule="one_norm")
LADDER = Ladder((Rung(TUNED, 1.0, (0.86,)), Rung(GIVEN, 1.0, (0.7,))), 4.0, "baseline/ce")


def row(entrant: Entrant, level: float) -> Row:
    """Return scores at a level; the seeds' noise is common to all, a little of it a loss's own."""
    own = 0.001 * (entrant.label == "#7")
    scores = [level + 0.01 * (-1) ** seed + own * (seed % 3) for seed in range(8)]
    return Row(
        entrant, tuple(Outcome(state=State.SCORED, score=score + 1e-5 * seed) for seed, score in enumerate(scores))
    )


def origin(**levels: float) -> str:
    entrants = {"given": GIVEN, "tuned": TUNED, "shelf": SHELF, "found": FOUND}
    rows = [row(entrants[name], level) for name, level in levels.items()]
    found = recommend(rows, 7, LADDER, "baseline/ce")
    assert found is not None
    return found.origin


def test_ahead_of_the_recipe_as_given_is_not_enough():
    assert origin(given=0.7, tuned=0.86, found=0.85) == "standard"


def test_the_loss_found_is_recommended_where_it_is_ahead_of_everything_known():
    assert origin(given=0.7, tuned=0.86, found=0.9) == "found"


def test_a_known_loss_that_is_better_stands_before_the_standard_one_and_the_one_found():
    rows = [row(GIVEN, 0.7), row(TUNED, 0.8), Row(SHELF, noisy(0.9, 1)), row(FOUND, 0.85)]
    found = recommend(rows, 7, LADDER, "baseline/ce")
    assert found is not None
    assert (found.origin, found.loss) == ("shelf", "shelf text")


def test_a_lead_far_within_the_noise_is_no_reason_to_change_the_loss():
    tuned = noisy(0.9, 1)
    for lead, origin in ((1e-5, "standard"), (1e-2, "shelf")):
        shelf = tuple(replace(one, score=one.score + 0.01 * (-1) ** seed + lead) for seed, one in enumerate(tuned))
        found = recommend([row(GIVEN, 0.7), Row(TUNED, tuned), Row(SHELF, shelf)], 7, LADDER, "baseline/ce")
        assert found is not None
        assert found.origin == origin


def test_of_what_is_level_the_best_way_of_the_standard_loss_is_recommended_also_before_its_class_weights():
    weighted = Entrant("balanced ce", "shelf/balanced_ce", baseline=True, step_rule="one_norm")
    ladder = Ladder((Rung(weighted, 1.0, (0.9,)), Rung(GIVEN, 1.0, (0.7,))), 4.0, "baseline/ce")
    wild = tuple(Outcome(state=State.SCORED, score=0.88 + 0.9 * (-1) ** seed) for seed in range(8))
    tuned = noisy(0.9, 1)
    shelf = tuple(replace(one, score=one.score + 0.01 * (-1) ** seed + 1e-5) for seed, one in enumerate(tuned))
    found = recommend([Row(GIVEN, wild), Row(TUNED, tuned), Row(weighted, shelf)], 7, ladder, "baseline/ce")
    assert found is not None
    assert (found.loss, found.recipe) == ("baseline/ce", {"step_rule": "one_norm"})
    assert "is ahead of it by" not in found.reason
    # The strongest of the others is named where it is as good.
    best = recommend([row(GIVEN, 0.7), Row(weighted, tuned), Row(TUNED, shelf)], 7, ladder, "baseline/ce")
    assert best is not None
    assert "it is ahead of balanced ce by +0.0000" in best.reason


def test_the_standard_loss_is_called_so_where_the_search_had_it_as_a_candidate():
    candidate = Entrant("#3 cross entropy", "neg(mul(y, log(p)))", known=True, step_rule="one_norm", learning_rate=0.3)
    found = recommend([row(GIVEN, 0.7), row(TUNED, 0.8), Row(candidate, noisy(0.9, 1))], 7, LADDER, "baseline/ce")
    assert found is not None
    assert (found.origin, found.learning_rate) == ("standard", 0.3)


def test_the_reason_tells_the_recommended_way_of_a_loss_from_the_recipe_as_given():
    found = recommend([row(GIVEN, 0.7), row(TUNED, 0.8)], None, LADDER, "baseline/ce")
    assert found is not None
    assert "it is ahead of ce with the recipe as given by" in found.reason


def test_the_reason_compares_with_the_strongest_of_the_others_not_with_the_standard_loss_as_given():
    threshold = Entrant("ce (tuned threshold)", "baseline/ce", baseline=True, tuned_threshold=True)
    shelf = Entrant("#2 shelf/balanced_ce (lr × 3)", "shelf text", known=True, learning_rate=3.0)
    rows = [
        row(GIVEN, 0.1),
        row(TUNED, 0.2),
        Row(threshold, noisy(0.88, 1)),
        Row(shelf, noisy(0.9, 3)),
        row(FOUND, 0.7),
    ]
    found = recommend(rows, 7, LADDER, "baseline/ce")
    assert found is not None
    assert (found.name, found.origin) == ("#2 shelf/balanced_ce", "shelf")
    assert "it is ahead of ce (tuned threshold) by +0.0" in found.reason
    assert "8 training seeds" in found.reason
    assert found.describe().startswith("#2 shelf/balanced_ce, 3 × the learning rate (a known loss). ")
    # So is a lead within the noise.
    rows = [Row(TUNED, noisy(0.86, 1)), Row(replace(shelf, step_rule="one_norm"), noisy(0.8601, 3))]
    level = recommend(rows, None, LADDER, "baseline/ce")
    assert level is not None
    assert (level.origin, level.reason.endswith("That may be chance.")) == ("shelf", True)


def test_nothing_is_said_of_a_way_that_scores_the_same():
    """A threshold changes no AUC."""
    decided = replace(GIVEN, label="ce (tuned threshold)", tuned_threshold=True)
    found = recommend([row(GIVEN, 0.7), row(decided, 0.7)], None, None, "baseline/ce")
    assert found is not None
    assert "ahead of ce" not in found.reason


def noisy(level: float, seed: int) -> tuple[Outcome, ...]:
    return tuple(Outcome(state=State.SCORED, score=level + 0.002 * ((3 * at + seed) % 5)) for at in range(8))


def test_a_lead_within_the_noise_of_the_seeds_is_none():
    spread = tuple(Outcome(state=State.SCORED, score=0.861 + 0.05 * (-1) ** (at // 2)) for at in range(8))
    found = recommend([row(GIVEN, 0.7), row(TUNED, 0.86), Row(FOUND, spread)], 7, LADDER, "baseline/ce")
    assert found is not None
    assert found.origin == "standard"


def test_what_the_ladder_chose_on_few_trainings_gives_way_to_the_rate_that_does_better_on_held_out_data():
    rate = Entrant("ce (lr × 3)", "baseline/ce", baseline=True, learning_rate=3.0)
    weighted = replace(TUNED, label="weighted", loss="shelf/balanced_ce")
    ladder = Ladder((Rung(weighted, 1.0, (0.9,)), Rung(GIVEN, 1.0, (0.7,))), 4.0, "baseline/ce")
    found = recommend([row(GIVEN, 0.7), row(weighted, 0.6), row(rate, 0.75)], None, ladder, "baseline/ce")
    assert found is not None
    assert (found.loss, found.learning_rate, found.origin) == ("baseline/ce", 3.0, "standard")


def test_class_weights_of_the_ladder_stay_its_own_at_the_rate_that_the_comparison_tuned():
    weighted = Entrant("shelf/balanced_ce", "shelf/balanced_ce", baseline=True)
    ladder = Ladder((Rung(weighted, 1.0, (0.9,)), Rung(GIVEN, 1.0, (0.7,))), 4.0, "baseline/ce")
    found = recommend([row(replace(weighted, learning_rate=0.3), 0.95), row(GIVEN, 0.7)], None, ladder, "baseline/ce")
    assert found is not None
    assert (found.loss, found.learning_rate, found.origin) == ("shelf/balanced_ce", 0.3, "shelf")
    assert "(a known loss)" in found.describe()


def test_it_says_how_to_train():
    found = recommend([row(GIVEN, 0.7), row(TUNED, 0.86)], None, LADDER, "baseline/ce")
    assert found is not None
    assert (found.loss, found.learning_rate, found.recipe) == ("baseline/ce", 3.0, {"step_rule": "one_norm"})


@pytest.mark.parametrize("ladder", [LADDER, None])
def test_without_a_comparison_the_ladder_alone_speaks(ladder: Ladder | None):
    found = recommend([], None, ladder, "baseline/ce")
    assert (found is None) == (ladder is None)
    assert found is None or found.recipe == {"step_rule": "one_norm"}


def test_what_is_new_has_to_be_ahead_of_the_best_known_loss_even_where_that_is_not_significant():
    # The known loss is ahead of the standard one within its noise only, and the loss found of the known one likewise.
    uneven = tuple(Outcome(state=State.SCORED, score=0.87 + 0.05 * (-1) ** (at // 2)) for at in range(8))
    found = recommend([row(TUNED, 0.86), Row(SHELF, uneven), row(FOUND, 0.9)], 7, LADDER, "baseline/ce")
    assert found is not None
    assert found.origin == "shelf"
    assert "That may be chance" in found.reason


def test_a_lead_that_other_examples_may_turn_is_no_reason_for_a_new_loss():
    rows = [row(TUNED, 0.86), row(FOUND, 0.9)]
    assert recommend(rows, 7, LADDER, "baseline/ce").origin == "found"
    spread = [Replicates(60, tuple(0.04 * math.sin(at) for at in range(64))), Replicates(60, (0.0,) * 64)]
    noisy = [
        replace(one, outcomes=tuple(replace(outcome, replicates=part) for outcome in one.outcomes))
        for one, part in zip(rows, spread, strict=True)
    ]
    assert recommend(noisy, 7, LADDER, "baseline/ce").origin == "standard"


def test_a_lead_on_the_test_split_that_the_valid_split_contradicts_is_none():
    # The recipe as given is ahead on few test examples, and as far behind on the valid split, which chose the other rate.
    rate = Entrant("ce (lr × 3)", "baseline/ce", baseline=True, learning_rate=3.0)
    ahead, behind = (row(GIVEN, level) for level in (0.73, 0.67))
    rows = [replace(ahead, valid=behind.score), replace(Row(rate, noisy(0.7, 2)), valid=Row(rate, noisy(0.7, 2)).score)]
    found = recommend(rows, None, None, "baseline/ce")
    assert found is not None
    assert found.learning_rate == 3.0
    alone = recommend([ahead, Row(rate, noisy(0.7, 2))], None, None, "baseline/ce")
    assert alone is not None
    assert alone.learning_rate == 1.0


def test_what_is_behind_on_other_test_examples_as_well_is_not_recommended_whatever_the_valid_split_says():
    def on_both(entrant: Entrant, test: float, valid: float, spread: float) -> Row:
        drawn = [Replicates(60, tuple(level + spread * math.sin(at) for at in range(64))) for level in (test, valid)]
        rows = [Row(entrant, noisy(level, 1)) for level in (test, valid)]
        tested, checked = (
            replace(one, outcomes=tuple(replace(outcome, replicates=part) for outcome in one.outcomes))
            for one, part in zip(rows, drawn, strict=True)
        )
        return replace(tested, valid=checked.score)

    def choose(spread: float) -> Recommendation:
        rows = [on_both(TUNED, 0.80, 0.60, 0.0), on_both(SHELF, 0.77, 0.66, spread)]
        found = recommend(rows, None, None, "baseline/ce")
        assert found is not None
        return found

    contradicted, unsure = choose(0.001), choose(0.05)
    assert contradicted.origin == "standard"
    assert "but significantly behind" in contradicted.reason
    assert "on the test data: the two splits differ" in contradicted.reason
    assert unsure.origin == "shelf"
    assert "On valid and test data together nothing else" in unsure.reason


def test_what_is_only_as_good_on_the_test_split_leaves_the_place_to_what_is_ahead_on_both():
    def on_both(entrant: Entrant, test: float, valid: float) -> Row:
        return replace(Row(entrant, noisy(test, 1)), valid=Row(entrant, noisy(valid, 1)).score)

    level = on_both(SHELF, 0.8, 0.7)
    kept = recommend([on_both(TUNED, 0.8, 0.6), level], None, None, "baseline/ce")
    assert kept is not None
    assert kept.origin == "standard"
    assert "the best on valid and test data together, but as good as the standard loss on the test data" in kept.reason
    ahead = replace(SHELF, label="another", loss="another")
    found = recommend([on_both(TUNED, 0.8, 0.6), level, on_both(ahead, 0.83, 0.62)], None, None, "baseline/ce")
    assert found is not None
    assert found.loss == "another"


@pytest.mark.parametrize("examples", [False, True])
def test_a_higher_score_on_the_test_split_never_loses_a_recommendation(examples: bool):
    def scored(level: float, sign: int) -> tuple[Outcome, ...]:
        drawn = Replicates(300, tuple(level + 0.02 * math.sin(sign * at) for at in range(64))) if examples else None
        return tuple(
            Outcome(state=State.SCORED, score=level + sign * own, replicates=drawn)
            for own in (0.01, -0.02, 0.015, -0.005)
        )

    def origin(lead: float) -> str:
        standard = replace(Row(GIVEN, scored(0.8, 1)), valid=Row(GIVEN, scored(0.8, 1)[:3]).score)
        shelf = replace(Row(SHELF, scored(0.8 + lead, -1)), valid=Row(SHELF, scored(0.84, -1)[:3]).score)
        found = recommend([standard, shelf], None, None, "baseline/ce")
        assert found is not None
        return found.origin

    assert [origin(lead) for lead in (-0.1, -0.01, -0.002, 0.0, 0.002, 0.01)] == ["standard", *["shelf"] * 5]


def test_nothing_else_that_stands_to_choose_is_ahead_of_what_is_recommended():
    """Each pair weighs the splits by its own noise: the largest lead over the standard loss is not one over all others."""

    def on_both(entrant: Entrant, test: float, valid: float, spread: float, own: int) -> Row:
        def score(level: float, seeds: int, spread: float) -> tuple[Outcome, ...]:
            drawn = Replicates(300, tuple(level + spread * math.sin(own * at) for at in range(64)))
            levels = [level + 0.002 * math.sin(own + at) for at in range(seeds)]
            return tuple(Outcome(state=State.SCORED, score=each, replicates=drawn) for each in levels)

        return replace(Row(entrant, score(test, 8, 0.01)), valid=Row(entrant, score(valid, 3, spread)).score)

    even = on_both(SHELF, 0.84, 0.83, 0.002, 1)
    other = on_both(replace(SHELF, label="other", loss="other"), 0.85, 0.8, 0.01, 2)
    standard = on_both(TUNED, 0.8, 0.8, 0.05, 3)
    assert _weigh_lead(other, standard).value > _weigh_lead(even, standard).value
    assert _weigh_lead(even, other).value > 0
    found = recommend([standard, other, even], None, None, "baseline/ce")
    assert found is not None
    assert found.loss == SHELF.loss


def test_the_threshold_that_was_tuned_is_handed_over():
    decided = replace(TUNED, tuned_threshold=True)
    outcomes = tuple(
        Outcome(state=State.SCORED, score=0.9 + 0.001 * at, also={"threshold": 0.1 + 0.1 * (at % 2)}) for at in range(8)
    )
    found = recommend([row(GIVEN, 0.7), Row(decided, outcomes)], None, LADDER, "baseline/ce")
    assert found is not None
    assert found.recipe["threshold"] == 0.15
    assert "tuned threshold, which is 0.15" in found.describe()
    before = Ladder((Rung(decided, 1.0, (0.9,), 0.2),), 1.0, "baseline/ce")
    first = recommend([], None, before, "baseline/ce")
    assert first is not None
    assert first.recipe["threshold"] == 0.2


def test_of_known_losses_the_best_is_recommended_and_of_equal_ones_the_standard_loss():
    rate = Entrant("ce (lr × 3)", "baseline/ce", baseline=True, learning_rate=3.0)
    shelf = Entrant("#3 shelf/dice", "dice text", step_rule="one_norm", known=True)
    rows = [Row(rate, noisy(0.8, 2)), Row(TUNED, noisy(0.86, 1)), Row(shelf, noisy(0.8601, 1))]
    found = recommend(rows, None, LADDER, "baseline/ce")
    assert found is not None
    assert found.origin == "shelf"
    equal = recommend([*rows[1:2], Row(rate, noisy(0.8601, 1)), *rows[2:]], None, LADDER, "baseline/ce")
    assert equal is not None
    assert (equal.loss, equal.learning_rate, equal.recipe) == ("baseline/ce", 3.0, {})
