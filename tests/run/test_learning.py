"""A search whose standard loss learns nothing at any rung of the ladder stops, and says which option to change."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import autoloss
from autoloss.comparison.climbing import CLASS_WEIGHTS
from autoloss.comparison.entrant import Entrant
from autoloss.comparison.ladder import Ladder, Rung
from autoloss.errors import RunError
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.learning import Floor, measure_floor
from autoloss.run.beginning import check_learning
from autoloss.settings import Configuration
from autoloss.store.run_settings import TaskReference
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.task import Task
from autoloss.training.recipe import Recipe
from tests.tasks.toy import TwoHeadsTask, accuracy

QUICK = {"rejection.steps": 20, "rejection.samples": 2, "rejection.threshold": 0.1, "ladder.share": 1.0}
BRIEF = {**QUICK, "limits.explored": 1}
"""For what is said before a search: it ends with its first loss."""


class Constant(nn.Module):
    """Predicts the same for every input, whatever its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return 0 * self.last(inputs)


def floor_of(made: Task) -> Floor:
    return measure_floor(Evaluator(made, {}, Configuration()), [0])


def task() -> SupervisedTask:
    inputs = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    pair = inputs, (inputs[:, 0] > -0.5).long()
    return SupervisedTask(
        Constant, pair, pair, "softmax", accuracy, recipe=Recipe(epochs=4), data=Data(rows_per_sample=16)
    )


def test_a_search_ends_where_no_way_of_training_is_ahead_of_a_constant_prediction(tmp_path):
    with pytest.raises(RunError) as ended:
        autoloss.search(task(), evaluations=3, workers=0, directory=tmp_path / "run", settings=QUICK, final=False)
    said = str(ended.value)
    assert "The standard loss, cross entropy, learns nothing in any of" in said
    assert "the untrained network scores 0.3" in said
    assert "the best constant prediction 0.6" in said
    assert "To train longer: Recipe(epochs=12, …)." in said
    assert said.endswith("To search anyway: --set ladder.share=0")
    with pytest.raises(RunError, match="learns nothing in any of"):
        autoloss.resume(tmp_path / "run", task(), workers=0)


@pytest.mark.parametrize(
    ("given", "name", "options", "advised"),
    [
        (task, "mine.py:task", {}, "To train longer: Recipe(epochs=12, …)."),
        (task, "digits-seg", {}, "To train longer: --set epochs=12."),
        (task, "tabular", {}, "To train longer: --set steps=900."),
        (task, "tabular", {"steps": "20"}, "To train longer: --set steps=60."),
        (TwoHeadsTask, None, {}, "To train longer: in its train()."),
    ],
)
def test_the_option_is_named_as_it_must_be_typed(monkeypatch, given, name, options, advised):
    made: Task = given()
    monkeypatch.setattr(type(made), "untrained", lambda self, seed: 0.9)
    ladder = Ladder((Rung(Entrant("ce", "baseline/ce"), 0.5, (0.8,)),), 2.0, "baseline/ce")
    with pytest.raises(RunError) as ended:
        check_learning(ladder, floor_of(made), made, TaskReference(name, options), print)
    assert advised in str(ended.value)
    typed = " ".join(TaskReference(name, options).to_arguments())
    assert (f"autoloss tune {typed}" if name else "autoloss.tune(task)") in str(ended.value)


def test_trainings_without_a_score_are_not_ahead_of_anything():
    ladder = Ladder((Rung(Entrant("ce", "baseline/ce"), 1.0, (None,)),), 2.0, "baseline/ce")
    with pytest.raises(
        RunError, match=r"in any of 1 ways .* was tried: no training has a score; the untrained network"
    ):
        check_learning(ladder, floor_of(task()), task(), TaskReference("mine.py:task"), print)
    undefined = Ladder((replace(ladder.rungs[0], reason="diverged: the metric is not finite"),), 2.0, "baseline/ce")
    assert "ended without a score: diverged: the metric is not finite." in " ".join(undefined.describe())
    assert Ladder.from_dict(undefined.to_dict()) == undefined
    with pytest.raises(
        RunError, match=r"no training has a score \(diverged: the metric is not finite\); the untrained"
    ):
        check_learning(undefined, floor_of(task()), task(), TaskReference("mine.py:task"), print)


