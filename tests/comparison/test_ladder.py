"""The expert's ladder: what it tries follows from task and budget, it finds what helps, and an interruption costs nothing."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import autoloss
from autoloss.comparison import climbing
from autoloss.comparison.climbing import _vary, climb_ladder
from autoloss.comparison.entrant import Entrant, Measurements, find_simplest
from autoloss.comparison.ladder import Ladder, Rung
from autoloss.comparison.record import Record
from autoloss.errors import RequestError, RunError
from autoloss.evaluation.dispatch import Machines, start_workers
from autoloss.evaluation.evaluator import Evaluator, draw_samples
from autoloss.proposing.records import Outcome, State
from autoloss.run.beginning import describe_tries
from autoloss.settings import Configuration
from autoloss.store.store import Store
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training.recipe import Recipe
from autoloss.training.training import Replicates, Training
from tests.tasks.toy import TwoHeadsTask


def rows(seed: int, count: int = 192, distance: float = 1.5) -> tuple[Tensor, Tensor]:
    """Return rows of which one in eight is of the second class, and hard to tell."""
    generator = torch.Generator().manual_seed(seed)
    target = (torch.rand(count, generator=generator) < 0.125).long()
    return torch.randn(count, 3, generator=generator) + distance * target[:, None], target


def f1(prediction: Tensor, target: Tensor) -> float:
    found = prediction.argmax(1)
    return (2 * (found * target).sum() / (found.sum() + target.sum()).clamp(min=1)).item()


def task(learning_rate: float = 0.002, **others) -> SupervisedTask:
    recipe = Recipe(epochs=12, batch_size=32, learning_rate=learning_rate)
    return SupervisedTask(
        lambda: nn.Linear(3, 2), rows(0), rows(1), "softmax", f1, test=rows(2), recipe=recipe, **others
    )


@functools.cache
def climb_alone(learning_rate: float, budget: float) -> Ladder:
    """Climb once for all tests of one task and budget: they follow from the seed."""
    return climb(task(learning_rate), budget)[0]


def climb(made: SupervisedTask, budget: float, store: Store | None = None) -> tuple[Ladder, Record]:
    evaluator = Evaluator(made, {}, Configuration())
    with start_workers(evaluator, Machines(workers=0)) as dispatcher:
        record = Record(dispatcher, store)
        return climb_ladder(evaluator, 0, budget, record), record


def test_it_finds_the_rate_that_the_recipe_misses_and_what_the_metric_wants():
    ladder = climb_alone(0.002, 24)
    assert ladder.best is not None
    assert ladder.given is not None
    assert ladder.best.mean > ladder.given.mean + 0.1
    tried = {rung.entrant.loss for rung in ladder.rungs}
    assert {"baseline/ce", "shelf/root_balanced_ce", "shelf/balanced_ce"} <= tried
    assert any(rung.entrant.tuned_threshold for rung in ladder.rungs)
    assert any(rung.entrant.length == 2 for rung in ladder.rungs)
    assert ladder.best.entrant.length == 1


@pytest.mark.parametrize(("learning_rate", "budget"), [(0.002, 16), (0.002, 24), (0.3, 16), (0.02, 20)])
def test_the_best_and_the_recipe_as_given_are_trained_on_several_seeds(learning_rate, budget):
    ladder = climb_alone(learning_rate, budget)
    assert ladder.best is not None
    assert ladder.given is not None
    assert min(len(ladder.best.scores), len(ladder.given.scores)) >= 2


@pytest.mark.parametrize("budget", [2, 5, 8, 24])
def test_it_spends_no_more_than_its_budget_and_always_trains_the_recipe_as_given(budget: float):
    ladder = climb_alone(0.002, budget)
    assert ladder.spent <= budget
    assert ladder.given is not None
    assert ladder.given.fidelity == 1


def test_where_no_short_training_finds_the_rare_class_rates_are_compared_at_a_tuned_threshold():
    """The best rate is then not the one whose first training happens to predict the rare class at 0.5."""
    recipe = Recipe(epochs=16, batch_size=32, learning_rate=0.02)
    train, valid = (rows(seed, 96, distance=0.5) for seed in (0, 1))
    hardly = SupervisedTask(lambda: nn.Linear(3, 2), train, valid, "softmax", f1, recipe=recipe)
    ladder, _ = climb(hardly, 24)
    assert {one.entrant.learning_rate for one in ladder.rungs if one.entrant.tuned_threshold} >= {0.3, 1.0, 3.0}
    # Nothing is spent on the others.
    assert len([one for one in ladder.rungs if not one.entrant.tuned_threshold]) <= 3
    # Where a short training does find it, the threshold is tuned for the best alone.
    ladder, _ = climb(task(0.3), 24)
    assert len({one.entrant.learning_rate for one in ladder.rungs if one.entrant.tuned_threshold}) <= 2


@pytest.mark.parametrize(("scores", "tried"), [((0.5,), True), ((0.5, 0.6, 0.7, 0.8, 0.9), False)])
def test_short_trainings_that_mostly_score_the_same_are_repeated_at_a_tuned_threshold(scores, tried, monkeypatch):
    """They are of a constant prediction; on their part of the valid split it may have more than on the whole."""
    monkeypatch.setattr(SupervisedTask, "constant_score", lambda task: -1.0)
    monkeypatch.setattr(climbing._Climb, "score", lambda self, one: scores[self.tried.index(one) % len(scores)])
    ladder, _ = climb(task(0.3), 24)
    rates = {one.entrant.learning_rate for one in ladder.rungs if one.entrant.tuned_threshold}
    assert (rates >= {0.3, 1.0, 3.0}) == tried


def test_what_a_short_training_has_on_a_part_of_the_split_is_not_the_highest_score():
    given = Entrant("ce", "baseline/ce", baseline=True)
    ladder = Ladder(
        (Rung(given, 1.0, (0.6, 0.7)), Rung(replace(given, learning_rate=3.0), 0.125, (0.9,))), 2.0, "baseline/ce"
    )
    assert ladder.highest == pytest.approx(0.65)


def test_rates_without_a_score_are_not_tried_again_at_a_tuned_threshold():
    def undefined(prediction: Tensor, target: Tensor) -> float:
        return f1(prediction, target) if (prediction == prediction[:1]).all() else float("nan")

    train, valid = (rows(seed, 96) for seed in (0, 1))
    ladder, _ = climb(
        SupervisedTask(lambda: nn.Linear(3, 2), train, valid, "softmax", undefined, recipe=Recipe(epochs=16)), 24
    )
    assert ladder.highest is None
    assert not any(rung.entrant.tuned_threshold for rung in ladder.rungs)


def test_what_was_trained_before_an_interruption_is_not_trained_again(tmp_path):
    with Store(tmp_path, write=True) as store:
        first, record = climb(task(), 5, store)
        count = len(record.outcomes)
        again, record = climb(task(), 5, store)
        assert again == first
        assert len(record.outcomes) == count == len(store.trainings())


def test_it_comes_back_from_plain_values():
    ladder = climb_alone(0.002, 2)
    assert Ladder.from_dict(ladder.to_dict()) == ladder


def test_candidates_are_trained_with_steps_that_do_not_grow_with_the_gradient():
    given = Entrant("ce", "baseline/ce", baseline=True)
    one_norm = replace(given, step_rule="one_norm", learning_rate=0.3)
    clipped = Rung(replace(given, step_rule="clipped", learning_rate=10.0), 1.0, (0.9,))
    ladder = Ladder((clipped, Rung(one_norm, 1.0, (0.8,)), Rung(given, 1.0, (0.5,))), 3.0, "baseline/ce")
    chosen = ladder.choose_settings(("recipe", "clipped", "one_norm"))
    assert (chosen["search.step_rule"], chosen["search.learning_rate"]) == ("one_norm", 0.3)
    assert chosen["search.direction"]
    assert ladder.choose_settings(("recipe",))["search.step_rule"] == "clipped"


def test_candidates_have_the_rate_of_the_standard_loss_where_the_steps_follow_the_gradient():
    given = Entrant("ce", "baseline/ce", baseline=True)
    # The gradient of class weights is eleven times as large.
    weighted = Rung(replace(given, loss="shelf/balanced_ce", learning_rate=0.28), 1.0, (0.7,))
    ladder = Ladder((weighted, Rung(replace(given, learning_rate=3.0), 1.0, (0.6,))), 3.0, "baseline/ce")
    assert ladder.choose_settings(("recipe",))["search.learning_rate"] == 3.0


def test_a_budget_for_the_recipe_alone_is_not_called_a_comparison():
    given, faster = Rung(Entrant("", "baseline/ce"), 1.0, (0.5,)), Entrant("", "baseline/ce", learning_rate=3.0)
    alone = Ladder((given,), 2.0, "baseline/ce")
    assert ["no change of it was tried" in text for text in alone.describe()] == [True]
    beside = Ladder((given, Rung(faster, 1.0, (0.4,))), 3.0, "baseline/ce")
    assert [text.partition(":")[0] for text in beside.describe()] == [
        "No change of the recipe, of 1 tried, clearly improves the standard loss"
    ]


def test_ways_that_raise_an_error_are_told_and_a_rate_at_which_the_training_diverges_is_not():
    given = Rung(Entrant("ce", "baseline/ce"), 1.0, (0.5,))
    high = Rung(Entrant("ce × 100", "baseline/ce", learning_rate=100.0), 1.0, (None,), reason="diverged: NaN")
    decided = Entrant("ce (tuned threshold)", "baseline/ce", tuned_threshold=True)
    failed = Rung(decided, 1.0, (None,), reason="failed: IndexError: tuple index out of range")
    assert len([*Ladder((given, high), 2.0, "baseline/ce").describe()]) == 1
    *_, last = Ladder((given, failed, high), 3.0, "baseline/ce").describe()
    assert last.startswith("1 of 3 ways could not be judged. The first, ce (tuned threshold): failed: IndexError")


def test_a_task_without_a_standard_loss_has_nothing_to_tune():
    made = SupervisedTask(lambda: nn.Linear(3, 2), rows(0), rows(1), "softmax", f1)
    made.standard = {}
    with pytest.raises(RequestError, match="standard"):
        autoloss.tune(made, workers=0)


@pytest.mark.parametrize("workers", [0, np.int64(0)])
def test_tuning_without_a_score_fails_and_says_why_on_one_line(workers: int):
    made = SupervisedTask(
        lambda: nn.Linear(3, 2), rows(0), rows(1), "softmax", f1, recipe=Recipe(optimizer=torch.optim.LBFGS, epochs=1)
    )
    with pytest.raises(RunError, match=r"no score .* ended without a score: failed: RequestError: .*AdamW\.$") as ended:
        autoloss.tune(made, trainings=2, workers=workers)
    assert "\n" not in str(ended.value)


def test_tuning_says_what_it_tries_and_how_far_it_is():
    said, seen = list[str](), list[str]()
    autoloss.tune(task(), trainings=8, workers=0, say=said.append, observe=lambda now: seen.append(now.describe()))
    tried = "learning rates, step rules, class weights, a threshold, a longer training"
    assert said == [f"Tuning the standard loss: {tried}; at most 8 whole trainings."]
    assert seen[0].startswith("tuning the standard loss: 0 of about 8 trainings · about ")
    assert seen[-1].startswith(("tuning the standard loss: 7 of", "tuning the standard loss: 8 of"))


def test_what_does_not_fit_the_task_is_not_announced():
    made = SupervisedTask(
        lambda: nn.Linear(3, 1), (torch.randn(40, 3), torch.randn(40, 1)), activation="none", metric=f1
    )
    assert "class weights" not in describe_tries(made, 8)
    assert "threshold" not in describe_tries(made, 8)


def test_a_search_climbs_first_and_trains_its_candidates_by_what_it_learnt(tmp_path):
    quick = {"rejection.steps": 20, "rejection.threshold": 0.01, "ladder.share": 3.0}
    said = list[str]()
    found = autoloss.search(
        task(), evaluations=3, workers=0, final=False, settings=quick, directory=tmp_path, say=said.append
    )
    assert found.ladder is not None
    rule = found.configuration.search.step_rule
    assert rule in ("one_norm", "adamw")
    (told,) = [text for text in said if text.startswith("Candidates are trained with ")]
    assert {"one_norm": "steps of one norm", "adamw": "AdamW"}[rule] in told
    assert found.recommendation is not None
    assert found.recommendation.origin == "standard"
    same = autoloss.open_run(tmp_path)
    assert same.ladder == found.ladder
    trained = {job.training.step_rule for job in same.reader.trainings}
    assert {"recipe", "one_norm"} <= trained


def test_a_search_that_is_interrupted_on_the_ladder_goes_on_there(tmp_path, monkeypatch: pytest.MonkeyPatch):
    quick = {"rejection.steps": 20, "rejection.threshold": 0.01, "ladder.share": 3.0}
    given = {"evaluations": 3, "workers": 0, "final": False, "settings": quick}
    whole = autoloss.search(task(), directory=tmp_path / "whole", **given)
    add, count = Store.add_training, 0

    def interrupt(self: Store, *training: Any) -> None:
        nonlocal count
        add(self, *training)
        count += 1
        if count == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Store, "add_training", interrupt)
    with pytest.raises(KeyboardInterrupt):
        autoloss.search(task(), directory=tmp_path / "cut", **given)
    cut = autoloss.open_run(tmp_path / "cut")
    assert not cut.settings.prepared
    assert len(cut.reader.trainings) == 5
    monkeypatch.setattr(Store, "add_training", add)
    resumed = autoloss.resume(tmp_path / "cut", task())
    assert resumed.ladder == whole.ladder
    assert resumed.settings.start == whole.settings.start
    assert [one.formula for one in resumed.history] == [one.formula for one in whole.history]
    assert [one.score for one in resumed.history] == [one.score for one in whole.history]


def test_no_ladder_without_a_share():
    quick = {"rejection.steps": 20, "rejection.threshold": 0.01, "ladder.share": 0}
    found = autoloss.search(task(), evaluations=1, workers=0, final=False, settings=quick)
    assert found.ladder is None
    assert found.configuration.search.step_rule == "recipe"


def test_candidates_are_searched_under_the_branch_weights_of_the_best():
    best = Rung(Entrant("standard", "baseline/ce", weights=(("rcnn_cls", 3.0),)), 1.0, (0.5, 0.6))
    settings = Ladder((best,), 2.0, "baseline/ce").choose_settings(("recipe", "one_norm"))
    assert Configuration().changed(settings).search.branch_weights == {"rcnn_cls": 3.0}


@pytest.mark.parametrize("growth", [3.0, 0.85, 0.3])
def test_branch_weights_are_tried_whole_where_short_trainings_tell_only_who_begins_first(growth: float):
    """The classes' weight slows the beginning, and pays in the end."""

    class Shortened(TwoHeadsTask):
        shortens = tunes_learning_rate = lengthens = True

        def steps(self, training: Training) -> int:
            return 10_000

    trained: list[Training] = []

    class Told(Record):
        def run_trainings(self, jobs):
            jobs = list(jobs)
            trained.extend(job.training for job in jobs)
            return {job: Outcome(state=State.SCORED, score=measure(job.training)) for job in jobs}

    def measure(training: Training) -> float:
        level = training.fidelity**growth * 0.4 * training.length
        weighted = [name for name, factor in training.scale.items() if factor > 1]
        gain = 0.1 * training.fidelity - 0.05 if weighted == ["kind"] else -0.01 * len(weighted)
        return level + gain - abs(training.learning_rate - 1) / 100

    evaluator = Evaluator(Shortened(), {}, Configuration())
    with start_workers(evaluator, Machines(workers=0)) as dispatcher:
        ladder = climb_ladder(evaluator, 0, 8, Told(dispatcher))
    assert ladder.best is not None
    first = next(one for one in trained if one.scale.get("kind", 1.0) > 1)
    assert (first.fidelity == 1) is (growth > 0.5)
    if growth > 0.5:
        assert ladder.best.entrant.weights == (("kind", 3.0),)
        assert ladder.longer is not None


