"""A winner is selected on new training seeds: two for all that are confirmed, then more for the best of them."""

from autoloss.comparison.entrant import CONFIRMATION, Entrant, training_seeds
from autoloss.comparison.racing import follow_race
from autoloss.proposing.records import Outcome, State
from autoloss.settings import FinalSettings

FINAL = FinalSettings(confirm=3, confirm_seeds=2, finalists=2, finalist_seeds=3)
STEADY, FICKLE, WEAK = (Entrant(label, label) for label in ("steady", "fickle", "weak"))
SCORES = {STEADY: (0.8,) * 5, FICKLE: (0.9, 0.9, 0.9, 0.0, 0.9), WEAK: (0.3,) * 5}


def known(count: int):
    again = training_seeds(7, CONFIRMATION, 5)[:count]
    return {
        entrant.job(seed, "valid"): Outcome(state=State.SCORED, score=score)
        for entrant, scores in SCORES.items()
        for seed, score in zip(again, scores, strict=False)
    }


def order(found) -> list[str]:
    return [row.entrant.label for row in found]


def test_a_loss_that_fails_one_training_in_five_leads_on_two_seeds_and_loses_on_five():
    assert order(follow_race(list(SCORES), 7, FINAL, known(2))[0]) == ["fickle", "steady", "weak"]
    assert order(follow_race(list(SCORES), 7, FINAL, known(5))[0]) == ["steady", "fickle", "weak"]


def test_only_the_finalists_have_further_seeds_even_where_more_are_known():
    found = follow_race(list(SCORES), 7, FINAL, known(5))[0]
    assert [len(row.scores) for row in found] == [5, 5, 2]


def test_a_finalist_without_all_of_its_scores_comes_last():
    trials = known(5)
    failed = FICKLE.job(training_seeds(7, CONFIRMATION, 5)[3], "valid")
    trials[failed] = Outcome(state=State.DIVERGED, reason="the loss was not finite at step 3")
    assert order(follow_race(list(SCORES), 7, FINAL, trials)[0]) == ["steady", "weak", "fickle"]


def test_without_finalists_the_first_seeds_decide():
    none = FinalSettings(confirm=3, confirm_seeds=2, finalists=0, finalist_seeds=0)
    assert order(follow_race(list(SCORES), 7, none, known(5))[0]) == ["fickle", "steady", "weak"]
