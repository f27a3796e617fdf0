"""A threshold that the standard loss misses by a little is lowered before the search, so that losses like it pass."""

from __future__ import annotations

import pytest
from torch import Tensor

import autoloss
from autoloss import recipes
from autoloss.evaluation.adapting import adapt as adapt_evaluator
from autoloss.evaluation.evaluator import Evaluator
from autoloss.run.check import check
from autoloss.settings import Configuration
from autoloss.space.activated import ActivatedBranch
from autoloss.tasks.task import Task
from histories import as_text

from .quick import CLASSES, SETTINGS, QuickTask, accuracy

SLOW = {
    "rejection.admit_standard": True,
    "rejection.steps": 2,
    "rejection.learning_rate": 0.03,
    "rejection.threshold": 0.9,
}
"""So few steps raise the metric by a part of what it could rise."""
CE, INVERTED, STEEPER = "neg(mul(y, log(p)))", "mul(y, log(p))", "neg(mul(y, log(square(p))))"


def percent(prediction: Tensor, target: Tensor) -> float:
    return 100 * accuracy(prediction, target)


class Standard(QuickTask):
    """Args:
    standard: Branch → its standard loss; empty for none.
    """

    def __init__(self, **standard: str) -> None:
        super().__init__(tuple(standard))
        self.standard = {branch: loss for branch, loss in standard.items() if loss}


def adapt(task: Task, **settings: object) -> tuple[float, list[str], Evaluator]:
    changed = Configuration().changed({**SETTINGS, **SLOW, **settings})
    runner = Evaluator(task, {name: tuple(drawn) for name, drawn in task.samples(2, seed=1).items()}, changed)
    said: list[str] = []
    found = adapt_evaluator(runner, said.append)
    return found.configuration.rejection.threshold, [text for text in said if "rejection.threshold" in text], runner


def gain_of(runner: Evaluator, branch: str, loss: str) -> float:
    """The relative g of a loss with plain autograd."""
    reference = Evaluator(
        runner.task, runner.samples, runner.configuration.changed({"rejection.engine": "reference"})
    ).get_tester(branch)
    (verdict,) = reference.engine.verdicts([reference.parse(loss)])
    return reference.engine.reference.score(verdict.gains, "relative")


@pytest.mark.parametrize("threshold", [0.9, 0.95])
@pytest.mark.parametrize("loss", [CE, STEEPER])
def test_it_is_a_share_of_what_the_standard_loss_gains(loss, threshold):
    found, said, runner = adapt(Standard(main=loss), **{"rejection.threshold": threshold})
    gain = gain_of(runner, "main", loss)
    assert 0 < gain < 1
    assert found == pytest.approx(0.9 * gain, abs=1e-3)
    assert said == [
        f"The standard loss of the branch main has g {gain:.3g} on the samples, just below rejection.threshold = {threshold:g}. "
        f"The threshold is lowered to {found:g}, so that losses like it pass."
    ]


def test_in_the_units_of_the_metric_it_is_a_share_of_the_same_g():
    task = Standard(main=CE)
    task._branches = {"main": ActivatedBranch(activation="softmax", measure=percent, channels=CLASSES)}
    found, (said,), runner = adapt(task, **{"rejection.unit": "absolute", "rejection.threshold": 90.0})
    gain = 100 * gain_of(runner, "main", CE)
    assert 10 < found < gain < 90
    assert found == pytest.approx(0.9 * gain, abs=0.1)
    assert f"has g {gain:.3g} on the samples, just below rejection.threshold = 90. " in said


def test_without_an_activation_it_stays_since_g_depends_on_the_unit_of_the_targets():
    task = Standard(main="square(add(p, neg(y)))")
    task._branches = {"main": ActivatedBranch(activation="none", measure=accuracy, channels=CLASSES)}
    _, _, runner = adapt(task)
    threshold = 1.2 * gain_of(runner, "main", task.standard["main"])
    assert threshold > 0
    assert adapt(task, **{"rejection.threshold": threshold})[:2] == (threshold, [])