@pytest.mark.parametrize("text", ["rcnn_cls", "rcnn_cls=", "rcnn_cls=0", "rcnn_cls=-1", "=3"])
def test_a_weight_without_a_branch_or_a_factor_is_refused(text):
    with pytest.raises(RequestError, match=r"expected branch=factor, such as rpn_cls=3"):
        Configuration().changed({"search.weights": (text,)})


def test_it_goes_on_beyond_the_grid_while_the_best_rate_is_at_its_end():
    ladder, _ = climb(task(learning_rate=0.0002), 24)
    assert {30.0, 90.0} <= {rung.entrant.learning_rate for rung in ladder.rungs}
    assert ladder.best.mean > 0.4


def test_class_weights_that_noise_cannot_tell_from_none_give_way():
    plain, weighted = ([0.70, 0.74, 0.69], [0.71, 0.72, 0.73])
    scores = {"plain": Measurements(tuple(plain)), "weighted": Measurements(tuple(weighted))}
    assert find_simplest(["weighted", "plain"], scores.__getitem__, len) == "plain"
    clear = {"plain": Measurements((0.60, 0.62)), "weighted": Measurements((0.70, 0.73))}
    assert find_simplest(["weighted", "plain"], clear.__getitem__, len) == "weighted"


def test_one_seed_is_judged_by_the_noise_of_its_examples():
    def resampled(level: float, spread: float) -> Measurements:
        scores = tuple(level + spread * ((-1) ** at) for at in range(20))
        return Measurements((level,), (Replicates(50, scores),))

    near = {"plain": resampled(0.7, 0.0), "weighted": resampled(0.72, 0.05)}
    assert find_simplest(["weighted", "plain"], near.__getitem__, len) == "plain"
    clear = {"plain": resampled(0.7, 0.0), "weighted": resampled(0.72, 0.001)}
    assert find_simplest(["weighted", "plain"], clear.__getitem__, len) == "weighted"


