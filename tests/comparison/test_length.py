"""Epochs that the task chose are enough for the standard loss to learn, and those that were given stay."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import autoloss
from autoloss.comparison.record import Record
from autoloss.errors import RequestError, RunError
from autoloss.evaluation.dispatch import Machines, start_workers
from autoloss.evaluation.evaluator import Evaluator
from autoloss.run import scoring
from autoloss.run.beginning import choose_length
from autoloss.run.request import make_request, prepare
from autoloss.run.retraining import retrain
from autoloss.settings import Configuration
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.task import FrozenTask
from autoloss.tasks.trainer_task import FullSchedule
from autoloss.training.recipe import Recipe
from autoloss.training.training import Training

QUICK = {"rejection.steps": 20, "rejection.threshold": 0.01, "ladder.share": 1.0}


def draw(seed: int, count: int = 96) -> tuple[Tensor, Tensor]:
    """Return rows of three classes, of which the third is rare."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 2, generator=generator)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 0] > 1.2).long()


class Blind(nn.Linear):
    """Predicts the same for all rows."""

    def __init__(self) -> None:
        super().__init__(2, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(torch.zeros_like(inputs))


def worst_recall(prediction: Tensor, target: Tensor) -> float:
    hit = prediction.argmax(1) == target
    return min(hit[target == label].float().mean().item() for label in range(3))


def accuracy(prediction: Tensor, target: Tensor) -> float:
    return (prediction.argmax(1) == target).float().mean().item()


def make(
    metric=worst_recall,
    epochs: int | None = None,
    learning_rate: float = 0.01,
    network=lambda: nn.Linear(2, 3),
    **others,
) -> SupervisedTask:
    recipe = Recipe(epochs=epochs, batch_size=16, learning_rate=learning_rate)
    train, valid, test = (draw(seed) for seed in range(3))
    return SupervisedTask(network, train, valid, "softmax", metric, test=test, recipe=recipe, **others)


def choose(task: SupervisedTask) -> tuple[float, list[tuple[int, float]]]:
    evaluator = Evaluator(task, {}, Configuration())
    with start_workers(evaluator, Machines(workers=0)) as dispatcher:
        return choose_length(evaluator, 0, Record(dispatcher))


def test_trainings_are_doubled_until_the_standard_loss_learns_what_the_metric_asks_for():
    length, tried = choose(make())
    assert length > 1
    assert [steps for steps, _ in tried[:2]] == [204, 408]
    assert tried[0][1] == 0
    assert max(score for _, score in tried) > 0


def test_where_twice_the_length_is_not_clearly_ahead_it_stays():
    length, tried = choose(make(accuracy, learning_rate=0.5))
    assert length == 1
    assert len(tried) == 2


def test_where_nothing_learns_the_length_stays():
    length, tried = choose(make(learning_rate=1e-7))
    assert length == 1
    assert [steps for steps, _ in tried] == [204, 408, 816, 1632]


def test_only_epochs_that_were_not_given_are_changed():
    assert make().chooses_length
    assert not make(epochs=3).chooses_length
    longer = make().lengthen(2)
    assert longer.steps(Training(seed=0)) == 2 * 204
    assert longer.recipe("proxy")["epochs"] == 2 * make().recipe("proxy")["epochs"]
    assert any("epochs=68, batch_size=16" not in text and "epochs=68" in text for text in longer.choices())
    frozen = FrozenTask(make(), {}).lengthen(2)
    assert frozen.chooses_length
    assert frozen.steps(Training(seed=0)) == 2 * 204


def test_a_full_schedule_is_longer_too_unless_its_epochs_are_given():
    for epochs, factor in ((None, 2), (40, 1)):
        made = make(full=FullSchedule(recipe=Recipe(epochs=epochs)))
        assert made.lengthen(2).recipe("full")["epochs"] == factor * made.recipe("full")["epochs"]


def test_a_length_is_refused_where_the_epochs_are_given():
    assert prepare(make_request(make(), {"search.length": 2}), samples=False).task.recipe("proxy")["epochs"] == 68
    with pytest.raises(RequestError, match=r"search\.length is 2, and the task .* did not choose its epochs by itself"):
        make_request(make(epochs=3), {"search.length": 2})


def test_where_nothing_learns_more_epochs_are_advised_than_were_tried(tmp_path):
    with pytest.raises(RunError, match=rf"To train longer: Recipe\(epochs={34 * 8 * 3}, …\)"):
        autoloss.search(
            make(network=Blind), evaluations=2, settings=QUICK, directory=tmp_path, workers=0, say=print, observe=print
        )


def test_a_run_keeps_the_length_that_it_chose(tmp_path, monkeypatch):
    said, again = list[str](), list[str]()
    arguments = {"workers": 0, "final": False}
    found = autoloss.search(
        make(),
        evaluations=2,
        settings=QUICK | {"rejection.samples": 2},
        directory=tmp_path,
        say=said.append,
        observe=print,
        **arguments,
    )
    length = found.configuration.search.length
    assert length > 1
    assert sum("times as long as chosen first" in text for text in said) == 1
    assert found.settings.recipe["epochs"] == 34 * length
    longer = autoloss.resume(tmp_path, make(), evaluations=3, say=again.append, observe=print, **arguments)
    assert longer.configuration.search.length == length
    assert longer.history[:2] == found.history[:2]
    assert not any("task has changed" in text for text in again)
    assert not any("times as long" in text for text in again)
    # Epochs that are written down afterwards are not multiplied once more.
    for task in (make(), make(epochs=round(34 * length))):
        found = retrain(tmp_path, task=task, out=tmp_path / f"{task.chooses_length}", training_seeds=1, against=[])
        assert found.settings["recipe"]["epochs"] == 34 * length
    compared = list[SupervisedTask]()
    monkeypatch.setattr(scoring, "compare_with_baselines", lambda best, task, *others, **more: compared.append(task))
    autoloss.compare(tmp_path, make(), workers=0)
    assert compared[0].recipe("proxy")["epochs"] == 34 * length


@pytest.mark.parametrize("epochs", [None, 3])
def test_tuning_and_checking_say_the_length_too(epochs: int | None):
    said = list[str]()
    autoloss.tune(make(epochs=epochs), trainings=2, workers=0, say=said.append)
    checked = autoloss.check(make(epochs=epochs), settings=QUICK, evaluations=4, workers=0)
    for texts in (said, checked.notes):
        assert any("times as long as chosen first" in text for text in texts) is (epochs is None)
    # The score is that of the first length, the seconds those of the last.
    assert (" at 1/" in checked.outcome) is (epochs is None)