def test_a_metric_that_a_constant_prediction_maximises_is_called_so():
    ladder = Ladder((Rung(Entrant("ce", "baseline/ce"), 1.0, (-0.08,)),), 2.0, "baseline/ce")
    with pytest.raises(RunError, match="No prediction scores above that constant") as ended:
        check_learning(ladder, Floor(-0.05, -1e-9, ideal=0.0), task(), TaskReference(None), print)
    assert "train longer" not in str(ended.value)


def test_a_short_training_that_is_ahead_is_enough():
    rungs = (Rung(Entrant("ce", "baseline/ce"), 1.0, (0.5,)), Rung(Entrant("wce", "baseline/wce"), 0.5, (0.8,)))
    check_learning(Ladder(rungs, 2.0, "baseline/ce"), floor_of(task()), task(), TaskReference(None), print)


def test_labels_that_have_nothing_to_do_with_the_inputs_mostly_end_a_search(tmp_path):
    ended = 0
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)
        splits = [(torch.randn(200, 6, generator=draw), torch.randint(5, (200,), generator=draw)) for _ in range(2)]
        recipe = Recipe(epochs=2, batch_size=20, learning_rate=0.1)
        made, said = SupervisedTask(lambda: nn.Linear(6, 5), *splits, "softmax", accuracy, recipe=recipe), list[str]()
        place = tmp_path / str(seed)
        try:
            autoloss.search(
                made, evaluations=12, workers=0, directory=place, settings=BRIEF, final=False, say=said.append
            )
        except RunError as error:
            ended += "a score on it is uncertain by 0.0" in str(error)
        else:
            assert any("A search would choose by chance" in text for text in said)
    assert ended >= 2


def test_a_search_goes_on_where_the_standard_loss_learns_something_else_than_the_metric_asks_for(monkeypatch):
    made, said = task(), list[str]()
    monkeypatch.setattr(type(made), "untrained", lambda self, seed: 0.1)
    ladder = Ladder((Rung(Entrant("ce", "baseline/ce"), 1.0, (0.5,)),), 2.0, "baseline/ce")
    check_learning(ladder, floor_of(made), made, TaskReference(None), said.append)
    assert "the best constant prediction scores 0.6" in said[0]
    assert "cross entropy 0.5000" in said[0]


def test_a_metric_that_a_constant_prediction_satisfies_is_named():
    def closeness_of_shares(probabilities: Tensor, target: Tensor) -> float:
        return -float((probabilities.mean(dim=0)[1] - target.float().mean()).abs())

    inputs = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    pair = inputs, (inputs[:, 0] > -0.5).long()
    made = SupervisedTask(lambda: nn.Linear(4, 2), pair, pair, "softmax", closeness_of_shares, recipe=Recipe(epochs=4))
    said = "No prediction scores above that constant: the metric does not ask for what tells examples apart."
    assert said in str(autoloss.check(made, settings=QUICK, rates=False))
    assert said not in str(autoloss.check(task(), settings=QUICK, rates=False))


def test_a_small_budget_has_room_for_weights_of_the_classes_in_the_ladder(tmp_path):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(800, 4, generator=generator)
    rare = (inputs[:, 0] + 0.7 * torch.randn(800, generator=generator) > 2).long()

    def recall_and_precision(prediction: Tensor, target: Tensor) -> float:
        found = prediction.argmax(dim=1)
        return (2 * (found * target).sum() / (found.sum() + target.sum()).clamp(min=1)).item()

    made = SupervisedTask(
        lambda: nn.Linear(4, 2),
        (inputs[:400], rare[:400]),
        (inputs[400:], rare[400:]),
        "softmax",
        recall_and_precision,
        recipe=Recipe(epochs=4, batch_size=16, learning_rate=0.01),
    )
    settings = {name: value for name, value in BRIEF.items() if name != "ladder.share"}
    said = list[str]()
    found = autoloss.search(
        made, evaluations=10, workers=0, directory=tmp_path / "run", settings=settings, final=False, say=said.append
    )
    assert any("at most 8 whole trainings" in text for text in said)
    assert any(rung.entrant.loss in CLASS_WEIGHTS["baseline/ce"] for rung in found.ladder.rungs)