def test_what_is_as_simple_and_ahead_is_never_passed_over():
    scores = {"weighted": (0.70, 0.74), "plain": (0.69, 0.73), "noisy": (0.60, 0.80)}
    measured = {name: Measurements(values) for name, values in scores.items()}
    # The noisy one alone is near the first.
    costs = {"weighted": 1, "plain": 0, "noisy": 0}
    assert find_simplest(["weighted", "plain", "noisy"], measured.__getitem__, costs.__getitem__) == "plain"


def test_an_optimizer_of_ones_own_that_takes_no_other_step_keeps_it_and_is_told_so():
    quick = {"rejection.steps": 20, "rejection.threshold": 0.01, "ladder.share": 3.0}
    said: list[str] = []
    made = SupervisedTask(
        lambda: nn.Linear(3, 2), rows(0), rows(1), "softmax", f1, recipe=Recipe(epochs=12, batch_size=32)
    )
    made.step_rules = ("recipe",)
    found = autoloss.search(made, evaluations=2, workers=0, final=False, settings=quick, say=said.append)
    assert any("The task's optimizer is used as given: it has no other step rule." in one for one in said)
    assert {rung.entrant.step_rule for rung in found.ladder.rungs} == {"recipe"}
    assert found.configuration.search.step_rule == "recipe"


