"""A SupervisedTask without validation data: each fold holds out one part of the training data, and three are one outcome."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoloss
from autoloss import Data, Diverged, FullSchedule, Recipe, RequestError, Scored, SupervisedTask, Training
from autoloss.comparison.entrant import COMPARISON, CONFIRMATION, LADDER, TUNING, VALIDATION, training_seeds
from autoloss.evaluation.evaluator import Evaluator
from autoloss.proposing.records import Outcome, State
from autoloss.run.retraining import RETRAINING
from autoloss.settings import Configuration
from tests.tasks import conformance
from tests.tasks.toy import Items, accuracy

ROWS = 60


def rows(rare: int = 20) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
    return inputs, (torch.arange(ROWS) < rare).long()


def task(train: Any = None, folds: int | None = 3, **others: Any) -> SupervisedTask:
    given = {
        "activation": "softmax",
        "metric": accuracy,
        "test": rows(),
        "data": Data(rows_per_sample=16, folds=folds),
        "recipe": Recipe(epochs=2, batch_size=8),
        **others,
    }
    return SupervisedTask(lambda: nn.Linear(4, 2), rows() if train is None else train, **given)


def watch(made: SupervisedTask, training: Training) -> tuple[Scored, Tensor]:
    """Train, and return the inputs that were evaluated last."""
    (metric,) = (one for one in [made._metric])
    seen: list[Tensor] = []
    made = made.with_metric("seen", lambda prediction, target: seen.append(target) or metric(prediction, target))
    outcome = made.train(conformance.trees(made), training)
    assert isinstance(outcome, Scored)
    return outcome, seen[-1]


@pytest.mark.parametrize("form", [lambda pair: pair, Items])
def test_every_fold_holds_out_another_part_with_all_classes(form):
    made = task(form(rows()))
    assert made.folds == 3
    assert tuple(made.splits) == ("valid", "test")
    held = [made._splits["proxy"][fold]["valid"].indices.tolist() for fold in range(3)]
    kept = [made._splits["proxy"][fold]["train"].indices.tolist() for fold in range(3)]
    assert sorted(row for part in held for row in part) == list(range(ROWS))
    assert all(sorted([*one, *other]) == list(range(ROWS)) for one, other in zip(held, kept, strict=True))
    for fold in range(3):
        outcome, target = watch(made, Training(seed=0, fold=fold))
        assert 6 <= int(target.sum()) <= 7
        assert len(outcome.curve) == made.steps(Training(seed=0, fold=fold)) == 10
        assert len(watch(made, Training(seed=0, fold=fold, split="test"))[1]) == ROWS


def test_three_folds_are_one_outcome():
    made = task()
    found = [made.train(conformance.trees(made), Training(seed=0, fold=fold)) for fold in range(3)]
    assert len({outcome.curve for outcome in found if isinstance(outcome, Scored)}) == 3
    outcome = Outcome.pool(
        [Outcome(state=State.SCORED, score=one.score) for one in found if not isinstance(one, Diverged)]
    )
    assert outcome.count == 3
    assert outcome.score == pytest.approx(sum(one.score for one in found if isinstance(one, Scored)) / 3)
    assert outcome.deviation is not None
    with pytest.raises(RequestError, match="has 3 folds; found fold 3"):
        made.train(conformance.trees(made), Training(seed=0, fold=3))


def test_the_trainings_of_a_run_with_several_seeds_are_evaluated_on_different_folds():
    made, seen = task(), list[int]()
    train = made.train
    made.train = lambda criterion, training, *others: seen.append(training.fold) or train(criterion, training, *others)
    evaluator = Evaluator(made, {}, Configuration())
    for seed, fold in ((0, 0), (1, 0), (5, 0), (1, 2)):
        assert evaluator.train("baseline/ce", Training(seed=seed, fold=fold)).score is not None
    assert seen == [0, 1, 2, 0]


@pytest.mark.parametrize("purpose", [LADDER, TUNING, CONFIRMATION, VALIDATION, COMPARISON, RETRAINING])
def test_the_seeds_of_one_comparison_are_evaluated_on_all_folds(purpose: str):
    made, seen = task(), list[int]()
    train = made.train
    made.train = lambda criterion, training, *others: seen.append(training.fold) or train(criterion, training, *others)
    for seed in range(2):
        evaluator = Evaluator(made, {}, Configuration().changed({"seed": seed}))
        for one in training_seeds(seed, purpose, 3):
            evaluator.train("baseline/ce", Training(seed=one))
    assert [sorted(seen[:3]), sorted(seen[3:])] == [[0, 1, 2], [0, 1, 2]]


def test_a_score_of_several_seeds_is_measured_on_all_folds():
    made, seen = task(), set[int]()
    train = made.train
    made.train = lambda criterion, training, *others: seen.add(training.fold) or train(criterion, training, *others)
    (row,) = autoloss.score(made, ["baseline/ce"], seeds=3, workers=0)
    assert (len(row.scores), seen) == (3, {0, 1, 2})


@pytest.mark.parametrize("form", [lambda target: target[:, None], Tensor.float, Tensor.bool])
def test_two_classes_are_in_every_fold_in_each_form_of_their_targets(form):
    inputs, target = rows(rare=6)
    reading = Data(rows_per_sample=16, folds=3)
    made = SupervisedTask(
        lambda: nn.Linear(4, 1), (inputs, form(target)), activation="sigmoid", metric=lambda p, y: 0.5, data=reading
    )
    assert [int(target[fold["valid"].indices].sum()) for fold in made._splits["proxy"]] == [2, 2, 2]


def test_values_are_not_all_read_to_be_split():
    class Counted(Items):
        reads = 0

        def __getitem__(self, index: int) -> Any:
            Counted.reads += 1
            return self.pair[0][index], self.pair[1][index]

    inputs = rows()[0]
    reading = Data(rows_per_sample=16, folds=3)
    SupervisedTask(
        lambda: nn.Linear(4, 1),
        Counted((inputs, inputs[:, 0])),
        activation="none",
        metric=lambda p, y: 0.5,
        data=reading,
    )
    assert 0 < Counted.reads < ROWS


def test_values_and_images_are_split_without_classes():
    inputs = rows()[0]
    values = task((inputs, inputs[:, :2]), activation="none", metric=lambda p, y: -(p - y).square().mean(), test=None)
    assert [len(fold["valid"]) for fold in values._splits["proxy"]] == [20, 20, 20]


@pytest.mark.parametrize(("count", "folds"), [(4, None), (60, 10), (199, 10), (200, 5)])
def test_without_validation_data_a_number_of_folds_is_chosen_by_the_number_of_examples(count, folds):
    train = (torch.zeros(count, 4), torch.arange(count) % 2)
    if folds is None:
        with pytest.raises(
            RequestError, match=r"10 folds would be made, and the train data is 4 examples.*Give valid="
        ):
            task(train, folds=None)
        return
    made = task(train, folds=None)
    held = len(made._splits["proxy"][0]["valid"])
    assert (made.folds, held) == (folds, math.ceil(count / folds))
    assert made.choices()[1].startswith(
        f"No validation data given: each training holds out {held} of the {count} train examples, one of {folds} folds"
    )
    assert "(folds;" not in "".join(task(train, folds=3).choices())


def test_a_class_too_rare_for_the_chosen_folds_is_divided_with_the_others():
    made = task(rows(rare=3), folds=None)
    held = [rows(rare=3)[1][fold["valid"].indices] for fold in made._splits["proxy"]]
    assert [len(part) for part in held] == [6] * 10
    assert sum(int(part.sum()) for part in held) == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"folds": 61}, "folds is 61, and the train data is 60 examples"),
        ({"train": rows(rare=2)}, "class 1 has 2 of the train examples.*missing from a fold"),
        ({"valid": rows()}, r"Data\(folds=3\) with valid data"),
        ({"folds": 1}, r"Data\(folds=1\) without valid data"),
        ({"folds": 0}, "at least 1"),
        ({"full": FullSchedule(data={"train": rows()})}, "nor data for `full`"),
        ({"train": torch.utils.data.DataLoader(Items(rows()), batch_size=8)}, "a DataLoader"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_folds_that_cannot_be_made_are_named(wrong: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message):
        task(**wrong)


CLAIMS = [claim for claim in conformance.CLAIMS if claim.__name__ != "pictures_have_one_shape_or_there_are_none"]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_task(claim):
    claim(task())


@pytest.mark.parametrize(
    ("target", "activation", "channels"),
    [
        (rows()[1].bool(), "softmax", 2),
        (rows()[1].bool(), "sigmoid", 1),
        (rows()[0][:, 0], "none", 1),
        (rows()[0][:, :3] * 1000, "none", 3),
    ],
)
def test_targets_of_any_kind_are_looked_at_without_validation_data(target, activation, channels):
    made = SupervisedTask(
        lambda: nn.Linear(4, channels),
        (rows()[0], target),
        activation=activation,
        metric=lambda prediction, target: 0.0,
        recipe=Recipe(epochs=1),
    )
    assert made.folds == 10
    said = [text for text in made.diagnose() if "are of size" in text]
    assert len(said) == (activation == "none" and channels == 3)