def test_the_branch_whose_standard_loss_gains_least_decides():
    found, (said,), runner = adapt(Standard(cls=CE, reg=STEEPER))
    gains = {"cls": gain_of(runner, "cls", CE), "reg": gain_of(runner, "reg", STEEPER)}
    assert gains["cls"] != gains["reg"]
    least = min(gains, key=lambda name: gains[name])
    assert found == pytest.approx(0.9 * gains[least], abs=1e-3)
    assert f"branch {least}" in said


def test_a_branch_whose_standard_loss_gains_nothing_does_not_count():
    found, (said,), runner = adapt(Standard(cls=CE, reg=INVERTED))
    assert found == pytest.approx(0.9 * gain_of(runner, "cls", CE), abs=1e-3)
    assert "branch cls" in said


@pytest.mark.parametrize(
    ("standard", "settings"),
    [
        ({"main": CE}, {"rejection.steps": 15, "rejection.learning_rate": 0.1}),
        ({"main": CE}, {"rejection.admit_standard": False}),
        ({"main": ""}, {}),
        ({"main": "baseline/lovasz"}, {}),
        ({"main": INVERTED}, {}),
        ({"main": "p - p + y"}, {}),
        ({"main": "exp(exp(exp(exp(exp(exp(y + p))))))"}, {}),
        ({"main": CE}, {"rejection.threshold": 0.5}),
        ({"main": CE}, {"rejection.threshold": 1.2}),
        ({"main": CE}, {"rejection.threshold": 0.0}),
        ({"main": CE}, {"rejection.threshold": -0.5}),
    ],
    ids=[
        "all is gained",
        "not asked for",
        "none",
        "by hand",
        "inverted",
        "no gradient",
        "not finite",
        "it passes",
        "it is far below",
        "zero",
        "negative",
    ],
)
def test_otherwise_it_stays(standard, settings):
    found, said, runner = adapt(Standard(**standard), **settings)
    assert (found, said) == (runner.configuration.rejection.threshold, [])


def test_the_default_asks_for_it_and_the_paper_does_not():
    for task in ("digits-seg", "voc-seg", "coco-det", "my-own-task"):
        assert recipes.get_search_settings(task)["rejection.admit_standard"] is True
        assert "rejection.admit_standard" not in recipes.get_search_settings(task, "paper")
    assert not Configuration().rejection.admit_standard


class TestSearch:
    @staticmethod
    def searched(directory, **options):
        settings = {**SETTINGS, **SLOW, **options.pop("settings", {})}
        return autoloss.search(
            QuickTask(),
            evaluations=6,
            seed=3,
            workers=0,
            directory=directory,
            settings=settings,
            final=False,
            **options,
        )

    def test_the_run_keeps_it_and_its_losses_pass_it(self, tmp_path):
        said: list[str] = []
        found = self.searched(tmp_path / "run", say=said.append, start=["baseline/ce"])
        threshold = found.configuration.rejection.threshold
        assert 0 < threshold < 0.9
        assert [text for text in said if f"The threshold is lowered to {threshold:g}, so" in text]
        # The standard loss itself is held to the new one.
        assert any("Starts from 1 known loss: cross entropy" in text for text in said)
        scores = [one.candidate.scores["main"][0] for one in found.history if one.candidate.scores]
        assert min(scores) >= threshold
        assert any(score < 0.9 for score in scores)

    def test_a_resumed_run_and_its_replay_are_the_same(self, tmp_path):
        whole = self.searched(tmp_path / "whole")
        autoloss.search(
            QuickTask(), evaluations=2, seed=3, workers=0, directory=tmp_path / "run", final=False,
            settings={**SETTINGS, **SLOW},
        )  # fmt: skip
        longer = autoloss.resume(tmp_path / "run", QuickTask(), evaluations=6, workers=0, final=False)
        assert list(as_text(longer.history)) == list(as_text(whole.history))
        assert autoloss.replay(tmp_path / "run", QuickTask(), full=True).difference is None

    def test_check_shows_what_a_search_would_do(self):
        settings = {**SETTINGS, **SLOW}
        found = check(QuickTask(), settings=settings, seed=3, rates=False)
        assert found.threshold < 0.9
        assert found.branches[0].reason is None
        assert any("rejection.threshold" in note for note in found.notes)