def test_what_gave_way_to_a_simpler_way_is_still_compared():
    plain, clipped = (Entrant("ce", "baseline/ce", baseline=True, step_rule=rule) for rule in ("recipe", "clipped"))
    rungs = Rung(plain, 1.0, (0.7, 0.8)), Rung(clipped, 1.0, (0.76, 0.76))
    ladder = Ladder(rungs, 4.0, "baseline/ce")
    assert ladder.set_aside is rungs[1]
    faster = replace(plain, learning_rate=3.0)
    changed = Ladder((Rung(faster, 1.0, (0.74, 0.76)), rungs[1], rungs[0]), 5.0, "baseline/ce")
    assert [text.partition(":")[0] for text in changed.describe()] == [
        "Best with the standard loss",
        "Higher, but not clearly, so that the simpler is chosen",
    ]
    assert Ladder(rungs[::-1], 4.0, "baseline/ce").set_aside is None


def test_weights_of_classes_take_a_smaller_rate_where_steps_follow_the_gradient():
    """Ten times the rate was best for cross entropy on ten classes; inverse shares at that rate learned nothing."""
    made = task()
    evaluator = Evaluator(made, draw_samples(made, 3, 0), Configuration())
    weights = {"shelf/balanced_ce": evaluator.measure_weights("shelf/balanced_ce")}
    assert weights["shelf/balanced_ce"]["main"] > 1.5
    for rule, follows in (("recipe", True), ("one_norm", False)):
        best = Entrant("ce", "baseline/ce", learning_rate=10.0, step_rule=rule)
        rates = {one.loss: one.learning_rate for one in _vary(made, best, weights) if one.loss != best.loss}
        assert (rates["shelf/balanced_ce"] < 10 / 1.5) is follows
        assert rates["shelf/root_balanced_ce"] == 10


def test_a_task_with_fewer_samples_than_an_explanation_asks_for_gives_what_it_has():
    made = TwoHeadsTask()
    with pytest.raises(RequestError, match="asked for 16"):
        draw_samples(made, 16, 0)
    assert {len(found) for found in draw_samples(made, 16, 0, least=1).values()} == {10}
